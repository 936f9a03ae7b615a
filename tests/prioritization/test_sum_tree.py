import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import NaiveTree

from sb3_per.prioritization.sum_tree import SumTree

# Whole numbers add up without rounding, so that twin and tree have to agree to the last bit.
whole_weights = st.integers(0, 1000).map(float)


def tree_of(weights, **kwargs):
    tree = SumTree(len(weights), **kwargs)
    tree.set(np.arange(len(weights)), np.asarray(weights, dtype=np.float64))
    return tree


@st.composite
def written_twins(draw):
    """A tree and its naive twin after the same random writes, some leaves never written."""
    n_leaves = draw(st.integers(1, 600))
    tree, naive = SumTree(n_leaves), NaiveTree(n_leaves)
    leaf = st.integers(0, n_leaves - 1)
    for writes in draw(st.lists(st.lists(st.tuples(leaf, whole_weights), max_size=40), max_size=8)):
        leaves, weights = [leaf for leaf, _ in writes], [weight for _, weight in writes]
        tree.set(np.array(leaves, dtype=np.int64), np.array(weights, dtype=np.float64))
        naive.set(leaves, weights)
    return tree, naive


@given(written_twins())
def test_total_and_extremes_are_those_of_the_leaves(twins):
    tree, naive = twins

    assert tree.leaf_weights.tolist() == naive.weights
    assert tree.total == sum(naive.weights)
    assert tree.smallest() == min(naive.positive, default=np.inf)
    assert tree.largest() == max(naive.weights)


@given(written_twins(), st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_a_mass_finds_the_leaf_at_which_the_running_sum_exceeds_it(twins, shares):
    tree, naive = twins
    if tree.total == 0:
        tree.set(np.array([0]), np.array([1.0]))
        naive.set([0], [1.0])
    masses = np.array(shares) * tree.total

    found = tree.find(masses)

    assert found.tolist() == [naive.find(mass) for mass in masses]
    inside = masses < tree.total
    running = np.cumsum(tree.leaf_weights)
    assert (found[inside] == np.searchsorted(running, masses[inside], side="right")).all()


@pytest.mark.parametrize("n_leaves", [1, 2, 7, 8, 9, 63, 64, 65, 1000, 4097])
def test_a_leaf_of_weight_zero_is_never_found(n_leaves):
    random = np.random.default_rng(n_leaves)
    weights = 10.0 ** random.uniform(-6, 6, n_leaves)
    weights[random.random(n_leaves) < 0.7] = 0.0
    weights[random.integers(n_leaves)] = 1e-6
    tree = tree_of(weights)
    edges = [0.0, np.nextafter(tree.total, 0), tree.total, np.nextafter(tree.total, np.inf), np.inf]
    boundaries = np.cumsum(weights)
    masses = np.concatenate([edges, boundaries, np.nextafter(boundaries, 0)])

    found = tree.find(np.concatenate([masses, random.random(1_000_000 // 10) * tree.total]))

    assert (weights[found] > 0).all()


def test_masses_of_zero_and_of_the_total_find_the_first_and_the_last_leaf_with_weight():
    tree = tree_of([0, 0, 3, 0, 1, 0, 0, 0, 0, 2, 0])

    assert tree.find(np.array([0.0, 6.0, np.nextafter(6.0, 7.0)])).tolist() == [2, 9, 9]


@pytest.mark.parametrize("batch_size", [33, 48, 100])
def test_a_last_stratum_pushed_beyond_the_total_by_rounding_finds_the_last_leaf(batch_size):
    random = np.random.default_rng(0)
    totals = random.random(2000)
    beyond = [total for total in totals if (total / batch_size) * batch_size > total]

    assert beyond, "no total is rounded up: the test would show nothing"
    for total in beyond:
        tree = tree_of([0.0, total, 0.0])
        assert tree.find(np.array([(total / batch_size) * batch_size])) == [1]


def test_a_million_random_writes_leave_the_total_at_the_sum_of_the_leaves():
    random = np.random.default_rng(0)
    tree = SumTree(3000)

    for _ in range(1000):
        tree.set(random.integers(3000, size=1000), 10.0 ** random.uniform(-6, 6, 1000))

    assert tree.total == pytest.approx(math.fsum(tree.leaf_weights), rel=1e-14)


def test_zeroing_every_leaf_brings_the_total_back_to_exactly_zero():
    random = np.random.default_rng(0)
    tree = SumTree(3000)
    for _ in range(100):
        tree.set(random.integers(3000, size=1000), random.random(1000))

    tree.set(np.arange(3000), np.zeros(3000))

    assert not tree.nodes.any()


def test_of_a_leaf_named_twice_the_last_weight_counts():
    tree = tree_of(np.ones(100))

    tree.set(np.array([42, 7, 42]), np.array([5.0, 1.0, 9.0]))

    assert tree.leaf_weights[42] == 9
    assert tree.total == 108


@pytest.mark.parametrize(
    ("leaves", "weights", "complaint"),
    [
        ([3, 10], [1.0, 1.0], "got leaf 10"),
        ([3, -1], [1.0, 1.0], "got leaf -1"),
        ([3, 4], [1.0, -0.5], "weight -0.5"),
        ([3, 4], [1.0, np.nan], "weight nan"),
        ([3, 4], [1.0, np.inf], "weight inf"),
        ([3, 4], [1.0], "got 2 and 1"),
    ],
)
def test_a_bad_write_is_refused_and_changes_nothing(leaves, weights, complaint):
    tree = tree_of(np.ones(10))
    before = tree.nodes.copy()

    with pytest.raises(ValueError, match=complaint):
        tree.set(np.array(leaves), np.array(weights))

    assert (tree.nodes == before).all()


def test_a_tree_needs_a_leaf():
    with pytest.raises(ValueError, match="got 0"):
        SumTree(0)


def test_extremes_are_right_whether_they_are_tracked_from_the_start_or_later():
    early, late = SumTree(100), tree_of(np.arange(100))
    early.track()
    early.set(np.arange(100), np.arange(100.0))

    for tree in (early, late):
        assert (tree.smallest(), tree.largest()) == (1, 99)
        tree.set(np.array([99, 1]), np.array([5.0, 0.0]))
        assert (tree.smallest(), tree.largest()) == (2, 98)


def test_clearing_forgets_weights_and_extremes():
    tree = tree_of(np.arange(100))
    tree.track()

    tree.clear()

    assert (tree.total, tree.largest(), tree.smallest()) == (0, 0, np.inf)


def test_a_pickled_tree_finds_and_takes_weights_as_before():
    tree = tree_of(np.arange(1000))
    tree.track()

    restored = pickle.loads(pickle.dumps(tree))
    restored.set(np.array([1]), np.array([5000.0]))

    assert restored.total == tree.total + 4999
    assert restored.largest() == 5000
    assert (restored.find(np.array([0.0, 5000.0])) == [1, 2]).all()


def test_siblings_share_a_cache_line_also_after_pickling():
    tree = pickle.loads(pickle.dumps(SumTree(5000)))

    assert tree.nodes.ctypes.data % 64 == 0


def test_at_most_ten_bytes_a_leaf():
    tree = SumTree(1_000_000)

    assert tree.nodes.nbytes <= 10 * 1_000_000
