"""The B+ tree under ``Ranking``: its arrays, and how it grows, splits and is rebuilt."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, zeros_on_cache_lines

# Entries of a leaf, and children of an inner node: their keys fill six cache lines, their items
# three. At a million slots 32 and 64 are slower.
WIDTH = 48
# Entries of a node when the tree is rebuilt: they leave space for inserts, and leaves for splits.
ENTRIES_AFTER_REBUILD = 36
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
    leaf_of: NDArray[np.int32]  # (n_slots,): 0 (in 0.1.0: -1) for a slot not in the order
    state: IntArray  # the root, inner nodes, leaves and entries in use, changes of shape


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
        size = tree.sizes[child]
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
def sum_of_first(tree: Tree, node: int, n_children: int) -> int:
    """Return how many entries are below the first children of an inner node."""
    total: int = 0
    for index in range(n_children):
        total += tree.counts[node, index]
    return total
