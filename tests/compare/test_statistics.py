"""Estimates against numbers worked out by hand."""

import math

import numpy as np
import pytest

from sb3_per.compare.statistics import (
    band,
    difference,
    improvement,
    interquartile_mean,
    pooled_mean,
)


def array(*values):
    return np.array(values, dtype=float)


def test_interquartile_mean_leaves_out_a_quarter_at_either_end():
    # Of eight values two at either end: (3 + 4 + 5 + 6) / 4.
    assert interquartile_mean(array(1, 100, 3, 4, 5, 6, -50, 7)) == pytest.approx(4.5)
    # Of ten values the whole part of 2.5 at either end: (3 + ... + 8) / 6.
    assert interquartile_mean(array(*range(1, 11))) == pytest.approx(5.5)


def test_pooled_mean_pools_runs_of_all_environments():
    # Together 0, 0, 1, 2, 3, 4, 9, 9: the middle half is 1, 2, 3, 4. A mean of the environments'
    # own interquartile means would be (0.5 + 6.5) / 2 or so.
    estimate = pooled_mean([array(0, 1, 0, 2), array(9, 3, 9, 4)])

    assert estimate.value == pytest.approx(2.5)


def test_bootstrap_resamples_within_an_environment():
    # Every resample of either environment is itself; across environments it would not be.
    estimate = pooled_mean([array(0, 0, 0, 0, 0), array(1, 1, 1, 1, 1)])

    assert estimate == (0.5, 0.5, 0.5)


def test_interval_of_a_mean_has_the_width_of_theory():
    # 100 values 0 and 100 values 1, IQM of a resample: about normal near 1/2. Of a Bernoulli sample
    # with share p of ones (p between 1/4 and 3/4), the middle half holds 2 p - 1/2, whose standard
    # deviation is 2 sqrt(1/4 / 200) = 0.0707; the interval is 1.96 of them to either side.
    estimate = pooled_mean([np.repeat([0.0, 1.0], 100)])

    half = 1.96 * 2 * math.sqrt(0.25 / 200)
    assert estimate.value == pytest.approx(0.5)
    assert estimate.high - 0.5 == pytest.approx(half, rel=0.1)
    assert 0.5 - estimate.low == pytest.approx(half, rel=0.1)


def test_improvement_counts_pairs_and_halves_of_ties():
    # Of the nine pairs in the first environment three are won (2 over 1, 3 over 1 and 2) and two
    # are ties (1, 2): (3 + 2 / 2) / 9. In the second all four pairs are won.
    runs = [array(1, 2, 3), array(5, 6)]
    other = [array(1, 2, 9), array(0, 1)]

    estimate = improvement(runs, other)

    assert estimate.value == pytest.approx((4 / 9 + 1) / 2)
    assert improvement(other, runs).value == pytest.approx(1 - (4 / 9 + 1) / 2)


def test_equal_runs_give_no_difference():
    scores = [array(1, 1, 1, 1, 1)]

    assert improvement(scores, scores) == (0.5, 0.5, 0.5)
    assert difference(scores, scores) == (0.0, 0.0, 0.0)


def test_difference_is_between_interquartile_means():
    estimate = difference([array(4, 5, 6, 7, 700)], [array(-900, 1, 2, 3, 4)])

    assert estimate.value == pytest.approx(6 - 2)
    assert estimate.low < 4 < estimate.high


def test_fewer_than_five_runs_give_no_interval():
    value, low, high = pooled_mean([array(1, 2, 3, 4, 5), array(3, 3, 3, 3)])

    assert value == pytest.approx(3)
    assert math.isnan(low)
    assert math.isnan(high)


def test_band_is_the_interquartile_mean_at_each_evaluation():
    curves = np.array([[0.0, 5.0, 9.0]] * 4 + [[9.0, 5.0, 0.0]])

    middle, low, high = band(curves)

    # Of a resample of five the middle three count: their mean is 3, 6 or 9 if two, three or more
    # draws are the odd one, which has probability 1 / 5. 3 or more are with 5.8 %, more than the
    # 2.5 % of a tail, 4 or more with 0.7 %.
    assert middle == pytest.approx([0.0, 5.0, 9.0])
    assert low == pytest.approx([0.0, 5.0, 3.0])
    assert high == pytest.approx([6.0, 5.0, 9.0])
