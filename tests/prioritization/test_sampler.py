"""The sampler alone: the mixture with uniform sampling, its weights, and what can be proved."""

import itertools

import numpy as np
import pytest
from frequencies import SIGNIFICANCE, chi_square_p_value
from sb3_per.prioritization.pending_updates import states_of_0_1_0

from sb3_per.prioritization.sampler import PrioritizedSampler

N = 40
NAMED = ("proportional", "rank", "lap")
# The last one cannot be reached with whole samples: 0.3 * 8 = 2.4.
SHARES = (0.25, 0.5, 1.0, 0.3)
MIXTURES = pytest.mark.parametrize(
    ("prioritization", "stratified", "share"),
    list(itertools.product(NAMED, [True, False], SHARES)),
)


def make(prioritization="proportional", *, n_removed=3, seed=0, **options):
    """Skewed priorities, and a few slots that are stored but cannot be sampled."""
    generator = np.random.default_rng(seed)
    sampler = PrioritizedSampler(N, generator=generator, prioritization=prioritization, **options)
    sampler.insert(np.arange(N))
    sampler.update(np.arange(N), np.exp(3 * np.random.default_rng(1).standard_normal(N)))
    sampler.remove(np.arange(n_removed) * 7)
    return sampler


def inserted(sampler):
    return np.flatnonzero(sampler.prioritization.probabilities(np.arange(N)) > 0)


def estimates(sampler, values, *, probabilities=None, n_batches=6000):
    """The mean of weight * value over each of many batches of 8, with beta 1."""
    found = np.empty(n_batches)
    for i in range(n_batches):
        slots, weights = sampler.sample(8, beta=1.0)
        weights = weights[:, 0] if probabilities is None else 1 / (37 * probabilities[slots])
        found[i] = np.mean(weights * values[slots])
    return found


def distance_in_errors(found, expected):
    return abs(found.mean() - expected) / (found.std() / np.sqrt(len(found)))


@pytest.mark.slow
@MIXTURES
def test_with_a_uniform_share_the_expected_update_is_uniform_replays(
    prioritization, stratified, share
):
    # The gradients have nothing to do with the priorities, as if those were out of date.
    gradients = np.random.default_rng(2).standard_normal(N) + 0.3
    options = {"stratified": stratified, "uniform_share": share, "weight_normalization": "none"}
    sampler = make(prioritization, **options)

    found = estimates(sampler, gradients)

    assert distance_in_errors(found, gradients[inserted(sampler)].mean()) < 4.5


def test_the_same_test_rejects_weights_without_the_uniform_share():
    gradients = np.random.default_rng(2).standard_normal(N) + 0.3
    sampler = make(uniform_share=0.5, weight_normalization="none")
    wrong = sampler.prioritization.probabilities(np.arange(N))

    found = estimates(sampler, gradients, probabilities=wrong, n_batches=5000)

    assert distance_in_errors(found, gradients[inserted(sampler)].mean()) > 4.5


@MIXTURES
def test_weights_never_exceed_one_over_the_uniform_share(prioritization, stratified, share):
    options = {"stratified": stratified, "uniform_share": share, "weight_normalization": "none"}
    sampler = make(prioritization, **options)

    largest = max(sampler.sample(8, beta=1.0).weights.max() for _ in range(500))

    assert largest <= (1 + 1e-6) / share
    # Without the share some weights are larger: the bound is the share's doing.
    without = make(prioritization, alpha=1.0, weight_normalization="none")
    assert 1 / (37 * without.probabilities(inserted(without)).min()) > 1 / share


@MIXTURES
def test_the_second_moment_of_the_update_is_at_most_that_of_uniform_replay_over_the_share(
    prioritization, stratified, share
):
    options = {"stratified": stratified, "uniform_share": share, "weight_normalization": "none"}
    sampler = make(prioritization, alpha=1.0, **options)
    slots = inserted(sampler)
    probabilities = sampler.probabilities(slots)
    sampled = sampler.sample(3000, beta=1.0)
    weight_of = dict(zip(sampled.slots.tolist(), sampled.weights[:, 0].tolist(), strict=True))
    weights = np.array([weight_of[slot] for slot in slots.tolist()])

    for seed in range(50):
        gradients = np.random.default_rng(seed).standard_cauchy(len(slots))
        second_moment = np.sum(probabilities * (weights * gradients) ** 2)
        assert second_moment <= (1 + 1e-6) * np.mean(gradients**2) / share
    assert probabilities.sum() == pytest.approx(1)


@MIXTURES
def test_slots_are_sampled_as_often_as_the_mixture_says(prioritization, stratified, share):
    sampler = make(prioritization, stratified=stratified, uniform_share=share)

    slots = np.concatenate([sampler.sample(1, beta=0.0).slots for _ in range(20_000)])

    counts = np.bincount(slots, minlength=N)
    probabilities = sampler.probabilities(np.arange(N))
    assert chi_square_p_value(counts, probabilities) > SIGNIFICANCE
    assert counts[[0, 7, 14]].sum() == 0


@pytest.mark.parametrize("normalization", ["batch", "buffer", "mean", "none"])
def test_weights_of_a_mixture_follow_the_formula(normalization):
    sampler = make(uniform_share=0.25, weight_normalization=normalization)
    probabilities = sampler.probabilities(np.arange(N))

    slots, weights = sampler.sample(8, beta=0.7)

    expected = (37 * probabilities[slots]) ** -0.7
    expected /= {
        "batch": expected.max(),
        "buffer": (37 * probabilities[inserted(sampler)].min()) ** -0.7,
        "mean": expected.mean(),
        "none": 1.0,
    }[normalization]
    np.testing.assert_allclose(weights[:, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_largest_weight_of_the_buffer_does_not_depend_on_which_part_was_sampled(share):
    sampler = make(uniform_share=share, weight_normalization="buffer")
    probabilities = sampler.probabilities(np.arange(N))

    for _ in range(50):  # batches of one: either part may be empty
        slots, weights = sampler.sample(1, beta=1.0)
        expected = probabilities[inserted(sampler)].min() / probabilities[slots]
        np.testing.assert_allclose(weights[:, 0], expected, rtol=1e-5)


def test_a_share_of_0_samples_as_without_the_option():
    left, right = make(), make(uniform_share=0.0)

    assert left.sample(8, beta=0.5).slots.tolist() == right.sample(8, beta=0.5).slots.tolist()


def test_a_cleared_mixture_starts_again():
    sampler = make(uniform_share=0.5)

    sampler.clear()
    sampler.insert(np.arange(2))

    assert sampler.n_sampleable == 2
    assert set(sampler.sample(100, beta=0.0).slots) == {0, 1}


def test_a_restored_mixture_samples_the_same():
    sampler, restored = make(uniform_share=0.5), make(uniform_share=0.5, seed=5, n_removed=0)
    restored.clear()
    restored.generator.bit_generator.state = sampler.generator.bit_generator.state
    restored.pending_states[:] = sampler.pending_states

    restored.restore(sampler.prioritization.state())

    for _ in range(20):
        ours, theirs = sampler.sample(8, beta=0.5), restored.sample(8, beta=0.5)
        assert ours.slots.tolist() == theirs.slots.tolist()
        assert ours.weights.tolist() == theirs.weights.tolist()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"uniform_share": 1.5}, r"uniform_share must lie in \[0, 1\], got 1.5"),
        ({"uniform_share": "half"}, r"uniform_share must lie in \[0, 1\], got 'half'"),
        ({"uniform_share": 0.1, "replacement": False}, "must be 0 with replacement=False.* 0.1"),
        ({"weight_normalization": "max"}, "must be one of .*'mean'.* got 'max'"),
        ({"prioritization_kwargs": [1]}, r"must be a dict or None, got \[1\]"),
        ({"prioritization": "lap", "prioritization_kwargs": {"threshold": 0}}, "threshold must"),
        ({"prioritization": "lap", "eps": 0.1}, "eps must stay at .* got 0.1"),
        ({"prioritization": "lap", "initial_priority": -5}, "initial_priority must .* got -5"),
        ({"prioritization": "lap", "initial_priority": "a"}, "initial_priority must .* got 'a'"),
        (
            {"prioritization": "lap", "td_error_clip": 1.0},
            "must be above .*threshold 1.0.* got 1.0",
        ),
        ({"prioritization": "lap", "td_error_clip": "a"}, "td_error_clip must .* got 'a'"),
        ({"prioritization_kwargs": {"threshold": 1}}, "kwargs has no option 'threshold'"),
        (
            {"prioritization": "lap", "prioritization_kwargs": {"treshold": 1}},
            "did you mean 'threshold'",
        ),
        ({"alpha": 0.5, "prioritization_kwargs": {"alpha": 1}}, "'alpha': .* shared"),
    ],
)
def test_options_out_of_range_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        PrioritizedSampler(N, generator=np.random.default_rng(0), **options)


@pytest.mark.parametrize("threshold", [0.5, 1.0])
def test_lap_has_the_paper_s_probabilities(threshold):
    td_errors = np.array([-0.1, 0.7, 1.0, -8.0, 0.0])
    sampler = PrioritizedSampler(
        5,
        generator=np.random.default_rng(0),
        prioritization="lap",
        prioritization_kwargs={"threshold": threshold},
        alpha=0.4,
    )
    sampler.insert(np.arange(5))

    sampler.update(np.arange(5), td_errors)

    powers = np.maximum(np.abs(td_errors), threshold) ** 0.4
    np.testing.assert_allclose(sampler.probabilities(np.arange(5)), powers / powers.sum())
    assert sampler.prioritization.largest_priority == 8.0


def test_states_of_0_1_0_say_after_a_restart_which_slots_are_empty():
    stored = make(n_removed=5).prioritization.state()
    sampler = PrioritizedSampler(N, generator=np.random.default_rng(0))
    sampler.pending_states[:] = states_of_0_1_0(np.zeros(N, dtype=np.int8))  # none is said empty

    sampler.restore(stored)
    sampler.insert(np.array([0]))  # one of the five that were removed
    sampler.insert(np.array([1]))  # one that was not

    assert sampler.n_sampleable == N - 4 == len(inserted(sampler))
