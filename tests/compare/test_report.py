"""Reports: numbers worked out by hand, and the files that are written."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from small_suite import ENVIRONMENT, of_environment, results, values

from sb3_per.compare.report import (
    draw_curves,
    table,
    table_of_runs,
    write,
)


def row(made, **key):
    rows = table(made.suite, table_of_runs(made))
    for column, value in key.items():
        rows = rows[rows[column] == value]
    (only,) = rows.to_dict("records")
    return only


def two_environments():
    environment = values()["environments"][ENVIRONMENT]
    return {
        "A-v0": {**environment, "score": {"random": 0, "solved": 10}},
        "B-v0": {**environment, "score": {"random": -100, "solved": 0}},
    }


def test_numbers_of_a_run():
    made = results(lambda *_: [0.0, 3.0, 6.0], seeds=1, environments=two_environments())
    runs = table_of_runs(made).set_index(["variant", "environment"])

    one, other = runs.loc["dqn", "A-v0"], runs.loc["dqn", "B-v0"]
    assert one["final_return"] == one["area_return"] == 3.0
    assert one["final_score"] == 0.3
    assert other["final_score"] == 1.03
    assert one["steps_to_threshold"] == 60
    assert one["steps_per_cpu_second"] == 90


def test_final_is_the_mean_of_the_last_three_evaluations():
    made = results(lambda *_: [0.0, 3.0, 6.0], seeds=1)
    longer = made.finished[0][1]
    longer["steps"] = [10, 30, 60, 90, 120]  # a rollout may end after the budget
    longer["returns"] = [[100.0], [0.0], [3.0], [6.0], [1000.0]]

    runs = table_of_runs(made)

    assert runs["final_return"][0] == 3.0
    assert runs["area_return"][0] == 109 / 4


def test_threshold_is_reached_by_episodes_that_all_give_it():
    assert np.mean([0.9] * 20) < 0.9  # rounding
    environments = of_environment(threshold=0.9)["environments"]
    made = results(lambda *_: [0.0, 0.0, 0.0], seeds=1, environments=environments)
    made.finished[0][1]["returns"] = [[0.0] * 20, [0.9] * 20, [0.0] * 20]

    assert table_of_runs(made)["steps_to_threshold"][0] == 60


@pytest.mark.parametrize("environments", [1, 2])
@pytest.mark.parametrize("threshold", [0.9, None])
def test_legend_has_the_thresholds(threshold, environments, tmp_path):
    shared = of_environment(threshold=threshold)["environments"][ENVIRONMENT]
    shared["score"] = {"random": 0, "solved": 1}
    names = ["A-v0", "B-v0"][:environments]
    made = results(lambda *_: [0.0] * 3, environments=dict.fromkeys(names, shared))

    said, page = write(made, tmp_path), (tmp_path / "report.md").read_text()

    assert ("or above: A-v0 0.9" in page) == (threshold is not None)
    assert ("or above: A-v0 0.9." in said) == (threshold is not None and environments == 1)


def test_equal_returns_are_ties_in_any_order():
    # In floating point 0.1 + 0.7 + 0.6 is not 0.6 + 0.7 + 0.1.
    environments = of_environment(score={"random": 0.002, "solved": 0.85})["environments"]
    orders = [*itertools.permutations([0.1, 0.7, 0.6])]

    made = results(lambda *key: orders[key[2]], environments=environments)

    assert table_of_runs(made)["area_score"].nunique() == 1


def test_table_compares_variants_over_and_in_environments():
    def returns(variant, environment, seed):
        gain = {"dqn": 0, "per": 2 if environment == "A-v0" else -10}[variant]
        return [seed % 2 + gain - (100 if environment == "B-v0" else 0)] * 3

    made = results(returns, environments=two_environments())

    # A: scores 0.2 higher in all pairs; B: 0.1 lower in all.
    overall = row(made, environment="all", variant="PERDQN")
    assert overall["P final"] == "0.50 [0.50, 0.50]"
    inside = row(made, environment="A-v0", variant="PERDQN")
    assert inside["P area"] == "1.00 [1.00, 1.00]"
    assert inside["area - base"].startswith("2.00 [")
    assert inside["reached"] == "5 of 5"
    outside = row(made, environment="B-v0", variant="PERDQN")
    assert outside["P area"] == "0.00 [0.00, 0.00]"
    assert outside["steps to threshold"] == "> 90"
    baseline = row(made, environment="all", variant="dqn")
    assert baseline["P final"] == ""


def test_contrasts_compare_with_their_own_variant():
    variants = {**values()["variants"], "best": {"algorithm": "dqn"}}
    contrasts = {"gain": {"variant": "best", "over": "per"}}
    returns = {"dqn": [2.0] * 3, "per": [0.0] * 3, "best": [1.0] * 3}

    made = results(lambda name, *_: returns[name], variants=variants, contrasts=contrasts)

    assert row(made, variant="best")["P final"].startswith("0.00")
    assert row(made, variant="gain (best over PERDQN)")["P final"].startswith("1.00")


def test_only_common_seeds_are_compared():
    """DQN's bad run has no partner; with it, PERDQN would win."""
    made = results(
        lambda variant, _, seed: None if (variant, seed) == ("per", 4) else [-9.0 * (seed == 4)] * 3
    )

    assert row(made, variant="PERDQN")["seeds"] == 4
    assert row(made, variant="PERDQN")["P final"] == "0.50"  # fewer than five: no interval
    assert row(made, variant="dqn")["seeds"] == 5


def test_support_that_returns_leave_is_named(tmp_path):
    made = results(lambda *_: [1.0, 2.0, 3.0])
    made.finished[0][1]["support_edge"] = 0.1
    made.finished[1][1]["support_edge"] = 0.35

    said = " ".join(write(made, tmp_path).split())

    assert f"PERDQN, {ENVIRONMENT}: returns leave the support" in said
    assert said.count("leave the support") == 1


@pytest.mark.parametrize(
    ("best", "is_named"), [(1.9, True), (2.1, False), (0.0, False)], ids=["tenth", "more", "none"]
)
def test_support_that_is_far_too_wide_is_named(best, is_named, tmp_path):
    """Returns of all variants count; without different ones, nothing is known."""
    made = results(lambda name, *_: [0.0, 0.0, best * (name == "dqn")])
    made.finished[1][1].update(support_edge=0.0, support=[-10.0, 10.0])

    said = " ".join(write(made, tmp_path).split())

    warning = f"PERDQN, {ENVIRONMENT}: all returns lie within a tenth of the support (-10 to 10)"
    assert (warning in said) == is_named


def test_report_names_missing_runs(tmp_path):
    made = results(lambda variant, _, seed: None if seed == 1 else [1.0] * 3, seeds=2)

    said = write(made, tmp_path)

    text = (tmp_path / "report.md").read_text()
    assert "2 of 4 runs are finished." in said
    assert f"- dqn, {ENVIRONMENT}, seed 1" in text
    assert "torch 2.0" in text
    assert "CPU time of all runs: 0:00:04" in text
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "curves.svg", "runs.csv"}


def test_equal_results_give_equal_files(tmp_path):
    made = results(lambda variant, _, seed: [1.0 * seed, 2.0, 3.0])
    for name in ("one", "two"):
        write(made, tmp_path / name)

    for file in ("report.md", "curves.svg", "runs.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_figure_shows_chosen_variants(tmp_path):
    made = results(lambda *_: [1.0, 2.0, 3.0])

    write(made, tmp_path, ["per"])

    text = (tmp_path / "curves.svg").read_text()
    assert "PERDQN" in text
    assert ">dqn<" not in text
    with pytest.raises(ValueError, match=r"--variants must be in \['dqn', 'per'\]"):
        write(made, tmp_path, ["sac"])


@pytest.mark.parametrize(("seeds", "bands", "lines"), [(2, 0, 3), (5, 1, 1)])
def test_few_seeds_are_drawn_as_runs_and_their_mean(seeds, bands, lines):
    made = results(lambda _, __, seed: [1.0 * seed, 2.0, 3.0], seeds=seeds)
    panel = Figure().subplots()

    draw_curves(panel, made, ("dqn", ENVIRONMENT), {"color": "red"}, has_band=True)

    assert len(panel.collections) == bands
    assert len([line for line in panel.lines if len(line.get_xdata())]) == lines
    assert panel.lines[-1].get_ydata()[0] == (seeds - 1) / 2 + made.suite.first_seed
    assert panel.get_legend_handles_labels()[1] == ["dqn"]


def test_figure_of_many_variants_as_pdf(tmp_path):
    many = {f"v{n}": {"algorithm": "dqn"} for n in range(12)}
    made = results(lambda *_: [1.0, 2.0, 3.0], seeds=1, variants=many, baseline="v0")

    write(made, tmp_path, ending="pdf")

    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("share", np.linspace(0, 0.9, 10))
@pytest.mark.parametrize("n_variants", [1, 3])
def test_any_subset_of_runs_has_a_report(share, n_variants, tmp_path):
    """As while runs are made; a share of 0 is the empty subset."""
    random = np.random.default_rng(round(1000 * share))
    variants = {name: {"algorithm": "dqn"} for name in ["dqn", "per", "rank"][:n_variants]}
    keys = [*itertools.product(variants, two_environments(), range(3))]
    finished = {key for key in keys if random.random() < share}
    made = results(
        lambda *key: [1.0 * key[2], 2.0, 3.0] if key in finished else None,
        seeds=3,
        environments=two_environments(),
        variants=variants,
    )

    said = write(made, tmp_path)

    rows = table(made.suite, table_of_runs(made))
    assert len(rows) == 3 * n_variants
    for _, line in rows.iterrows():
        environments = (
            [*two_environments()] if line["environment"] == "all" else [line["environment"]]
        )
        needed = [*itertools.product({"dqn", line["variant"]}, environments)]
        seeds = [seed for seed in range(3) if {(*pair, seed) for pair in needed} <= finished]
        assert line["seeds"] == len(seeds)
        assert bool(line.get("final", "")) == bool(seeds)
    assert f"{len(finished)} of {len(keys)} runs are finished." in said
    figure = (tmp_path / "curves.svg").read_text()
    assert all(figure.count(f">{name}<") == 1 for name in variants)


@pytest.mark.parametrize(
    ("gain", "seeds", "n_environments", "expected"),
    [
        (10.0, 5, 1, "better by final, better by area (5 seeds)"),
        (-10.0, 5, 1, "worse by final, worse by area (5 seeds)"),
        (0.0, 5, 1, "undecided by final, undecided by area (5 seeds)"),
        (10.0, 3, 2, "too few seeds to tell (3 of 5)"),
        (10.0, 2, 1, "too few seeds to tell (2 of 5)"),
        (10.0, 1, 5, "too few seeds to tell (1 of 5)"),
        (0.0, 4, 1, "too few seeds to tell (4 of 5)"),
    ],
)
def test_first_line_says_who_is_better_and_how_sure_that_is(
    gain, seeds, n_environments, expected, tmp_path
):
    environments = {f"A-v{i}": two_environments()["A-v0"] for i in range(n_environments)}
    made = results(
        lambda name, _, seed: [seed + gain * (name == "per")] * 3,
        seeds=seeds,
        environments=environments,
    )

    said = write(made, tmp_path)

    assert " ".join(said.split()).startswith(f"PERDQN over dqn: {expected}.")
    assert max(map(len, said.splitlines())) <= 80
    assert f"- PERDQN over dqn: {expected}." in (tmp_path / "report.md").read_text()


def test_median_stands_beside_p(tmp_path):
    made = results(lambda name, _, seed: [seed**2 + 10.0 * (name == "per")] * 3)

    found = row(made, variant="PERDQN")

    assert (found["median final"], found["P final"][:4]) == ("14.0", "0.88")  # 22 of 25 pairs
    assert re.search(r"PERDQN +5 +14.0 +0.88", write(made, tmp_path))


def test_title_names_who_is_compared_where(tmp_path):
    def title(**changes):
        write(results(lambda *_: [1.0, 2.0, 3.0], seeds=1, **changes), tmp_path)
        return (tmp_path / "report.md").read_text().partition("\n")[0]

    three = {name: {"algorithm": name} for name in ("dqn", "per_dqn", "rainbow")}
    assert title(variants=three) == "# dqn, per_dqn and rainbow on sb3_per/BlindCliffwalk-v0"
    assert title(environments=two_environments()) == "# small"
