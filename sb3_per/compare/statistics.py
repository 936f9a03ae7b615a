"""Estimates and their 95 % bootstrap intervals, over runs in several environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap, trim_mean

FloatArray = NDArray[np.float64]

# Scores of the runs in each environment, shape (n_runs,) each: the strata of the bootstrap.
Strata = Sequence[FloatArray]

# In an environment; with fewer runs, resampling gives intervals that are far too narrow.
LEAST_RUNS = 5


class Estimate(NamedTuple):
    """A value and the ends of its 95 % interval, which are NaN if there are too few runs."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: FloatArray, axis: int = -1) -> FloatArray:
    """
    Return the mean of the middle half, without a quarter of the values at either end.

    This is the definition of Agarwal et al. (2021, https://arxiv.org/abs/2108.13264). If four does
    not divide the number of values, SciPy leaves out the whole part of a quarter.
    """
    means: FloatArray = trim_mean(scores, 0.25, axis=axis)
    return means


def band(curves: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """
    Return the interquartile mean over runs and the ends of its interval, shape (E,) each.

    :param curves: A row for each run, shape (n_runs, E).
    """
    low, high = interval([curves], interquartile_mean, axis=0)
    return interquartile_mean(curves, axis=0), low, high


def pooled_mean(scores: Strata) -> Estimate:
    """Estimate the interquartile mean of all runs in all environments together."""
    return _estimate(_pooled, scores)


def difference(scores: Strata, baseline: Strata) -> Estimate:
    """Estimate how much larger the interquartile mean is than the baseline's."""
    return _estimate(lambda left, right: _pooled(left) - _pooled(right), scores, baseline)


def improvement(scores: Strata, baseline: Strata) -> Estimate:
    """
    Estimate the probability that a run scores higher than one of the baseline's, mean over
    environments; equal scores count half (Agarwal et al. 2021, section 4.3).
    """
    return _estimate(_improvement, scores, baseline)


def _pooled(scores: Strata) -> FloatArray:
    return interquartile_mean(np.concatenate(scores, axis=-1))


def _improvement(scores: Strata, baseline: Strata) -> FloatArray:
    wins = []
    for left, right in zip(scores, baseline, strict=True):
        left, right = left[..., :, None], right[..., None, :]
        above = (left > right).mean(axis=(-2, -1)) + (left >= right).mean(axis=(-2, -1))
        wins.append(above / 2)
    shares: FloatArray = np.mean(wins, axis=0)
    return shares


def _estimate(statistic: Callable[..., FloatArray], *groups: Strata) -> Estimate:
    """
    Resample the runs within each environment: SciPy treats each as a separate sample.

    :param statistic: From the groups, with resampled runs of shape (..., n_runs), to values (...,).
    """
    value = float(statistic(*groups))
    flat = [runs for strata in groups for runs in strata]
    if any(len(runs) < LEAST_RUNS for runs in flat):
        return Estimate(value, np.nan, np.nan)

    def of_flat(*runs: FloatArray, axis: int) -> FloatArray:
        rest = iter(runs)
        return statistic(*[[next(rest) for _ in strata] for strata in groups])

    low, high = interval(flat, of_flat, axis=-1)
    return Estimate(value, float(low), float(high))


def interval(
    samples: Sequence[FloatArray], statistic: Callable[..., FloatArray], axis: int
) -> tuple[FloatArray, FloatArray]:
    """Return the ends of the 95 % bootstrap interval of a statistic; each sample is resampled."""
    found = bootstrap(
        samples,
        statistic,
        axis=axis,
        vectorized=True,
        n_resamples=5000,
        method="percentile",
        batch=500,
        rng=np.random.default_rng(0),  # a report is a function of its results
    ).confidence_interval
    return found.low, found.high
