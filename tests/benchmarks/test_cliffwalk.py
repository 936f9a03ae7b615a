"""The paper's Figures 1 and 2: memory, learners, methods, and numbers to agree with."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from benchmarks.cliffwalk import __main__ as cliffwalk
from benchmarks.cliffwalk import methods, networks
from benchmarks.cliffwalk.learner import Learner
from benchmarks.cliffwalk.walk import stored_transitions, true_values

# Median, smallest and largest number of updates of 20 seeds in an independent simulation of the
# same set-up (written without this library), tabular, n = 8.
REFERENCE = {
    "uniform": (5980.5, 4365, 9594),
    "oracle": (322.0, 293, 336),
    "greedy": (751.0, 693, 960),
    "proportional_alpha0.6": (1119.5, 971, 1193),
    "proportional_alpha1.0": (879.5, 802, 991),
    "rank_alpha0.7": (1366.5, 1216, 1429),
    "rank_alpha1.0": (958.0, 909, 1531),
}
# State and action of each transition for n = 2, by hand: actions 0 then 1 are right.
SEQUENCES_OF_2 = {((0, 0), (1, 1)), ((0, 0), (1, 0)), ((0, 1),)}


def test_memory_holds_every_sequence_up_to_a_wrong_action():
    seen = set()
    for seed in range(20):
        pairs = [
            divmod(int(kind), 2) for kind in stored_transitions(2, np.random.default_rng(seed))
        ]
        episodes, begins = [], [i for i, (state, _) in enumerate(pairs) if state == 0]
        for begin, end in zip(begins, [*begins[1:], None], strict=True):
            episodes.append(tuple(pairs[begin:end]))
        # The wrong first action comes twice: whatever the second one would have been.
        assert sorted(episodes) == sorted([*SEQUENCES_OF_2, ((0, 1),)])
        seen.add(tuple(episodes))

    assert len(seen) > 1  # the order is random


def test_true_values_of_three_states():
    """Gamma is 2/3; the right actions are 0, 1, 0."""
    assert true_values(3) == pytest.approx(np.array([[4 / 9, 0], [0, 2 / 3], [1, 0]]))


def naive_update(weights, kind, features):
    """A step of 1/4 on weights . features of the state; weights are (n_features, 2)."""
    state, action = divmod(kind, 2)
    values, n = features @ weights, len(features)  # (n, 2)
    is_right, is_last = action == state % 2, state == n - 1
    target = float(is_right and is_last)
    if is_right and not is_last:
        target += (1 - 1 / n) * values[state + 1].max()
    td_error = target - values[state, action]
    weights[:, action] += 0.25 * td_error * features[state]
    return td_error


@pytest.mark.parametrize("has_bias", [False, True])
def test_learning_is_gradient_descent_on_the_td_error(has_bias):
    n, random = 4, np.random.default_rng(1)
    pupil = Learner(n, has_bias, random)
    features = np.append(np.eye(n), np.ones((n, 1)), axis=1) if has_bias else np.eye(n)
    weights = np.append(pupil.values, np.zeros((1, 2)), axis=0)[: features.shape[1]]

    for kind in random.integers(2 * n, size=200):
        assert pupil.replay(np.array([kind])) == pytest.approx(
            [naive_update(weights, kind, features)]
        )
        assert pupil.values == pytest.approx(features @ weights)


def test_replay_stops_at_the_update_that_solves_the_task():
    random = np.random.default_rng(0)
    pupil = Learner(2, False, random)

    td_errors = pupil.replay(stored_transitions(2, random)[random.integers(6, size=10_000)])

    assert pupil.is_solved
    assert pupil.error < 1e-3
    assert len(td_errors) == pupil.n_updates < 200


def test_oracle_chooses_the_update_that_helps_most():
    pupil = Learner(5, True, np.random.default_rng(3))
    errors = []
    for kind in range(10):
        other = Learner(5, True, np.random.default_rng(3))
        other.replay(np.array([kind]))
        errors.append(other.error)

    assert pupil.best_kind() == np.argmin(errors)


def test_oracle_gives_up_where_every_update_hurts():
    updates, solved = methods.updates_needed("linear", "oracle", 10, 0)

    assert not solved
    assert updates < 1000


@cache
def median_updates(method):
    return np.median([methods.updates_needed("tabular", method, 8, seed)[0] for seed in range(20)])


def agrees(median, reference):
    """
    Whether two medians of 20 differ by less than four standard errors.

    20 normal numbers span 3.73 standard deviations on average; a median's standard error is 1.25
    deviations over the root of 20, and that of a difference the root of 2 times as much: four of
    them are 0.42 of the span.
    """
    expected, smallest, largest = reference
    return abs(median - expected) < 0.42 * (largest - smallest)


@pytest.mark.parametrize("method", REFERENCE)
def test_updates_agree_with_an_independent_simulation(method):
    assert agrees(median_updates(method), REFERENCE[method])


def test_another_exponent_does_not_agree():
    assert not agrees(median_updates("proportional_alpha1.0"), REFERENCE["proportional_alpha0.6"])
    assert not agrees(median_updates("proportional_alpha0.6"), REFERENCE["rank_alpha0.7"])


def test_command_makes_missing_runs_and_prints_medians(tmp_path, capsys):
    out, figure = tmp_path / "runs.jsonl", tmp_path / "figure.svg"
    options = ["--n", "2", "--learners", "tabular", "--methods", "uniform", "greedy"]
    options += ["--out", str(out), "--figure", str(figure)]
    cliffwalk.main([*options, "--seeds", "1"])
    first = out.read_text()
    cliffwalk.main([*options, "--seeds", "3"])

    assert out.read_text().startswith(first)
    rows = pd.read_json(out, lines=True)
    assert len(rows) == 6
    for method, group in rows.groupby("method"):
        expected = [methods.updates_needed("tabular", method, 2, seed)[0] for seed in range(3)]
        assert sorted(group["updates"]) == sorted(expected)
    medians = rows.groupby("method")["updates"].median()
    assert f"| 2 | {medians['uniform']:.0f} | {medians['greedy']:.0f} |" in capsys.readouterr().out
    assert figure.exists()


def test_networks_of_dqn_and_perdqn_learn_the_memory():
    for method in networks.METHODS:
        updates, solved = networks.updates_needed("network_lr1e-3", method, 3, 0)
        assert solved
        assert updates < 2000
