"""Slots in the order of their priorities, found by rank."""

from functools import cache
from typing import Any

import numpy as np

from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.rank_tree import (
    N_CHANGES,
    N_ENTRIES,
    ROOT,
    WIDTH,
    Tree,
    child_for,
    empty_tree,
    entries,
    find_leaf,
    lay_out,
    sum_of_first,
)
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, on_cache_lines
from sb3_per.rules import require

# How many leaves are read ahead.
LEAVES_READ_AHEAD = 32


class Ranking:
    """
    Slots by descending priority: place, remove and look up by rank in O(log n_slots) amortised.

    Among equal priorities, the one placed last ranks first. Empty leaves stay in the tree. When all
    leaves are used up, the tree is rebuilt in O(n_slots). At least n_slots / 25 insertions come
    before that: insertions at the front leave leaves with 47 of 48 entries behind, and such leaves
    split at every second insertion.

    :param n_slots: Number of slots, fewer than 2^31.
    """

    def __init__(self, n_slots: int) -> None:
        require(n_slots < 2**31, "ranks need a buffer of fewer than 2^31 slots", n_slots)
        compile_kernels()
        self.n_slots = n_slots
        self._tree = empty_tree(n_slots)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        keys, items = on_cache_lines(self._tree.keys), on_cache_lines(self._tree.items)
        self._tree = self._tree._replace(keys=keys, items=items)

    def __len__(self) -> int:
        return int(self._tree.state[N_ENTRIES])

    @property
    def largest_priority(self) -> float:
        """Return the priority of rank 0, which must exist."""
        leaf, place = _find(self._tree, 0)
        return float(-self._tree.keys[leaf, place])

    def place(self, slots: IntArray, priorities: FloatArray) -> None:
        """
        Move slots to the places of their priorities.

        If a slot occurs twice, its last priority counts.

        :param slots: Slots in [0, n_slots), shape (B,).
        :param priorities: Priorities, not NaN, shape (B,).
        """
        _place(self._tree, slots, priorities)

    def remove(self, slots: IntArray) -> None:
        """Remove slots, shape (B,), from the order; slots that are not in it are ignored."""
        _remove(self._tree, slots)

    def at(self, ranks: IntArray) -> IntArray:
        """
        Return the slots at ranks.

        :param ranks: Ranks, shape (B,), from 0 for the largest priority to len(self) - 1.
        :return: Slots, shape (B,).
        """
        return _slots_at(self._tree, ranks)

    def ranks(self, slots: IntArray) -> IntArray:
        """
        Return the ranks of slots, shape (B,), from 0; -1 for a slot that is not in the order.

        :param slots: Slots, shape (B,).
        """
        return _ranks_of(self._tree, slots)

    def entries(self) -> tuple[IntArray, FloatArray]:
        """Return all slots in order, and their priorities, both of shape (len(self),)."""
        slots = np.empty(len(self), dtype=np.int32)
        keys = entries(self._tree, slots)
        return slots.astype(np.int64), -keys

    def restore(self, slots: IntArray, priorities: FloatArray) -> None:
        """
        Replace everything by slots and priorities that ``entries`` returned.

        :raises ValueError: before anything has changed, for slots or priorities that ``entries``
            cannot have returned.
        """
        # Checked here, since the kernel below checks no bounds.
        whole = slots.dtype == np.int64 and priorities.dtype == np.float64
        in_range = bool(((slots >= 0) & (slots < self.n_slots)).all())
        distinct = len(np.unique(slots)) == len(slots) == len(priorities) <= self.n_slots
        in_order = np.isfinite(priorities).all() and (np.diff(priorities) <= 0).all()
        if not (whole and in_range and distinct and in_order):
            raise ValueError(
                f"slots must be distinct whole numbers in [0, {self.n_slots}), by descending "
                f"priority, got {slots} with {priorities}"
            )
        self.clear()
        self._tree.state[N_ENTRIES] = len(slots)
        lay_out(self._tree, -priorities, slots.astype(np.int32))

    def clear(self) -> None:
        """Remove all slots."""
        self._tree = empty_tree(self.n_slots)


@kernel
def _place(tree: Tree, slots: IntArray, priorities: FloatArray) -> float:
    """Return a meaningless number, which keeps the compiler from dropping the reads."""
    touched = 0.0
    leaves = np.empty(LEAVES_READ_AHEAD, dtype=np.int64)
    for start in range(0, len(slots), LEAVES_READ_AHEAD):
        chunk = range(start, min(start + LEAVES_READ_AHEAD, len(slots)))
        # Leaves are read before they change, so that their cache misses overlap (half the time).
        for i in chunk:
            touched += _touch(tree, tree.leaf_of[slots[i]])
        _remove(tree, slots[chunk.start : chunk.stop])
        for i in chunk:
            leaves[i - start] = _leaf_for(tree, -priorities[i])
            touched += _touch(tree, leaves[i - start])
        n_changes = tree.state[N_CHANGES]
        for i in chunk:
            if tree.leaf_of[slots[i]] > 0:  # named twice in this chunk
                _take_out(tree, slots[i])
            leaf = leaves[i - start]
            # The leaf that was looked up stays right until a node is split.
            if tree.sizes[leaf] == WIDTH or tree.state[N_CHANGES] != n_changes:
                leaf = find_leaf(tree, -priorities[i])
            _put_in(tree, leaf, slots[i], -priorities[i])
    return float(touched)


@kernel
def _touch(tree: Tree, leaf: int) -> float:
    total = 0.0
    for i in range(0, WIDTH, 8):
        total += tree.keys[leaf, i]
    for i in range(0, WIDTH, 16):
        total += tree.items[leaf, i]
    return float(total + tree.sizes[leaf] + tree.parents[leaf] + tree.indices[leaf])


@kernel
def _remove(tree: Tree, slots: IntArray) -> None:
    for i in range(len(slots)):
        _take_out(tree, slots[i])


@kernel
def _slots_at(tree: Tree, ranks: IntArray) -> IntArray:
    slots, leaves = np.empty(len(ranks), dtype=np.int64), np.empty(len(ranks), dtype=np.int64)
    for i in range(len(ranks)):
        leaves[i], slots[i] = _find(tree, ranks[i])
    # In a loop of their own, the cache misses of all leaves overlap.
    for i in range(len(ranks)):
        slots[i] = tree.items[leaves[i], slots[i]]
    return slots


@kernel
def _ranks_of(tree: Tree, slots: IntArray) -> IntArray:
    ranks = np.full(len(slots), -1, dtype=np.int64)
    for i in range(len(slots)):
        node = tree.leaf_of[slots[i]]
        if node > 0:
            ranks[i] = 0
            while tree.items[node, ranks[i]] != slots[i]:
                ranks[i] += 1
            while tree.parents[node] >= 0:
                ranks[i] += sum_of_first(tree, tree.parents[node], tree.indices[node])
                node = tree.parents[node]
    return ranks


@kernel
def _find(tree: Tree, rank: int) -> tuple[int, int]:
    """Return the leaf that holds a rank, and the place in the leaf."""
    node = tree.state[ROOT]
    while node < len(tree.counts):
        for index in range(tree.sizes[node]):
            if rank < tree.counts[node, index]:
                node = tree.items[node, index]
                break
            rank -= tree.counts[node, index]
    return node, rank


@kernel
def _take_out(tree: Tree, slot: int) -> None:
    leaf = tree.leaf_of[slot]
    if leaf <= 0:
        return
    place = np.int32(0)
    last = tree.sizes[leaf] - 1
    for i in range(last + 1):
        place = max(place, np.int32(i) if tree.items[leaf, i] == slot else np.int32(0))
    for i in range(place, last):
        tree.keys[leaf, i] = tree.keys[leaf, i + 1]
        tree.items[leaf, i] = tree.items[leaf, i + 1]
    tree.sizes[leaf] = last
    tree.leaf_of[slot] = 0
    _add_above(tree, leaf, -1)


@kernel
def _put_in(tree: Tree, leaf: int, slot: int, key: float) -> None:
    """Insert into a leaf that has space, before all equal keys."""
    place = 0
    for i in range(tree.sizes[leaf], 0, -1):
        if tree.keys[leaf, i - 1] < key:
            place = i
            break
        tree.keys[leaf, i] = tree.keys[leaf, i - 1]
        tree.items[leaf, i] = tree.items[leaf, i - 1]
    tree.keys[leaf, place], tree.items[leaf, place] = key, slot
    tree.sizes[leaf] += 1
    tree.leaf_of[slot] = leaf
    _add_above(tree, leaf, 1)


@kernel
def _add_above(tree: Tree, node: int, change: int) -> None:
    tree.state[N_ENTRIES] += change
    parent = tree.parents[node]
    while parent >= 0:
        tree.counts[parent, tree.indices[node]] += change
        node, parent = parent, tree.parents[parent]


@kernel
def _leaf_for(tree: Tree, key: float) -> int:
    node = tree.state[ROOT]
    while node < len(tree.counts):
        node = tree.items[node, child_for(tree, node, key)]
    return int(node)


@cache
def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, so that no later call waits."""
    tree = empty_tree(1)
    zero = np.zeros(1, dtype=np.int64)
    _place(tree, zero, np.ones(1))
    _slots_at(tree, zero)
    _ranks_of(tree, zero)
    _find(tree, 0)
    _remove(tree, zero)
