"""The sum tree against a list of weights, and samples from it without replacement."""

import itertools
import pickle

import numpy as np
import pytest
from frequencies import SIGNIFICANCE, chi_square_p_value
from hypothesis import given
from hypothesis import strategies as st
from naive import NaiveTree

from sb3_per.prioritization.sum_tree import SumTree, sample_distinct

# Whole numbers add up without rounding, so tree and model agree to the last bit.
whole_weights = st.integers(0, 1000).map(float)


def tree_of(weights):
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.asarray(weights, dtype=np.float64))
    return tree


def sample(tree, batch_size, random):
    return sample_distinct(tree, batch_size, random, with_smallest=True)


# The tree


@st.composite
def written_trees(draw):
    """A tree and its slow model after the same random writes, some leaves never written."""
    n_leaves = draw(st.integers(1, 600))
    tree, naive = SumTree(n_leaves), NaiveTree(n_leaves)
    leaf = st.integers(0, n_leaves - 1)
    for writes in draw(st.lists(st.lists(st.tuples(leaf, whole_weights), max_size=40), max_size=8)):
        leaves, weights = [leaf for leaf, _ in writes], [weight for _, weight in writes]
        tree.set(np.array(leaves, dtype=np.int64), np.array(weights, dtype=np.float64))
        naive.set(leaves, weights)
    return tree, naive


@given(written_trees())
def test_total_and_extremes_are_those_of_the_leaves(trees):
    tree, naive = trees

    assert tree.leaf_masses.tolist() == naive.weights
    assert tree.total == sum(naive.weights)
    assert tree.smallest() == min(naive.positive, default=np.inf)
    assert tree.largest() == max(naive.weights)


@given(written_trees(), st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_mass_finds_the_leaf_at_which_the_running_sum_exceeds_it(trees, shares):
    tree, naive = trees
    if tree.total == 0:
        tree.set(np.array([0]), np.array([1.0]))
        naive.set([0], [1.0])
    masses = np.array(shares) * tree.total

    assert tree.find(masses).tolist() == [naive.find(mass) for mass in masses]


@pytest.mark.parametrize("n_leaves", [1, 2, 7, 8, 9, 63, 64, 65, 1000, 4097])
def test_leaf_of_weight_zero_is_never_found(n_leaves):
    random = np.random.default_rng(n_leaves)
    weights = 10.0 ** random.uniform(-6, 6, n_leaves)
    weights[random.random(n_leaves) < 0.7] = 0.0
    weights[random.integers(n_leaves)] = 1e-6
    tree = tree_of(weights)
    edges = [0.0, np.nextafter(tree.total, 0), tree.total, np.nextafter(tree.total, np.inf), np.inf]
    boundaries = np.cumsum(weights)
    masses = [edges, boundaries, np.nextafter(boundaries, 0), random.random(100_000) * tree.total]

    found = tree.find(np.concatenate(masses))

    assert (weights[found] > 0).all()


def test_pickled_tree_stays_on_its_cache_lines():
    restored = pickle.loads(pickle.dumps(tree_of(np.arange(5000))))

    assert restored.nodes.ctypes.data % 64 == 0


# Sampling


def test_samples_one_by_one_are_distributed_as_numpys_choice():
    weights = np.array([1.0, 2.0, 0.5, 8.0])
    tree, random, n_batches = tree_of(weights), np.random.default_rng(0), 40_000
    probabilities = {}
    for first, second in itertools.permutations(range(4), 2):
        rest = weights.sum() - weights[first]
        probabilities[first, second] = weights[first] / weights.sum() * weights[second] / rest
    pairs = list(probabilities)

    counts = np.zeros(len(pairs))
    for _ in range(n_batches):
        leaves, *_ = sample(tree, 2, random)
        counts[pairs.index(tuple(leaves.tolist()))] += 1

    assert chi_square_p_value(counts, np.array(list(probabilities.values()))) > SIGNIFICANCE


@given(
    st.lists(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 1.0, 7.0, 1e6]), min_size=1, max_size=200),
    st.data(),
)
def test_leaves_are_distinct_without_replacement(weights, data):
    weights[0] = weights[0] or 1.0
    tree = tree_of(weights)
    before = tree.nodes.copy()
    n_positive = int(np.count_nonzero(weights))
    batch_size = data.draw(st.integers(1, n_positive))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    leaves, probabilities, _ = sample(tree, batch_size, random)

    assert len(set(leaves.tolist())) == batch_size
    assert (np.array(weights)[leaves] > 0).all()
    assert (probabilities > 0).all()
    assert (probabilities <= 1 / batch_size).all()
    if batch_size == n_positive:  # every leaf is certain
        assert probabilities.tolist() == [1 / batch_size] * batch_size
    assert (tree.nodes == before).all()


def test_smallest_probability_is_that_of_the_lightest_leaf():
    tree, random = tree_of([4.0, 0.0, 2.0, 8.0, 6.0]), np.random.default_rng(0)
    batches = (sample(tree, 2, random) for _ in range(1000))

    leaves, probabilities, smallest = next(batch for batch in batches if 2 in batch[0])

    assert smallest == pytest.approx(probabilities[leaves.tolist().index(2)])
