"""Uniform sampling of inserted slots: without a tree while they are the first ones, and with it."""

import numpy as np
import pytest
from sb3_per.prioritization.sampling import SamplingScheme
from sb3_per.prioritization.uniform import InsertedSlots, mix

from sb3_per.prioritization.sum_tree import SumTree

N = 100


def filled(n=N):
    slots = InsertedSlots(N)
    slots.insert(np.arange(n))
    return slots


def with_a_tree(n=N):
    tree = SumTree(N)
    tree.set(np.arange(n), np.ones(n))
    return tree


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("n", [1, 3, 37, N])
def test_the_first_slots_are_sampled_as_by_a_tree_of_ones(n, stratified):
    scheme, slots, tree = SamplingScheme(stratified), filled(n), with_a_tree(n)
    uniforms = np.random.default_rng(0).random((200, 7))
    uniforms[0], uniforms[1] = 0, np.nextafter(1, 0)

    for row in uniforms:
        np.testing.assert_array_equal(
            slots.sample(scheme, 7, row), scheme.sample(tree, 7, row).slots
        )


@pytest.mark.parametrize(
    "change",
    [
        lambda slots: slots.remove(np.array([0])),
        lambda slots: slots.insert(np.array([50])),
        lambda slots: slots.insert(np.array([40, 42])),
        lambda slots: slots.insert(np.array([39, 41])),
    ],
)
def test_slots_that_are_not_the_first_ones_are_sampled_from_a_tree(change):
    slots = filled(40)

    change(slots)
    inserted = np.flatnonzero(slots.are_inserted(np.arange(N)))
    sampled = slots.sample(SamplingScheme(), 10_000, np.random.default_rng(0).random(10_000))

    np.testing.assert_array_equal(np.unique(sampled), inserted)
    assert len(inserted) != inserted.max() + 1


def test_slots_may_be_inserted_in_any_order_and_again():
    slots = InsertedSlots(N)

    slots.insert(np.array([1, 0]))
    slots.insert(np.array([2, 1]))
    slots.insert(np.array([0]))
    slots.insert(np.array([], dtype=np.int64))

    np.testing.assert_array_equal(slots.are_inserted(np.arange(4)), [1, 1, 1, 0])
    assert set(slots.sample(SamplingScheme(), 300, np.full(300, 0.5))) == {0, 1, 2}
    assert slots._tree is None  # it would be slower


def test_a_cleared_set_begins_without_a_tree():
    slots = filled()
    slots.remove(np.array([3]))

    slots.clear()
    slots.insert(np.arange(5))

    np.testing.assert_array_equal(slots.are_inserted(np.arange(7)), [1, 1, 1, 1, 1, 0, 0])


def test_a_mixture_has_each_slots_probability_under_both():
    parts, by_priority = (np.array([4, 5]), np.array([6])), (np.array([0.5, 0.2]), np.array([0.1]))
    probabilities = np.empty(3)

    slots = mix(parts, by_priority, 0.25, 10, probabilities)

    np.testing.assert_array_equal(slots, [4, 5, 6])
    np.testing.assert_allclose(probabilities, [0.4, 0.175, 0.1])
