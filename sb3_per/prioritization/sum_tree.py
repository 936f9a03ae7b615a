"""Weighted lookup over a fixed number of leaves: a sum tree whose nodes have eight children."""

import math
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_per.prioritization.compilation import kernel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Number = TypeVar("Number", bound=np.number)

# Eight float64 fill one 64-byte cache line: a level costs one cache miss, and a million leaves need
# seven levels, not twenty.
FANOUT = 8
LINE = 64  # bytes


class SumTree:
    """
    Leaves with weights >= 0, their total, and the leaf at a given mass, each in O(log n_leaves).

    Invariant: every node is the sum of its children. A change recomputes the parents from their
    children; adding differences would let rounding errors pile up. Leaves keep their order: the
    mass line runs from leaf 0 upwards.

    :param n_leaves: Number of leaves, any number >= 1.
    """

    def __init__(self, n_leaves: int) -> None:
        if n_leaves < 1:
            raise ValueError(f"n_leaves must be at least 1, got {n_leaves}")
        compile_kernels()
        self.n_leaves = n_leaves
        self.starts = _level_starts(n_leaves)
        self.nodes = zeros_on_cache_lines((self.starts[-1] + _round_up(n_leaves),), np.float64)
        # The smallest and the largest weight below every inner node; None before `track`.
        self._extremes: tuple[FloatArray, FloatArray] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "track_extremes" in state:  # from a pickle of version 0.1.0
            is_tracked = state.pop("track_extremes")
            extremes = state.pop("_smallest"), state.pop("_largest")
            state["_extremes"] = extremes if is_tracked else None
        self.__dict__.update(state)
        self.nodes = on_cache_lines(self.nodes)

    @property
    def total(self) -> float:
        """Return the sum of all weights."""
        return float(total_of(self.nodes))

    @property
    def leaf_weights(self) -> FloatArray:
        """Return the weights of all leaves, shape (n_leaves,), as a read-only view."""
        view = self.nodes[self.starts[-1] :][: self.n_leaves]
        view.flags.writeable = False
        return view

    def smallest(self) -> float:
        """Return the smallest weight above 0, or infinity if there is none; see ``track``."""
        top = self._top(self.track()[0])
        return float(np.min(top, where=top > 0, initial=np.inf))

    def largest(self) -> float:
        """Return the largest weight, or 0 if there is none; see ``track``."""
        return float(np.max(self._top(self.track()[1])))

    def track(self) -> tuple[FloatArray, FloatArray]:
        """
        Keep the smallest and the largest weight of every subtree from now on.

        The first call takes O(n_leaves), and makes each later change of a weight slower.

        :return: Both, by inner node.
        """
        if self._extremes is None:
            n_inner = int(self.starts[-1])
            self._extremes = np.zeros(n_inner), np.zeros(n_inner)
            leaves = np.flatnonzero(self.leaf_weights)
            _refresh_extremes(self.nodes, *self._extremes, self.starts, leaves)
        return self._extremes

    def get(self, leaves: IntArray) -> FloatArray:
        """
        Return the weights of leaves, shape (B,).

        :param leaves: Leaf numbers, shape (B,).
        """
        return self.leaf_weights[leaves]

    def set(self, leaves: IntArray, weights: FloatArray) -> None:
        """
        Set the weights of leaves in O(B log n_leaves); if a leaf occurs twice, the last one counts.

        :param leaves: Leaf numbers, shape (B,).
        :param weights: Weights, finite and >= 0, shape (B,).
        :raises ValueError: before anything has changed, for a leaf or a weight out of range or
            unequal lengths.
        """
        if len(leaves) != len(weights):
            raise ValueError(
                f"leaves and weights must be equally long, got {len(leaves)} and {len(weights)}"
            )
        bad = _check_and_set(self.nodes, self.starts, self.n_leaves, leaves, weights)
        if bad >= 0:
            raise ValueError(
                f"a leaf must lie in [0, {self.n_leaves}), its weight must be finite and >= 0, "
                f"got leaf {leaves[bad]} with weight {weights[bad]}"
            )
        if self._extremes is not None:
            _refresh_extremes(self.nodes, *self._extremes, self.starts, leaves)

    def find(self, masses: FloatArray) -> IntArray:
        """
        Return the first leaf whose running sum exceeds each mass, in O(B log n_leaves).

        A leaf of weight 0 is never returned, whatever rounding does: a mass at or beyond the total
        finds the last leaf that has weight. The total must be above 0.

        :param masses: Positions on the mass line, in [0, total], shape (B,).
        :return: Leaf numbers, shape (B,).
        """
        return find_leaves(self.nodes, self.starts, masses)

    def clear(self) -> None:
        """Set every weight to 0."""
        self.nodes[:] = 0.0
        if self._extremes is not None:
            self._extremes[0][:] = np.inf
            self._extremes[1][:] = 0.0

    def _top(self, extremes: FloatArray) -> FloatArray:
        # A tree of one level has no inner nodes: its leaves are the top.
        return extremes[:FANOUT] if len(self.starts) > 1 else self.nodes[:FANOUT]


def _round_up(n_nodes: int) -> int:
    return -(-n_nodes // FANOUT) * FANOUT


def on_cache_lines(array: NDArray[Number]) -> NDArray[Number]:
    """
    Return a copy that begins on a cache line.

    NumPy's own arrays spread siblings over two lines, which takes three times as long.
    """
    aligned = zeros_on_cache_lines(array.shape, array.dtype)
    aligned[:] = array
    return aligned


def zeros_on_cache_lines(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return zeros that begin on a cache line; the first write to a page takes its memory."""
    n_bytes = math.prod(map(int, shape)) * np.dtype(dtype).itemsize
    padded = np.zeros(n_bytes + LINE, dtype=np.uint8)
    first = -padded.ctypes.data % LINE
    return padded[first : first + n_bytes].view(dtype).reshape(shape)


def _level_starts(n_leaves: int) -> IntArray:
    """Return where each level begins in the nodes: first the top (eight nodes), last the leaves."""
    widths = [_round_up(n_leaves)]
    while widths[-1] > FANOUT:
        widths.append(_round_up(widths[-1] // FANOUT))
    starts = np.cumsum([0, *widths[:0:-1]])
    return starts.astype(np.int64)


@kernel
def total_of(nodes: FloatArray) -> float:
    """Return the sum of all weights."""
    total = 0.0
    for node in range(FANOUT):
        total += nodes[node]
    return total


@kernel
def set_leaves(nodes: FloatArray, starts: IntArray, leaves: IntArray, weights: FloatArray) -> None:
    """Write weights and recompute the sums above them; the caller has checked both."""
    for i in range(len(leaves)):
        nodes[starts[-1] + leaves[i]] = weights[i]
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
def _check_and_set(
    nodes: FloatArray, starts: IntArray, n_leaves: int, leaves: IntArray, weights: FloatArray
) -> int:
    """Return the position of the first leaf or weight out of range; -1 if all were written."""
    for i in range(len(leaves)):
        if not (0 <= leaves[i] < n_leaves and 0.0 <= weights[i] < np.inf):
            return i
    set_leaves(nodes, starts, leaves, weights)
    return -1


@kernel
def find_leaves(nodes: FloatArray, starts: IntArray, masses: FloatArray) -> IntArray:
    """Return the leaf under each mass; see ``SumTree.find``."""
    found = np.zeros(len(masses), dtype=np.int64)
    left_over = masses.copy()
    bits = nodes.view(np.int64)
    touched = 0
    # All masses go down one level together. The first loop only touches what the second loop reads:
    # its reads do not wait for each other, so their cache misses overlap (twice as fast at a
    # million leaves). All children are read, since the processor cannot predict where to stop.
    for level in range(len(starts)):
        for i in range(len(masses)):
            touched |= bits[starts[level] + found[i] * FANOUT]
        for i in range(len(masses)):
            first_child = starts[level] + found[i] * FANOUT
            running, below, n_below = 0.0, 0.0, 0
            for child in range(first_child, first_child + FANOUT):
                running += nodes[child]
                is_below = running <= left_over[i]
                n_below += is_below
                below = running if is_below else below
            left_over[i] -= below
            if n_below == FANOUT:  # at or beyond the total: the last child with weight, all the way
                left_over[i] = np.inf
                n_below = FANOUT - 1
                while nodes[first_child + n_below] == 0.0:
                    n_below -= 1
            found[i] = found[i] * FANOUT + n_below
    if touched < 0:  # never, but without a use of it the compiler would drop the first loop
        raise AssertionError
    return found


@kernel
def _refresh_extremes(
    nodes: FloatArray, smallest: FloatArray, largest: FloatArray, starts: IntArray, leaves: IntArray
) -> None:
    for i in range(len(leaves)):
        index = leaves[i]
        for level in range(len(starts) - 1, 0, -1):
            index //= FANOUT
            low, high = np.inf, 0.0
            first_child = starts[level] + index * FANOUT
            for child in range(first_child, first_child + FANOUT):
                if nodes[child] == 0.0:  # the extremes of an empty subtree mean nothing
                    continue
                if level < len(starts) - 1:
                    low, high = min(low, smallest[child]), max(high, largest[child])
                else:
                    low, high = min(low, nodes[child]), max(high, nodes[child])
            smallest[starts[level - 1] + index] = low
            largest[starts[level - 1] + index] = high


@cache
def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, so that no later call waits."""
    nodes, starts = np.zeros(FANOUT), np.zeros(1, dtype=np.int64)
    leaves, weights = np.zeros(1, dtype=np.int64), np.ones(1)
    set_leaves(nodes, starts, leaves, weights)
    _check_and_set(nodes, starts, 1, leaves, weights)
    find_leaves(nodes, starts, np.zeros(1))
    total_of(nodes)
    _refresh_extremes(nodes, nodes.copy(), nodes.copy(), starts, starts)
