import itertools

import numpy as np
import pytest
from frequencies import SIGNIFICANCE, chi_square_p_value
from hypothesis import given
from hypothesis import strategies as st
from sb3_per.prioritization.sampling import SamplingScheme

from sb3_per.prioritization.sum_tree import SumTree

ALL_SCHEMES = [SamplingScheme(*flags) for flags in itertools.product([True, False], repeat=2)]
DISTINCT = [scheme for scheme in ALL_SCHEMES if not scheme.replacement]


def tree_of(weights):
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.asarray(weights, dtype=np.float64))
    return tree


def draw(scheme, tree, batch_size, random):
    uniforms = random.random(scheme.n_uniforms(batch_size))
    return scheme.sample(tree, batch_size, uniforms, with_smallest=True)


def spread_weights(n_leaves):
    """Weights from 1e-6 to 1e6, every tenth leaf 0 (but never the only one)."""
    random = np.random.default_rng(n_leaves)
    weights = 10.0 ** random.uniform(-6, 6, n_leaves)
    weights[9::10] = 0.0
    return weights


@pytest.mark.parametrize("n_leaves", [1, 2, 7, 1000, 2**17])
def test_independent_draws_follow_the_weights(n_leaves):
    weights = spread_weights(n_leaves)
    n_draws = 400_000

    drawn = draw(
        SamplingScheme(stratified=False), tree_of(weights), n_draws, np.random.default_rng(1)
    )

    counts = np.bincount(drawn.slots, minlength=n_leaves)
    assert counts[weights == 0].sum() == 0
    assert chi_square_p_value(counts, weights / weights.sum()) > SIGNIFICANCE


@pytest.mark.parametrize("n_leaves", [2, 7, 1000, 2**17])
def test_the_same_test_rejects_a_sampler_that_takes_the_neighbour_one_time_in_twenty(n_leaves):
    weights = spread_weights(n_leaves)
    random = np.random.default_rng(1)
    drawn = draw(SamplingScheme(stratified=False), tree_of(weights), 400_000, random).slots

    wrong = np.where(random.random(len(drawn)) < 0.05, (drawn + 1) % n_leaves, drawn)

    counts = np.bincount(wrong, minlength=n_leaves)
    assert chi_square_p_value(counts, weights / weights.sum()) < SIGNIFICANCE


@pytest.mark.parametrize("n_leaves", [1, 2, 7, 1000, 2**17])
@pytest.mark.parametrize("batch_size", [1, 33, 48, 100, 4096])
def test_strata_draw_each_leaf_as_often_as_its_mass_demands(n_leaves, batch_size):
    weights = spread_weights(n_leaves)
    demanded = batch_size * weights / weights.sum()

    drawn = draw(SamplingScheme(), tree_of(weights), batch_size, np.random.default_rng(1))

    counts = np.bincount(drawn.slots, minlength=n_leaves)
    # A leaf fills all strata but the two at its ends, or none and touches one or two.
    assert (np.abs(counts - demanded) < 2 + 1e-9).all()
    assert (np.diff(drawn.slots) >= 0).all()


@pytest.mark.parametrize("scheme", ALL_SCHEMES)
def test_a_leaf_is_in_a_batch_as_often_as_its_returned_probability_says(scheme):
    weights = np.array([0.0, 1.0, 2.0, 0.5, 8.0, 0.0, 1e-3, 4.0, 1.0])
    tree, random, batch_size, n_batches = tree_of(weights), np.random.default_rng(0), 4, 40_000
    counts, unbiased = np.zeros(9), np.zeros((n_batches, 9))

    for batch in range(n_batches):
        drawn = draw(scheme, tree, batch_size, random)
        np.add.at(counts, drawn.slots, 1)
        np.add.at(unbiased[batch], drawn.slots, 1 / (batch_size * drawn.probabilities))

    # 1 / (expected count) summed over the draws of a leaf is 1 on average: so weights are unbiased.
    mean, error = unbiased.mean(axis=0), unbiased.std(axis=0) / np.sqrt(n_batches)
    often = counts > 1000
    assert (counts[weights == 0] == 0).all()
    assert (np.abs(mean - 1)[often] <= 5 * error[often] + 1e-12).all()


@pytest.mark.parametrize("scheme", DISTINCT)
def test_probabilities_of_draws_with_replacement_would_be_rejected_there(scheme):
    weights = np.array([1.0, 2.0, 0.5, 8.0, 4.0, 1.0])
    tree, random, n_batches = tree_of(weights), np.random.default_rng(0), 20_000
    unbiased = np.zeros((n_batches, 6))

    for batch in range(n_batches):
        slots = draw(scheme, tree, 4, random).slots
        unbiased[batch, slots] = 1 / (4 * weights[slots] / weights.sum())

    error = unbiased.std(axis=0) / np.sqrt(n_batches)
    assert (np.abs(unbiased.mean(axis=0) - 1) > 5 * error + 1e-12).any()


def test_draws_one_by_one_have_the_distribution_of_numpys_choice_without_replacement():
    weights = np.array([1.0, 2.0, 0.5, 8.0])
    tree, random, n_batches = tree_of(weights), np.random.default_rng(0), 40_000
    chances = {}
    for first, second in itertools.permutations(range(4), 2):
        rest = weights.sum() - weights[first]
        chances[first, second] = weights[first] / weights.sum() * weights[second] / rest
    pairs = list(chances)

    counts = np.zeros(len(pairs))
    for _ in range(n_batches):
        slots = draw(SamplingScheme(stratified=False, replacement=False), tree, 2, random).slots
        counts[pairs.index(tuple(slots.tolist()))] += 1

    assert chi_square_p_value(counts, np.array(list(chances.values()))) > SIGNIFICANCE


@given(
    st.sampled_from(DISTINCT),
    st.lists(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 1.0, 7.0, 1e6]), min_size=1, max_size=200),
    st.data(),
)
def test_without_replacement_leaves_are_distinct_and_the_tree_is_left_as_it_was(
    scheme, weights, data
):
    weights[0] = weights[0] or 1.0
    tree = tree_of(weights)
    before = tree.nodes.copy()
    batch_size = data.draw(st.integers(1, int(np.count_nonzero(weights))))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    drawn = draw(scheme, tree, batch_size, random)

    assert len(set(drawn.slots.tolist())) == batch_size
    assert (np.array(weights)[drawn.slots] > 0).all()
    assert (drawn.probabilities > 0).all()
    assert (drawn.probabilities <= 1 / batch_size).all()
    assert (tree.nodes == before).all()


@pytest.mark.parametrize("scheme", DISTINCT)
def test_a_batch_of_all_leaves_holds_each_for_certain(scheme):
    tree = tree_of([1e-6, 1.0, 3.0, 1e6])

    drawn = draw(scheme, tree, 4, np.random.default_rng(0))

    assert sorted(drawn.slots) == [0, 1, 2, 3]
    assert drawn.probabilities.tolist() == [1 / 4] * 4


def test_systematic_probabilities_are_worked_out_by_hand():
    # 10 of 16 fills a stratum of 16 / 3 and is certain; the others share two draws from 6.
    tree = tree_of([10.0, 3.0, 1.0, 2.0])

    drawn = draw(SamplingScheme(replacement=False), tree, 3, np.random.default_rng(0))

    by_slot = dict(zip(drawn.slots.tolist(), drawn.probabilities.tolist(), strict=True))
    # 3 of 6 fills a stratum of 3: certain as well; then one draw from 1 and 2.
    expected = {0: 1 / 3, 1: 1 / 3, 2: 1 / 9, 3: 2 / 9}
    assert by_slot == {slot: pytest.approx(expected[slot]) for slot in by_slot}
    assert {0, 1} < set(by_slot)
    assert drawn.smallest_probability == pytest.approx(1 / 9)


@pytest.mark.parametrize("scheme", ALL_SCHEMES)
def test_the_smallest_probability_is_that_of_the_lightest_leaf(scheme):
    weights = np.array([4.0, 0.0, 2.0, 8.0, 6.0])
    tree, random = tree_of(weights), np.random.default_rng(0)

    drawn = next(
        drawn for drawn in (draw(scheme, tree, 2, random) for _ in range(1000)) if 2 in drawn.slots
    )

    lightest = drawn.probabilities[drawn.slots.tolist().index(2)]
    assert drawn.smallest_probability == pytest.approx(lightest)


@pytest.mark.parametrize("scheme", ALL_SCHEMES)
def test_every_leaf_of_small_and_nearly_full_trees_is_reached(scheme):
    for n_leaves in (1, 2, 8, 9, 63):
        weights = np.ones(n_leaves + 1)
        weights[-1] = 0.0
        tree, random = tree_of(weights), np.random.default_rng(0)

        seen = {slot for _ in range(1000) for slot in draw(scheme, tree, 1, random).slots.tolist()}

        assert seen == set(range(n_leaves))
