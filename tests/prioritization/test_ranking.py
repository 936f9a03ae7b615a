"""The order of slots by priority, against a sorted list."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import NaiveRanks

from sb3_per.prioritization.ranking import GROUP, N_BLOCKS, WIDTH, Ranking


def check_valid(order):
    """Every invariant of the blocks."""
    blocks, n = order._blocks, order._blocks.state[N_BLOCKS]
    counts, used = blocks.counts[:n], blocks.order[:n]
    assert sorted(used) == list(range(n))
    assert blocks.positions[used].tolist() == list(range(n))
    assert counts.sum() == len(order)
    assert (counts <= WIDTH).all()
    groups = [counts[start : start + GROUP].sum() for start in range(0, n, GROUP)]
    assert blocks.groups[: len(groups)].tolist() == groups
    bounds = [*blocks.firsts[:n], np.inf]
    for position, block in enumerate(used):
        keys = blocks.keys[block, : counts[position]]
        assert (np.diff(keys) >= 0).all()
        assert ((keys >= bounds[position]) & (keys <= bounds[position + 1])).all()
        assert (blocks.block_of[blocks.slots[block, : counts[position]]] == block + 1).all()
    assert np.count_nonzero(blocks.block_of) == len(order)


def assert_same_order(order, naive):
    slots = naive.by_rank()
    assert len(order) == len(slots)
    assert order.at(np.arange(len(order))).tolist() == slots
    ranks = [slots.index(slot) if slot in slots else -1 for slot in range(naive.n_slots)]
    assert order.ranks(np.arange(naive.n_slots)).tolist() == ranks


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
    order, naive = Ranking(n_slots), NaiveRanks(n_slots)

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
    if naive.priorities:
        assert order.largest_priority == max(naive.priorities.values())
    check_valid(order)
    order.clear()
    assert_same_order(order, NaiveRanks(n_slots))


def test_order_holds_when_all_priorities_change_at_once():
    random = np.random.default_rng(0)
    order, slots = Ranking(10_000), np.arange(10_000)

    for scale in (1.0, 0.1, 0.001, 10.0):  # until the list is laid out again, and beyond
        priorities = scale * random.random(10_000)
        order.place(slots, priorities)

        check_valid(order)
        assert order.at(slots).tolist() == np.argsort(-priorities).tolist()


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
    """
    Thirty thousand places among 15,000 slots: more than one group of blocks.

    The order drifts in implementations that sort from time to time.
    """
    random = np.random.default_rng(0)
    order, naive = Ranking(15_000), NaiveRanks(15_000)

    for _ in range(30):
        slots = random.integers(15_000, size=1000)
        priorities = PRIORITIES[kind](random, 1000)
        order.place(slots, priorities)
        naive.place(slots.tolist(), priorities.tolist())
        gone = random.integers(15_000, size=100)
        order.remove(gone)
        naive.remove(gone.tolist())

    assert order._blocks.state[N_BLOCKS] > GROUP
    check_valid(order)
    slots, priorities = order.entries()
    assert slots.tolist() == naive.by_rank()
    assert priorities.tolist() == [naive.priorities[slot] for slot in slots]
    assert order.ranks(slots).tolist() == list(range(len(slots)))
    assert order.at(np.arange(len(slots))).tolist() == slots.tolist()


def test_rank_that_has_just_gone_finds_the_last_slot():
    """Another thread may remove slots between sampling ranks and looking them up."""
    order = Ranking(9)
    order.place(np.arange(3), np.array([3.0, 2.0, 1.0]))

    assert order.at(np.array([2, 3, 1000])).tolist() == [2, 2, 2]
