"""The order of slots by priority, against a sorted list."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import NaiveOrder

from sb3_per.prioritization import rank_tree
from sb3_per.prioritization.rank_tree import Ranking


def check_valid(order):
    """Every invariant of the tree, from the root down and from the slots up."""
    tree = order._tree
    n_inner = len(tree.counts)
    seen = []

    def entries_below(node, low, high):
        size = tree.sizes[node]
        assert size <= rank_tree.WIDTH
        if node >= n_inner:
            keys = tree.keys[node, :size]
            assert (np.diff(keys) >= 0).all()
            assert all(low <= key <= high for key in keys)
            assert (tree.leaf_of[tree.items[node, :size]] == node).all()
            seen.extend(tree.items[node, :size].tolist())
            return size
        bounds = [low, *tree.keys[node, 1:size], high]
        for index in range(size):
            child = tree.items[node, index]
            assert (tree.parents[child], tree.indices[child]) == (node, index)
            below = entries_below(child, bounds[index], bounds[index + 1])
            assert below == tree.counts[node, index]
        return sum(tree.counts[node, :size])

    assert entries_below(tree.state[rank_tree.ROOT], -np.inf, np.inf) == len(order)
    assert tree.parents[tree.state[rank_tree.ROOT]] == -1
    assert sorted(seen) == np.flatnonzero(tree.leaf_of > 0).tolist()


def assert_same_order(order, naive):
    assert len(order) == len(naive.slots)
    assert order.at(np.arange(len(order))).tolist() == naive.slots
    ranks = [naive.slots.index(slot) if slot in naive.slots else -1 for slot in naive.all_slots]
    assert order.ranks(np.array(naive.all_slots)).tolist() == ranks


@st.composite
def operations(draw):
    n_slots = draw(st.sampled_from([1, 5, 60, 400]))
    slots = st.lists(st.integers(0, n_slots - 1), max_size=80)
    priorities = st.one_of(st.sampled_from([0.5, 1.0, 2.0]), st.floats(1e-9, 1e9))
    place = st.lists(st.tuples(st.integers(0, n_slots - 1), priorities), max_size=80)
    one = st.one_of(st.tuples(st.just("place"), place), st.tuples(st.just("remove"), slots))
    return n_slots, draw(st.lists(one, max_size=12))


@given(operations())
def test_slots_are_in_the_order_of_a_sorted_list(given_operations):
    n_slots, steps = given_operations
    order, naive = Ranking(n_slots), NaiveOrder(n_slots)

    for name, argument in steps:
        if name == "remove":
            order.remove(np.array(argument, dtype=np.int64))
            naive.remove(argument)
            continue
        slots = [slot for slot, _ in argument]
        priorities = [priority for _, priority in argument]
        order.place(np.array(slots, dtype=np.int64), np.array(priorities, dtype=np.float64))
        naive.place(slots, priorities)

    assert_same_order(order, naive)
    if naive.slots:
        assert order.largest_priority == naive.priorities[naive.slots[0]]
    check_valid(order)
    order.clear()
    assert_same_order(order, NaiveOrder(n_slots))


PRIORITIES = {
    "random": lambda random, n: random.exponential(size=n),
    "ties": lambda random, n: random.integers(3, size=n).astype(np.float64),
    "rising": lambda random, n: np.sort(random.random(n)),
    "falling": lambda random, n: np.sort(random.random(n))[::-1].copy(),
    "alike": lambda random, n: np.ones(n),
    "shrinking": lambda random, n: random.random(n) * 2.0 ** -random.integers(60),
}


@pytest.mark.parametrize("kind", PRIORITIES)
def test_order_and_invariants_hold_through_splits_and_rebuilds(kind):
    """Twelve thousand places among 3000 slots: two levels of inner nodes."""
    random = np.random.default_rng(0)
    order, naive = Ranking(3000), NaiveOrder(3000)

    for _ in range(120):
        slots = random.integers(3000, size=100)
        priorities = PRIORITIES[kind](random, 100)
        order.place(slots, priorities)
        naive.place(slots.tolist(), priorities.tolist())
        gone = random.integers(3000, size=10)
        order.remove(gone)
        naive.remove(gone.tolist())

    assert_same_order(order, naive)
    check_valid(order)


def test_the_tree_is_rebuilt_before_its_leaves_run_out():
    """Slots that always move between two places leave emptied leaves behind."""
    random = np.random.default_rng(0)
    order = Ranking(2000)
    n_leaves = []

    for level in range(300):
        slots = random.permutation(2000)[:500]
        order.place(slots, level + random.random(500))
        n_leaves.append(int(order._tree.state[rank_tree.N_LEAVES]))

    assert (np.diff(n_leaves) < 0).any(), "never rebuilt: the test would show nothing"
    check_valid(order)
    ranks = order.ranks(slots)
    assert sorted(ranks) == list(range(500))


def test_insertions_at_the_front_fill_leaves():
    order = Ranking(48_000)

    order.place(np.arange(48_000), np.ones(48_000))

    assert order._tree.state[rank_tree.N_LEAVES] < 1.1 * 48_000 / rank_tree.WIDTH


def test_a_pickled_order_continues_on_its_cache_lines():
    random = np.random.default_rng(0)
    order = Ranking(500)
    order.place(np.arange(500), random.random(500))

    restored = pickle.loads(pickle.dumps(order))
    for one in (order, restored):
        one.place(np.arange(100), np.linspace(0, 1, 100))

    all_slots = np.arange(500)
    assert (restored.at(all_slots) == order.at(all_slots)).all()
    assert restored._tree.keys.ctypes.data % 64 == 0
    check_valid(restored)


@pytest.mark.parametrize("n_slots", [1000, 3000])
def test_at_least_n_slots_over_25_insertions_come_before_a_rebuild(n_slots):
    """The worst case that is known: leaves filled from the front, then the fullest one is split."""
    ranking, in_use = Ranking(n_slots), rank_tree.N_LEAVES
    for slot in range(n_slots):
        ranking.place(np.array([slot]), np.array([float(slot)]))
    tree = ranking._tree
    first = len(tree.counts)

    n_moves, n_leaves = 0, tree.state[in_use]
    while tree.state[in_use] >= n_leaves:
        n_leaves = tree.state[in_use]
        sizes = tree.sizes[first : first + n_leaves]
        fullest = first + int(np.argmax(sizes))
        smallest = first + int(np.argmin(np.where(sizes > 0, sizes, rank_tree.WIDTH + 1)))
        middle = tree.sizes[fullest] // 2
        key = tree.keys[fullest, middle - 1 : middle + 1].mean()
        ranking.place(tree.items[smallest, :1].astype(np.int64), np.array([-key]))
        n_moves += 1

    assert n_slots / 25 <= n_moves < n_slots
