"""The sampler alone: the mixture with uniform sampling and its weights."""

import itertools

import numpy as np
import pytest
from frequencies import SIGNIFICANCE, chi_square_p_value
from hypothesis import given
from hypothesis import strategies as st

from sb3_per.options import PrioritizationOptions
from sb3_per.prioritization.sampler import PrioritizedSampler, UniformSlots

N = 40
N_REMOVED = 3
# The last one cannot be reached with whole samples: 0.3 * 8 = 2.4.
MIXTURES = pytest.mark.parametrize(
    ("prioritization", "stratified", "share"),
    list(itertools.product(["proportional", "rank", "lap"], [True, False], [0.25, 1.0, 0.3])),
)


def make(prioritization="proportional", *, seed=0, **options):
    """Skewed priorities, and a few slots that cannot be sampled."""
    options = PrioritizationOptions(prioritization, **options)
    sampler = PrioritizedSampler(N, options, np.random.default_rng(seed))
    sampler.insert(np.arange(N))
    sampler.update(np.arange(N), np.exp(3 * np.random.default_rng(1).standard_normal(N)))
    sampler.remove(np.arange(N_REMOVED) * 7)
    return sampler


@MIXTURES
def test_slots_are_sampled_as_often_as_the_mixture_says(prioritization, stratified, share):
    sampler = make(prioritization, stratified=stratified, uniform_share=share)
    by_priority = sampler.prioritization.probabilities(np.arange(N))
    expected = share * (by_priority > 0) / (N - N_REMOVED) + (1 - share) * by_priority

    slots = np.concatenate([sampler.sample(1, beta=0.0).slots for _ in range(20_000)])

    counts = np.bincount(slots, minlength=N)
    np.testing.assert_allclose(sampler.probabilities(np.arange(N)), expected)
    assert chi_square_p_value(counts, expected) > SIGNIFICANCE
    assert chi_square_p_value(counts, by_priority) < SIGNIFICANCE
    assert counts[[0, 7, 14]].sum() == 0


@MIXTURES
def test_weights_never_exceed_one_over_the_uniform_share(prioritization, stratified, share):
    options = {"alpha": 1.0, "stratified": stratified, "weight_normalization": "none"}
    sampler = make(prioritization, uniform_share=share, **options)
    by_priority = sampler.prioritization.probabilities(np.arange(N))

    largest = max(sampler.sample(8, beta=1.0).weights.max() for _ in range(500))

    assert largest <= (1 + 1e-6) / share
    # Without the share, some weights are larger.
    assert 1 / (37 * by_priority[by_priority > 0].min()) > 1 / share


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("normalization", ["batch", "buffer", "mean", "none"])
@pytest.mark.parametrize("batch_size", [1, 8])  # of 1: either part of the mixture may be empty
def test_weights_of_a_mixture_follow_the_formula(normalization, share, batch_size):
    sampler = make(uniform_share=share, weight_normalization=normalization)
    probabilities = sampler.probabilities(np.arange(N))

    for _ in range(20):
        slots, weights = sampler.sample(batch_size, beta=0.7)
        expected = (37 * probabilities[slots]) ** -0.7
        expected /= {
            "batch": expected.max(),
            "buffer": (37 * probabilities[probabilities > 0].min()) ** -0.7,
            "mean": expected.mean(),
            "none": 1.0,
        }[normalization]
        np.testing.assert_allclose(weights[:, 0], expected, rtol=1e-5)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, N - 1), st.integers(1, 12), st.integers(1, 3)),
        max_size=12,
    ),
    st.booleans(),
)
def test_uniform_slots_are_sampled_exactly_uniformly_whatever_is_missing(changes, stratified):
    """Rows (step 1) and episodes of one of several environments (larger steps), round the ring."""
    uniform, expected = UniformSlots(N), set()
    for is_insertion, first, n, step in changes:
        slots = (first + step * np.arange(n)) % N  # distinct, since step * n < N
        (uniform.insert if is_insertion else uniform.remove)(slots)
        expected = expected | set(slots.tolist()) if is_insertion else expected - {*slots.tolist()}
    if not expected:
        return
    # The middles of as many strata as slots, and the ends of the unit interval.
    n = len(expected)
    middles = np.full(n, 0.5) if stratified else (np.arange(n) + 0.5) / n
    assert uniform.sample(middles, stratified).tolist() == sorted(expected)
    for edge, slot in ((0.0, min(expected)), (np.nextafter(1, 0), max(expected))):
        assert uniform.sample(np.array([edge]), stratified).tolist() == [slot]


def test_a_cleared_mixture_starts_again():
    sampler = make(uniform_share=0.5)

    sampler.clear()
    sampler.insert(np.arange(2))

    assert sampler.n_sampleable == 2
    assert set(sampler.sample(100, beta=0.0).slots) == {0, 1}
