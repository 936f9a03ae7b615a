"""The sampler alone: by priority, the mixture with uniform sampling, and weights."""

import itertools

import numpy as np
import pytest
from frequencies import SIGNIFICANCE, chi_square_p_value
from hypothesis import given
from hypothesis import strategies as st

from sb3_per.options import PrioritizationOptions
from sb3_per.prioritization.sampler import PrioritizedSampler

N = 40
REMOVED = [0, 1, 2, 3, 7, 14, 20, 21, 35, 36, 37, 38, 39]  # the first, the last, some between
# The last one cannot be reached with whole samples: 0.3 * 8 = 2.4.
MIXTURES = pytest.mark.parametrize(
    ("prioritization", "stratified", "share"),
    list(itertools.product(["proportional", "rank", "lap"], [True, False], [0.25, 1.0, 0.3])),
)


def make(prioritization="proportional", *, seed=0, **options):
    """Skewed priorities, and a third of the slots that cannot be sampled."""
    options = PrioritizationOptions(prioritization, **options)
    sampler = PrioritizedSampler(N, options, np.random.default_rng(seed))
    sampler.insert(np.arange(N))
    sampler.update(np.arange(N), np.exp(3 * np.random.default_rng(1).standard_normal(N)))
    sampler.remove(np.array(REMOVED))
    return sampler


@MIXTURES
def test_slots_are_sampled_as_often_as_the_mixture_says(prioritization, stratified, share):
    sampler = make(prioritization, stratified=stratified, uniform_share=share)
    by_priority = sampler.prioritization.probabilities(np.arange(N))
    expected = share * (by_priority > 0) / (N - len(REMOVED)) + (1 - share) * by_priority

    slots = np.concatenate([sampler.sample(8, beta=0.0).slots for _ in range(2_500)])

    counts = np.bincount(slots, minlength=N)
    np.testing.assert_allclose(sampler.probabilities(np.arange(N)), expected)
    assert chi_square_p_value(counts, expected) > SIGNIFICANCE
    assert chi_square_p_value(counts, by_priority) < SIGNIFICANCE
    assert counts[REMOVED].sum() == 0


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, N - 1), st.integers(1, 12), st.integers(1, 3)),
        max_size=12,
    ),
    st.booleans(),
)
def test_uniform_samples_reach_exactly_what_is_present(changes, stratified):
    """Rows (step 1) and episodes of one of several environments (larger steps), round the ring."""
    options = PrioritizationOptions(uniform_share=1.0, stratified=stratified)
    sampler, expected = PrioritizedSampler(N, options, np.random.default_rng(0)), set()
    for is_insertion, first, n, step in changes:
        slots = (first + step * np.arange(n)) % N  # distinct, since step * n < N
        (sampler.insert if is_insertion else sampler.remove)(slots)
        expected = expected | set(slots.tolist()) if is_insertion else expected - {*slots.tolist()}
    assert sampler.n_sampleable == len(expected)
    if expected:
        assert set(sampler.sample(1000, beta=0.0).slots.tolist()) == expected


def sampler_of(weights, **options):
    """A sampler whose slots have exactly these priorities; those of 0 cannot be sampled."""
    options = {"alpha": 1.0, "eps": 1e-300, "weight_normalization": "none", **options}
    options = PrioritizationOptions(**options)
    sampler = PrioritizedSampler(len(weights), options, np.random.default_rng(1))
    sampler.insert(np.flatnonzero(weights))
    sampler.update(np.arange(len(weights)), np.asarray(weights))
    return sampler


def spread_weights(n_slots):
    """Weights from 1e-6 to 1e6, every tenth one 0 (but never the only one)."""
    random = np.random.default_rng(n_slots)
    weights = 10.0 ** random.uniform(-6, 6, n_slots)
    weights[9::10] = 0.0
    return weights


@pytest.mark.parametrize("n_slots", [1, 2, 7, 1000, 2**17])
def test_independent_samples_follow_the_priorities(n_slots):
    weights, n_samples = spread_weights(n_slots), 400_000
    probabilities = weights / weights.sum()
    sampler = sampler_of(weights, stratified=False)

    slots = sampler.sample(n_samples, beta=1.0).slots

    counts = np.bincount(slots, minlength=n_slots)
    assert counts[weights == 0].sum() == 0
    assert chi_square_p_value(counts, probabilities) > SIGNIFICANCE
    np.testing.assert_allclose(sampler.probabilities(np.arange(n_slots)), probabilities)
    if n_slots > 1:  # a sampler that goes one slot too far in one of twenty samples is rejected
        is_wrong = np.random.default_rng(2).random(n_samples) < 0.05
        wrong = np.where(is_wrong, (slots + 1) % n_slots, slots)
        counts = np.bincount(wrong, minlength=n_slots)
        assert chi_square_p_value(counts, probabilities) < SIGNIFICANCE


@pytest.mark.parametrize("n_slots", [1, 2, 7, 1000, 2**17])
@pytest.mark.parametrize("batch_size", [1, 33, 48, 100, 4096])
def test_each_stratum_gives_one_sample(n_slots, batch_size):
    weights = spread_weights(n_slots)
    n_strata = batch_size * weights / weights.sum()  # that each slot fills

    slots = sampler_of(weights).sample(batch_size, beta=1.0).slots

    counts = np.bincount(slots, minlength=n_slots)
    # A slot fills all its strata except the two at its ends, or none and touches one or two.
    assert (np.abs(counts - n_strata) < 2 + 1e-9).all()
    assert (np.diff(slots) >= 0).all()


@pytest.mark.parametrize(
    ("prioritization", "stratified", "replacement"),
    [
        ("proportional", True, True),
        ("proportional", False, True),
        ("proportional", True, False),
        ("rank", True, True),
        ("rank", True, False),
    ],
)
def test_weights_of_a_slot_add_up_to_uniform_sampling(prioritization, stratified, replacement):
    """
    Its weights with beta 1, times N / B, add up to 1 in a batch on average: they are unbiased.

    Five standard errors are exceeded once in 1.7 million times.
    """
    weights = np.array([0.0, 1.0, 2.0, 0.5, 8.0, 0.0, 1e-3, 4.0, 1.0])
    options = {"prioritization": prioritization, "stratified": stratified}
    sampler = sampler_of(weights, replacement=replacement, **options)
    probabilities = sampler.probabilities(np.arange(9))
    batch_size, n_batches, n = 4, 40_000, np.count_nonzero(weights)
    counts, found, naive = np.zeros(9), np.zeros((n_batches, 9)), np.zeros((n_batches, 9))

    for batch in range(n_batches):
        sampled = sampler.sample(batch_size, beta=1.0)
        np.add.at(counts, sampled.slots, 1)
        np.add.at(found[batch], sampled.slots, n * sampled.weights[:, 0] / batch_size)
        of_one = probabilities[sampled.slots]
        np.add.at(naive[batch], sampled.slots, 1 / (batch_size * of_one))

    often = counts > 1000
    assert (counts[weights == 0] == 0).all()
    assert (errors(found)[often] <= 5).all()
    if not replacement:  # the probabilities of a single sample are rejected
        assert (errors(naive)[often] > 5).any()


def errors(estimates):
    """How many standard errors the means of estimates are away from 1."""
    error = estimates.std(axis=0) / np.sqrt(len(estimates))
    return np.maximum(np.abs(estimates.mean(axis=0) - 1) - 1e-6, 0) / np.maximum(error, 1e-300)
