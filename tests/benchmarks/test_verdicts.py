"""Equal time, worked out by hand."""

import math

import pytest
from small_suite import results

from benchmarks.verdicts import compared, equal_time_scores
from sb3_per.compare.report import table_of_runs


def scores(made):
    return dict(
        zip(["dqn", "per"], equal_time_scores(made, table_of_runs(made), "dqn"), strict=True)
    )


@pytest.mark.parametrize(("seconds", "score"), [(2.0, 3.0), (3.0, 1.5), (100.0, -math.inf)])
def test_equal_time_is_the_return_at_the_baselines_cost(seconds, score):
    made = results(lambda *_: [0.0, 3.0, 6.0], seeds=1)
    made.finished[0][1]["seconds"]["training_cpu"] = 2.0
    # Evaluations do not count: those of a better policy may be longer.
    made.finished[1][1]["seconds"] |= {"cpu": 100.0, "training_cpu": seconds}

    assert scores(made) == pytest.approx({"dqn": 3.0, "per": score})


@pytest.mark.parametrize("name", ["device", "platform"])
def test_equal_time_counts_the_declared_steps_on_equal_machines(name):
    made = results(lambda *_: [0.0, 3.0, 6.0], seeds=1)
    found = made.finished[1][1]
    found["trained"] = 180  # a whole rollout
    found["seconds"]["training_cpu"] = 2.0
    assert scores(made)["per"] == 3.0

    found["versions"][name] = "another"
    assert math.isnan(scores(made)["per"])
    runs = table_of_runs(made).assign(equal_time_score=[*scores(made).values()])
    assert compared(runs, "per", "dqn", has_times=True).equal_time is None  # not 0
