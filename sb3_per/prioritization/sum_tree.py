"""A sum tree whose nodes have eight children, and samples from it without replacement."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_per._utils import kernel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Eight float64 fill one 64-byte cache line: a level costs one cache miss, and a million leaves need
# seven levels, not twenty.
FANOUT = 8
LINE = 64  # bytes
# What `find_leaves` is given.
POINTS, INDEPENDENT, STRATIFIED = range(3)


class SumTree:
    """
    Leaves with masses >= 0, their total, and the leaf at a given point, each in O(log n_leaves).

    Invariant: every node is the sum of its children. A change recomputes the parents from their
    children; adding differences would let rounding errors pile up. Leaves keep their order: the
    mass line runs from leaf 0 upwards.

    :param n_leaves: Number of leaves, any number >= 1.
    """

    def __init__(self, n_leaves: int) -> None:
        self.n_leaves = n_leaves
        self.starts = _level_starts(n_leaves)
        self.nodes = _zeros_on_cache_lines(self.starts[-1] + _round_up(n_leaves))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.nodes = _zeros_on_cache_lines(len(self.nodes))  # a pickle does not keep them there
        self.nodes[:] = state["nodes"]

    @property
    def total(self) -> float:
        """Return the sum of all masses."""
        return float(total_of(self.nodes))

    @property
    def leaf_masses(self) -> FloatArray:
        """Return the masses of all leaves, shape (n_leaves,), as a view."""
        return self.nodes[self.starts[-1] :][: self.n_leaves]

    def smallest(self) -> float:
        """Return the smallest mass above 0, or infinity if there is none, in O(n_leaves)."""
        masses = self.leaf_masses
        return float(np.min(masses, where=masses > 0, initial=np.inf))

    def largest(self) -> float:
        """Return the largest mass, or 0 if there is none, in O(n_leaves)."""
        return float(self.leaf_masses.max())

    def get(self, leaves: IntArray) -> FloatArray:
        """Return the masses of leaves, shape (B,)."""
        return self.leaf_masses[leaves]

    def set(self, leaves: IntArray, masses: FloatArray) -> None:
        """
        Set the masses of leaves in O(B log n_leaves); if a leaf occurs twice, the last one counts.

        :param leaves: Leaf numbers in [0, n_leaves), shape (B,).
        :param masses: Masses, finite and >= 0, shape (B,); or (1,), the same for all leaves.
        """
        set_leaves(self.nodes, self.starts, leaves, masses)

    def find(self, points: FloatArray) -> IntArray:
        """
        Return the first leaf whose running sum exceeds each point, in O(B log n_leaves).

        A leaf of mass 0 is never returned, whatever rounding does: a point at or beyond the total
        finds the last leaf that has mass. The total must be above 0.

        :param points: Positions on the mass line, in [0, total], shape (B,).
        :return: Leaf numbers, shape (B,).
        """
        leaves = np.zeros(len(points), dtype=np.int64)
        find_leaves(self.nodes, self.starts, points.copy(), POINTS, leaves)
        return leaves

    def clear(self) -> None:
        """Set every mass to 0."""
        self.nodes[:] = 0.0


def sample_distinct(
    tree: SumTree,
    batch_size: int,
    generator: np.random.Generator,
    with_smallest: bool = False,
) -> tuple[IntArray, FloatArray, float]:
    """
    Sample leaves without replacement; leaves of mass 0 are never sampled. O(B log n_leaves).

    Samples are taken one after the other from the leaves that are left, as by ``np.random.choice``.
    This is the same as letting each leaf arrive after an exponential time whose rate is its mass,
    and taking the first B. Let tau be the time at which leaf B + 1 arrives. Given tau, a leaf is
    sampled with probability 1 - exp(-mass * tau), and importance weights from this probability are
    unbiased (rank conditioning, Cohen & Kaplan 2007).

    :param tree: A tree of which at least B leaves are above 0.
    :param batch_size: B, how many leaves to sample.
    :param with_smallest: Whether to find the smallest probability of all leaves as well.
    :return: Leaves, (B,); how often a batch holds each one, divided by B, (B,); and the smallest
        such number of all leaves, NaN unless ``with_smallest``.
    """
    lightest = tree.smallest() if with_smallest else np.nan
    leaves = np.zeros(batch_size, dtype=np.int64)
    uniforms = generator.random(2 * batch_size + 1)
    tau = _take_one_by_one(tree.nodes, tree.starts, uniforms, leaves)
    probabilities = -np.expm1(-tau * tree.get(leaves)) / batch_size
    smallest = float(-np.expm1(-tau * lightest)) / batch_size
    return leaves, probabilities, smallest


def _round_up(n_nodes: int) -> int:
    return -(-n_nodes // FANOUT) * FANOUT


def _zeros_on_cache_lines(n_nodes: int) -> FloatArray:
    """
    Return zeros that begin on a cache line; the first write to a page takes its memory.

    NumPy's own arrays spread siblings over two lines, which takes three times as long.
    """
    padded = np.zeros(n_nodes + FANOUT)
    first = -padded.ctypes.data % LINE // padded.itemsize
    return padded[first : first + n_nodes]


def _level_starts(n_leaves: int) -> IntArray:
    """Return where each level begins in the nodes: first the top (eight nodes), last the leaves."""
    widths = [_round_up(n_leaves)]
    while widths[-1] > FANOUT:
        widths.append(_round_up(widths[-1] // FANOUT))
    starts = np.cumsum([0, *widths[:0:-1]])
    return starts.astype(np.int64)


@kernel
def total_of(nodes: FloatArray) -> float:
    """Return the sum of all masses."""
    total = 0.0
    for node in range(FANOUT):
        total += nodes[node]
    return total


@kernel
def set_leaves(nodes: FloatArray, starts: IntArray, leaves: IntArray, masses: FloatArray) -> None:
    """Write masses, one each or one for all, and recompute the sums above them."""
    for i in range(len(leaves)):
        nodes[starts[-1] + leaves[i]] = masses[min(i, len(masses) - 1)]
    # Level by level, so that neighbours in a sorted batch recompute a common parent once.
    below = leaves.copy()
    n_below = len(below)
    for level in range(len(starts) - 1, 0, -1):
        last, n_parents = -1, 0
        for i in range(n_below):
            parent = below[i] // FANOUT
            if parent == last:
                continue
            first_child = starts[level] + parent * FANOUT
            total = 0.0
            for child in range(first_child, first_child + FANOUT):
                total += nodes[child]
            nodes[starts[level - 1] + parent] = total
            below[n_parents] = last = parent
            n_parents += 1
        n_below = n_parents


@kernel
def find_leaves(  # noqa: C901  # a kernel in a kernel is compiled twice, so it is one
    nodes: FloatArray, starts: IntArray, points: FloatArray, kind: int, found: IntArray
) -> float:
    """
    Find the leaf under each point; see ``SumTree.find``. Return the sum of all masses.

    :param points: Shape (n,); overwritten by what is left of a point below each node on the way.
    :param kind: POINTS, or random numbers in [0, 1) in their place: INDEPENDENT, or STRATIFIED, for
        one point in each of n equal slices.
    :param found: Zeros, shape (n,) or longer; the first n are overwritten by the leaves.
    """
    n, total = len(points), total_of(nodes)
    for i in range(n):
        if kind == STRATIFIED:
            points[i] = (i + points[i]) * (total / n)
        elif kind == INDEPENDENT:
            points[i] *= total
    touched = 0.0
    # All points go down one level together. The first loop only touches what the second loop reads:
    # its reads do not wait for each other, so their cache misses overlap (twice as fast at a
    # million leaves). All children are read, since the processor cannot predict where to stop.
    for level in range(len(starts)):
        for i in range(len(points)):
            touched += nodes[starts[level] + found[i] * FANOUT]
        for i in range(len(points)):
            first_child = starts[level] + found[i] * FANOUT
            running, below, n_below = 0.0, 0.0, 0
            for child in range(first_child, first_child + FANOUT):
                running += nodes[child]
                is_below = running <= points[i]
                n_below += is_below
                below = running if is_below else below
            points[i] -= below
            if n_below == FANOUT:  # at or beyond the total: the last child with mass, all the way
                points[i] = np.inf
                n_below = FANOUT - 1
                while nodes[first_child + n_below] == 0.0:
                    n_below -= 1
            found[i] = found[i] * FANOUT + n_below
    if touched < 0.0:  # never, but without a use of it the compiler would drop the first loop
        raise AssertionError
    return total


@kernel
def _take_one_by_one(
    nodes: FloatArray, starts: IntArray, uniforms: FloatArray, taken: IntArray
) -> float:
    """Fill in distinct leaves, each sampled from what is left; return tau."""
    masses, nothing = np.empty(len(taken)), np.zeros(1)
    positions, waits = uniforms[: len(taken)], uniforms[len(taken) :]
    tau = 0.0
    for i in range(len(taken)):
        total = total_of(nodes)
        tau -= np.log1p(-waits[i]) / total
        find_leaves(nodes, starts, positions[i : i + 1] * total, POINTS, taken[i : i + 1])
        masses[i] = nodes[starts[-1] + taken[i]]
        set_leaves(nodes, starts, taken[i : i + 1], nothing)
    rest = total_of(nodes)
    set_leaves(nodes, starts, taken, masses)
    return tau - np.log1p(-waits[-1]) / rest if rest > 0.0 else np.inf
