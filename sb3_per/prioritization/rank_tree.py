"""Slots in the order of their priorities, found by rank: a B+ tree that counts its entries."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_per._utils import kernel
from sb3_per.prioritization.sum_tree import (
    FloatArray,
    IntArray,
    on_cache_lines,
    zeros_on_cache_lines,
)

# Entries of a leaf, and children of an inner node: their keys fill six cache lines, their items
# three. At a million slots 32 and 64 are slower.
WIDTH = 48
# Entries of a node when the tree is rebuilt: they leave space for inserts, and leaves for splits.
ENTRIES_AFTER_REBUILD = 36
# numba compiles a function once for each type of its arguments, so they are all made int64.
Index = int | np.int64
# How many leaves are read ahead.
LEAVES_READ_AHEAD = 32
# More levels than any tree has: each but the top has at least WIDTH / 2 children a node.
MAX_LEVELS = 8

ROOT, N_INNER, N_LEAVES, N_ENTRIES, N_CHANGES = range(5)


class Tree(NamedTuple):
    """
    The arrays of the tree. Keys are negated priorities: they ascend, and rank 0 comes first.

    Nodes 0 to Q - 1 are inner nodes, Q to P - 1 leaves; the first leaf is always node Q.
    Invariants:

    - The keys of a leaf ascend.
    - In an inner node, no key below child j is greater than ``keys[node, j + 1]``, and no key below
      child j + 1 is smaller.
    - ``counts[node, j]`` entries are below child j.
    - Every node except the root knows its parent and its index among the parent's children.
    """

    keys: FloatArray  # (P, WIDTH): of entries; or lower bounds of children, the first one unused
    items: NDArray[np.int32]  # (P, WIDTH): slots of a leaf; children of an inner node
    sizes: NDArray[np.int32]  # (P,): how many items
    parents: NDArray[np.int32]  # (P,): -1 for the root
    indices: NDArray[np.int32]  # (P,): which child of its parent
    counts: NDArray[np.int32]  # (Q, WIDTH)
    next_leaves: NDArray[np.int32]  # (P,): -1 after the last
    leaf_of: NDArray[np.int32]  # (n_slots,): 0 for a slot not in the order
    state: IntArray  # the root, inner nodes, leaves and entries in use, changes of shape


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
        if n_slots >= 2**31:
            raise ValueError(f"ranks need a buffer of fewer than 2^31 slots, got {n_slots}")
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


def empty_tree(n_slots: int) -> Tree:
    """Return a tree without entries."""
    n_leaves = 2 * -(-n_slots // WIDTH) + 16
    n_inner = 4 * -(-n_leaves // WIDTH) + 2 * MAX_LEVELS
    n_nodes = n_inner + n_leaves
    tree = Tree(
        keys=zeros_on_cache_lines((n_nodes, WIDTH), np.float64),
        items=zeros_on_cache_lines((n_nodes, WIDTH), np.int32),
        sizes=np.zeros(n_nodes, dtype=np.int32),
        parents=np.zeros(n_nodes, dtype=np.int32),
        indices=np.zeros(n_nodes, dtype=np.int32),
        counts=np.zeros((n_inner, WIDTH), dtype=np.int32),
        next_leaves=np.zeros(n_nodes, dtype=np.int32),
        leaf_of=np.zeros(n_slots, dtype=np.int32),
        state=np.zeros(5, dtype=np.int64),
    )
    lay_out(tree, np.empty(0), np.empty(0, dtype=np.int32))
    return tree


@kernel
def find_leaf(tree: Tree, key: float) -> int:
    """
    Return the leaf for a key, with space for one more entry.

    Full nodes are split on the way down, so that a parent always has space for another child.
    """
    n_inner_left = len(tree.counts) - tree.state[N_INNER]
    n_leaves_left = len(tree.sizes) - len(tree.counts) - tree.state[N_LEAVES]
    if n_leaves_left < 1 or n_inner_left < MAX_LEVELS:
        slots = np.empty(tree.state[N_ENTRIES], dtype=np.int32)
        lay_out(tree, entries(tree, slots), slots)
    if tree.sizes[tree.state[ROOT]] == WIDTH:
        _grow(tree)
    node = tree.state[ROOT]
    while node < len(tree.counts):
        index = child_for(tree, node, key)
        if tree.sizes[tree.items[node, index]] == WIDTH:
            _split(tree, node, index, key)
            index = child_for(tree, node, key)
        node = tree.items[node, index]
    return int(node)


@kernel
def _grow(tree: Tree) -> None:
    """Put a new root above a full root, which is its only child until it is split."""
    old, new = tree.state[ROOT], tree.state[N_INNER]
    tree.items[new, 0], tree.counts[new, 0] = old, tree.state[N_ENTRIES]
    tree.sizes[new] = 1
    tree.parents[new], tree.parents[old], tree.indices[old] = -1, new, 0
    tree.state[ROOT] = new
    tree.state[N_INNER] += 1


@kernel
def _split(tree: Tree, parent: int, index: int, key: float) -> None:
    """
    Move the upper half of a full child into a new node to its right.

    The references follow: ``leaf_of`` of moved slots, ``parents`` and ``indices`` of moved
    children. The parent's later children move up by one index.
    """
    left = tree.items[parent, index]
    is_inner = left < len(tree.counts)
    right = tree.state[N_INNER] if is_inner else len(tree.counts) + tree.state[N_LEAVES]
    tree.state[N_INNER if is_inner else N_LEAVES] += 1
    tree.state[N_CHANGES] += 1
    # All new transitions enter at the front, and half-full leaves would pile up behind them.
    # Therefore a leaf that is split at its front keeps a single entry.
    n_kept = 1 if not is_inner and key <= tree.keys[left, 0] else WIDTH // 2
    n_moved = WIDTH - n_kept
    for i in range(n_moved):
        tree.keys[right, i] = tree.keys[left, n_kept + i]
        tree.items[right, i] = tree.items[left, n_kept + i]
        if is_inner:
            tree.counts[right, i] = tree.counts[left, n_kept + i]
            tree.parents[tree.items[right, i]], tree.indices[tree.items[right, i]] = right, i
        else:
            tree.leaf_of[tree.items[right, i]] = right
    tree.sizes[left], tree.sizes[right], tree.parents[right] = n_kept, n_moved, parent
    if not is_inner:
        tree.next_leaves[right], tree.next_leaves[left] = tree.next_leaves[left], right
    count = sum_of_first(tree, right, n_moved) if is_inner else n_moved
    for i in range(tree.sizes[parent], index + 1, -1):
        tree.keys[parent, i] = tree.keys[parent, i - 1]
        tree.items[parent, i] = tree.items[parent, i - 1]
        tree.counts[parent, i] = tree.counts[parent, i - 1]
        tree.indices[tree.items[parent, i]] = i
    tree.sizes[parent] += 1
    tree.keys[parent, index + 1] = tree.keys[right, 0]
    tree.items[parent, index + 1] = right
    tree.indices[right] = index + 1
    tree.counts[parent, index + 1] = count
    tree.counts[parent, index] -= count


@kernel
def entries(tree: Tree, slots: NDArray[np.int32]) -> FloatArray:
    """Return all keys in order; fill in their slots, shape (n_entries,)."""
    keys = np.empty(tree.state[N_ENTRIES])
    leaf, n_done = len(tree.counts), 0
    while leaf >= 0:
        for i in range(tree.sizes[leaf]):
            keys[n_done], slots[n_done] = tree.keys[leaf, i], tree.items[leaf, i]
            n_done += 1
        leaf = tree.next_leaves[leaf]
    return keys


@kernel
def lay_out(tree: Tree, keys: FloatArray, slots: NDArray[np.int32]) -> None:
    """Build the tree from ordered entries: first the leaves, then one level after another."""
    first, n_leaves = len(tree.counts), max(-(-len(keys) // ENTRIES_AFTER_REBUILD), 1)
    for leaf in range(first, first + n_leaves):
        begin = (leaf - first) * ENTRIES_AFTER_REBUILD
        tree.sizes[leaf] = min(ENTRIES_AFTER_REBUILD, len(keys) - begin)
        tree.next_leaves[leaf] = leaf + 1 if leaf + 1 < first + n_leaves else -1
        for i in range(tree.sizes[leaf]):
            tree.keys[leaf, i], tree.items[leaf, i] = keys[begin + i], slots[begin + i]
            tree.leaf_of[slots[begin + i]] = leaf
    tree.state[N_LEAVES], tree.state[N_INNER] = n_leaves, 0
    tree.state[N_CHANGES] += 1
    n_children = n_leaves
    while n_children > 1 or tree.state[N_INNER] == 0:
        first, n_children = _build_level(tree, first, n_children)
    tree.state[ROOT] = first
    tree.parents[first] = -1


@kernel
def _build_level(tree: Tree, first_child: int, n_children: int) -> tuple[int, int]:
    """Put inner nodes above neighbouring children; return the first of them, and how many."""
    first, n_nodes = tree.state[N_INNER], -(-n_children // ENTRIES_AFTER_REBUILD)
    tree.state[N_INNER] += n_nodes
    for child in range(first_child, first_child + n_children):
        node, index = (
            first + (child - first_child) // ENTRIES_AFTER_REBUILD,
            (child - first_child) % ENTRIES_AFTER_REBUILD,
        )
        is_inner = child < len(tree.counts)
        size = np.int64(tree.sizes[child])
        tree.keys[node, index] = tree.keys[child, 0]
        tree.items[node, index] = child
        tree.counts[node, index] = sum_of_first(tree, child, size) if is_inner else size
        tree.parents[child], tree.indices[child], tree.sizes[node] = node, index, index + 1
    return first, n_nodes


@kernel
def child_for(tree: Tree, node: int, key: float) -> int:
    """Return the last child whose lower bound is below the key, or the first."""
    index: int = 0  # counting all keys needs no branches, so it is faster than bisecting
    for i in range(1, tree.sizes[node]):
        index += tree.keys[node, i] < key
    return index


@kernel
def sum_of_first(tree: Tree, node: Index, n_children: Index) -> int:
    """Return how many entries are below the first children of an inner node."""
    total: int = 0
    for index in range(n_children):
        total += tree.counts[node, index]
    return total


@kernel
def _place(tree: Tree, slots: IntArray, priorities: FloatArray) -> float:
    """Return a meaningless number, which keeps the compiler from dropping the reads."""
    touched = 0.0
    leaves = np.empty(LEAVES_READ_AHEAD, dtype=np.int64)
    for start in range(0, len(slots), LEAVES_READ_AHEAD):
        chunk = range(start, min(start + LEAVES_READ_AHEAD, len(slots)))
        # Leaves are read before they change, so that their cache misses overlap (half the time).
        for i in chunk:
            touched += _touch(tree, np.int64(tree.leaf_of[slots[i]]))
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
def _touch(tree: Tree, leaf: Index) -> float:
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
        node = np.int64(tree.leaf_of[slots[i]])
        if node > 0:
            ranks[i] = 0
            while tree.items[node, ranks[i]] != slots[i]:
                ranks[i] += 1
            while tree.parents[node] >= 0:
                parent = np.int64(tree.parents[node])
                ranks[i] += sum_of_first(tree, parent, np.int64(tree.indices[node]))
                node = parent
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
    leaf = np.int64(tree.leaf_of[slot])
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
def _add_above(tree: Tree, node: Index, change: int) -> None:
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
