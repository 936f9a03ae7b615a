"""Estimates against numbers worked out by hand."""

import itertools
import math

import grids
import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from sb3_per.experiments.compare.environment import Score
from sb3_per.experiments.compare.scores import censored_median, run_of
from sb3_per.experiments.compare.statistics import (
    Estimate,
    band,
    difference,
    improvement,
    interquartile_mean,
    pooled_mean,
)
from sb3_per.experiments.compare.suite import cells
from sb3_per.experiments.compare.summary import claim


def array(*values):
    return np.array(values, dtype=float)


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end():
    # Of eight values two at either end: (3 + 4 + 5 + 6) / 4.
    assert interquartile_mean(array(1, 100, 3, 4, 5, 6, -50, 7)) == pytest.approx(4.5)
    # Of ten values the whole part of 2.5 at either end: (3 + ... + 8) / 6.
    assert interquartile_mean(array(*range(1, 11))) == pytest.approx(5.5)


def test_runs_of_all_environments_are_pooled():
    # Together 0, 0, 1, 2, 3, 4, 9, 9: the middle half is 1, 2, 3, 4. A mean of the environments'
    # own interquartile means would be (0.5 + 6.5) / 2 or so.
    estimate = pooled_mean([array(0, 1, 0, 2), array(9, 3, 9, 4)])

    assert estimate.value == pytest.approx(2.5)


def test_runs_are_resampled_within_their_environment():
    # Every resample of either environment is itself; across environments it would not be.
    estimate = pooled_mean([array(0, 0, 0, 0, 0), array(1, 1, 1, 1, 1)])

    assert estimate == (0.5, 0.5, 0.5)


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    # 100 values 0 and 100 values 1, IQM of a resample: about normal near 1/2. Of a Bernoulli sample
    # with share p of ones (p between 1/4 and 3/4), the middle half holds 2 p - 1/2, whose standard
    # deviation is 2 sqrt(1/4 / 200) = 0.0707; the interval is 1.96 of them to either side.
    estimate = pooled_mean([np.repeat([0.0, 1.0], 100)])

    half = 1.96 * 2 * math.sqrt(0.25 / 200)
    assert estimate.value == pytest.approx(0.5)
    assert estimate.high - 0.5 == pytest.approx(half, rel=0.1)
    assert 0.5 - estimate.low == pytest.approx(half, rel=0.1)


def test_the_probability_of_improvement_counts_pairs_and_halves_of_ties():
    # Of the nine pairs in the first environment three are won (2 over 1, 3 over 1 and 2) and two
    # are ties (1, 2): (3 + 2 / 2) / 9. In the second all four pairs are won.
    own = [array(1, 2, 3), array(5, 6)]
    other = [array(1, 2, 9), array(0, 1)]

    estimate = improvement(own, other)

    assert estimate.value == pytest.approx((4 / 9 + 1) / 2)
    assert improvement(other, own).value == pytest.approx(1 - (4 / 9 + 1) / 2)


def test_the_probability_of_improvement_is_mann_and_whitneys():
    generator = np.random.default_rng(0)
    own, other = generator.integers(0, 20, 9) * 1.0, generator.integers(5, 25, 7) * 1.0

    u = mannwhitneyu(own, other).statistic

    assert improvement([own], [other]).value == pytest.approx(u / 63)


def test_equal_runs_are_no_improvement_and_no_difference():
    scores = [array(1, 1, 1, 1, 1)]

    assert improvement(scores, scores) == (0.5, 0.5, 0.5)
    assert difference(scores, scores) == (0.0, 0.0, 0.0)


def test_a_difference_is_between_interquartile_means():
    estimate = difference([array(4, 5, 6, 7, 700)], [array(-900, 1, 2, 3, 4)])

    assert estimate.value == pytest.approx(6 - 2)
    assert estimate.low < 4 < estimate.high


def test_fewer_than_five_runs_have_no_interval():
    value, low, high = pooled_mean([array(1, 2, 3, 4, 5), array(3, 3, 3, 3)])

    assert value == pytest.approx(3)
    assert math.isnan(low)
    assert math.isnan(high)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    # Ten runs of either arm from one distribution: the truth is 1/2. Percentile intervals are known
    # to be a little narrow with few runs; one that never covers, or always does, is caught.
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        own, other = [generator.normal(size=10)], [generator.normal(size=10)]
        _, low, high = improvement(own, other)
        covered += low <= 0.5 <= high

    assert 85 <= covered <= 99


def test_a_band_follows_the_interquartile_mean_at_each_evaluation():
    curves = np.array([[0.0, 5.0, 9.0]] * 4 + [[9.0, 5.0, 0.0]])

    middle, low, high = band(curves)

    # Of a resample of five the middle three count: their mean is 3, 6 or 9 if two, three or more
    # draws are the odd one, which has probability 1 / 5. 3 or more are with 5.8 %, more than the
    # 2.5 % of a tail, 4 or more with 0.7 %.
    assert middle == pytest.approx([0.0, 5.0, 9.0])
    assert low == pytest.approx([0.0, 5.0, 3.0])
    assert high == pytest.approx([6.0, 5.0, 9.0])


def test_a_band_of_four_runs_has_no_width_to_show():
    middle, low, high = band(np.array([[1.0, 2.0]] * 4))

    assert middle == pytest.approx([1.0, 2.0])
    assert np.isnan([low, high]).all()


def run(returns, **changes):
    suite = grids.changed(grids.suite(), "A-v0", **changes)
    return run_of(cells(suite)[0], grids.measured(returns), suite.environments["A-v0"])


def test_the_final_score_is_the_mean_of_the_last_three_evaluations():
    # Score 0 at return 0, 1 at 100.
    done = run([1000.0, 30.0, 60.0, 90.0])

    assert done.final_return == pytest.approx(60.0)
    assert done.final == pytest.approx(0.6)


def test_what_is_evaluated_after_the_last_step_is_left_out():
    """Training by whole episodes goes on to the end of one; the grid has 40 steps."""
    declared = grids.suite()
    longer = grids.measured([10.0, 20.0, 30.0, 40.0, 1000.0])
    longer["evaluations"]["steps"] = [10, 20, 30, 40, 50]

    found = run_of(cells(declared)[0], longer, declared.environments["A-v0"])

    assert found.steps.tolist() == [10, 20, 30, 40]
    within = run([10.0, 20.0, 30.0, 40.0])
    assert (found.final, found.area, found.reached) == (within.final, within.area, within.reached)


def test_the_area_is_the_mean_of_all_evaluations():
    assert run([0.0, 20.0, 60.0, 80.0]).area == pytest.approx(0.4)


def test_scores_lie_between_the_anchors():
    done = run([-150.0] * 4, score=Score(random=-200.0, solved=-100.0, source=""))

    assert done.final == pytest.approx(0.5)


def test_the_threshold_is_reached_at_the_first_evaluation_that_is_as_large():
    assert run([0.0, 50.0, 10.0, 60.0]).reached == 20
    assert math.isinf(run([0.0, 49.9, 10.0, 20.0]).reached)


def test_a_threshold_is_reached_by_episodes_that_all_give_it():
    declared = grids.changed(grids.suite(), "A-v0", threshold=0.9)
    measured = grids.measured([0.9] * 4)
    measured["evaluations"]["returns"] = [[0.9] * 20] * 4
    assert np.mean([0.9] * 20) < 0.9  # rounding

    found = run_of(cells(declared)[0], measured, declared.environments["A-v0"])

    assert found.reached == 10


def test_the_median_of_censored_times_is_the_time_by_which_half_have_arrived():
    never = math.inf

    assert censored_median(array(30, 10, 20)) == 20
    assert censored_median(array(never, 10, never, 20)) == 20
    assert censored_median(array(never, 10, never)) == never


@pytest.mark.parametrize(
    ("interval", "lowest_gain", "worse_in", "said"),
    [
        ((0.7, 0.51, 0.9), -0.049, [], "better"),
        ((0.7, 0.51, 0.9), -0.05, [], "better, but not shown to be non-inferior"),
        ((0.7, 0.51, 0.9), 0.1, ["B"], "better, but not shown to be non-inferior; worse in B"),
        ((0.7, 0.5, 0.9), -0.05, [], "no difference shown"),
        ((0.3, 0.1, 0.5), -0.049, [], "no difference shown, non-inferior"),
        ((0.3, 0.1, 0.5), 0.1, ["A", "B"], "no difference shown; worse in A, B"),
        ((0.3, 0.1, 0.49), -0.05, [], "worse"),
        ((0.3, 0.1, 0.49), -0.049, [], "worse, non-inferior"),
    ],
)
def test_a_claim_looks_at_wins_at_the_size_of_losses_and_at_each_environment(
    interval, lowest_gain, worse_in, said
):
    differs = Estimate(0.5, lowest_gain, 0.9)

    assert claim(Estimate(*interval), differs, worse_in, 5, is_whole=True) == said


def test_a_claim_needs_five_seeds_and_a_whole_grid():
    improved, differs = Estimate(0.9, 0.8, 1.0), Estimate(0.5, 0.4, 0.6)

    too_few = claim(improved, differs, [], 4, is_whole=True)
    a_part = claim(improved, differs, [], 5, is_whole=False)

    assert too_few == "no claim can be made: fewer than 5 seeds"
    assert a_part == "no claim can be made: runs are missing"


def test_equal_returns_are_ties_in_whatever_order_they_came():
    # In floating point 0.1 + 0.7 + 0.6 is not 0.6 + 0.7 + 0.1.
    suite = grids.changed(grids.suite(), "A-v0", score=Score(random=0.002, solved=0.85, source=""))
    scored = [
        run_of(cells(suite)[0], grids.measured(returns), suite.environments["A-v0"])
        for returns in itertools.permutations([0.1, 0.7, 0.6, 0.45])
    ]

    assert len({each.area for each in scored}) == 1
    assert len({each.final for each in scored}) == 4  # which of the four is not among the last
