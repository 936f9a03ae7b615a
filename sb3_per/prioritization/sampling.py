"""Four ways to draw a batch of leaves from a sum tree, and the probability of each leaf drawn."""

from functools import cache
from typing import NamedTuple

import numpy as np

from sb3_per.prioritization import sum_tree
from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.sum_tree import (
    FANOUT,
    FloatArray,
    IntArray,
    SumTree,
    find_leaves,
    set_leaves,
    total_of,
)


class Draw(NamedTuple):
    """
    What one batch drew. A slot's probability is the number of times that a batch holds it on
    average, over B.

    Leaves drawn in strata come in the order of the mass line: whoever splits the batch has to
    shuffle it first.
    """

    slots: IntArray  # (B,), the leaves drawn
    probabilities: FloatArray  # (B,), > 0
    smallest_probability: (
        float  # of all that could be drawn; not a number where the tree does not track it
    )


class Scheme(NamedTuple):
    """
    How the B draws of a batch depend on each other.

    With replacement, each draw takes a leaf with P(i) = weight / total. Strata are B equal slices
    of the mass, one draw in each (Schaul et al. 2016, section 3.3).

    Without replacement, strata share one offset (systematic sampling): a leaf is drawn with
    probability min(1, c * weight), where c makes these add up to B. Leaves that fill a whole
    stratum are taken first. Independent draws are made one after the other from what is left; given
    tau, the moment at which a draw B + 1 would come when leaf i comes after an exponential time of
    rate weight, a leaf is drawn with probability 1 - exp(-weight * tau), and importance weights
    from it are unbiased (rank conditioning, Cohen & Kaplan 2007).

    :param stratified: One draw from each of B equal slices of the mass, or else independent draws.
    :param replacement: Whether a leaf may be drawn twice in a batch.
    """

    stratified: bool = True
    replacement: bool = True

    def compile_kernels(self) -> None:
        """Compile now, or load from numba's cache, so that no draw has to wait."""
        _compile_kernels(self)

    def n_uniforms(self, batch_size: int) -> int:
        """How many uniforms ``draw`` uses up for a batch."""
        if self.replacement:
            return batch_size
        return 1 if self.stratified else 2 * batch_size + 1

    def draw(self, tree: SumTree, batch_size: int, uniforms: FloatArray) -> Draw:
        """
        Draw leaves; leaves of weight 0 are never drawn. O(B log n_leaves).

        :param tree: A tree with a total above 0; without replacement, with at least B leaves above
            0.
        :param batch_size: B, how many leaves to draw.
        :param uniforms: Random numbers in [0, 1), shape (n_uniforms(B),).
        """
        if self.replacement:
            leaves, probabilities = _draw(tree.nodes, tree.starts, uniforms, self.stratified)
            smallest = _smallest(tree) / tree.total if tree.track_extremes else np.nan
        elif self.stratified:
            leaves, rate = _take_systematic(tree.nodes, tree.starts, batch_size, uniforms[0])
            probabilities = np.minimum(rate * tree.get(leaves), 1.0) / batch_size
            smallest = min(rate * _smallest(tree), 1.0) / batch_size
        else:
            leaves, tau = _take_one_by_one(
                tree.nodes, tree.starts, uniforms[:batch_size], uniforms[batch_size:]
            )
            probabilities = -np.expm1(-tau * tree.get(leaves)) / batch_size
            smallest = float(-np.expm1(-tau * _smallest(tree))) / batch_size
        return Draw(leaves, probabilities, smallest)


def _smallest(tree: SumTree) -> float:
    return tree.smallest if tree.track_extremes else np.nan


@kernel
def _draw(
    nodes: FloatArray, starts: IntArray, uniforms: FloatArray, stratified: bool
) -> tuple[IntArray, FloatArray]:
    """Leaves, one to a stratum or independent, and their probabilities."""
    n_draws, total = len(uniforms), total_of(nodes)
    masses = np.empty(n_draws)
    for i in range(n_draws):
        masses[i] = (i + uniforms[i]) * (total / n_draws) if stratified else uniforms[i] * total
    leaves = find_leaves(nodes, starts, masses)
    for i in range(n_draws):
        masses[i] = nodes[starts[-1] + leaves[i]] / total
    return leaves, masses


@kernel
def _take_systematic(
    nodes: FloatArray, starts: IntArray, n_draws: int, offset: float
) -> tuple[IntArray, float]:
    """Distinct leaves at equal distances on the mass line, and the factor c of ``Scheme``."""
    taken = np.empty(n_draws, dtype=np.int64)
    weights = np.empty(n_draws)
    n_taken = 0
    rate = np.inf
    while n_taken < n_draws:
        n_left = n_draws - n_taken
        total = total_of(nodes)
        masses = np.empty(n_left)
        for i in range(n_left):
            masses[i] = (i + offset) * (total / n_left)
        found = find_leaves(nodes, starts, masses)
        n_certain = 0
        for i in range(n_left):
            weight = nodes[starts[-1] + found[i]]
            fills_a_stratum = weight * n_left >= total or (
                i + 1 < n_left and found[i + 1] == found[i]
            )
            if fills_a_stratum and not (n_certain and taken[n_taken + n_certain - 1] == found[i]):
                taken[n_taken + n_certain], weights[n_taken + n_certain] = found[i], weight
                n_certain += 1
        if n_certain == 0:
            for i in range(n_left):  # a slice would compile for seconds
                taken[n_taken + i] = found[i]
            rate = n_left / total
            break
        # They have to go before the strata of the others can be laid out; equal distances hit every
        # one of them.
        set_leaves(nodes, starts, taken[n_taken : n_taken + n_certain], np.zeros(n_certain))
        n_taken += n_certain
    set_leaves(nodes, starts, taken[:n_taken], weights[:n_taken])
    return taken, rate


@kernel
def _take_one_by_one(
    nodes: FloatArray, starts: IntArray, positions: FloatArray, waits: FloatArray
) -> tuple[IntArray, float]:
    """Distinct leaves, each drawn from what the earlier ones left, and tau of ``Scheme``."""
    taken = np.empty(len(positions), dtype=np.int64)
    weights = np.empty(len(positions))
    tau = 0.0
    for i in range(len(positions)):
        total = total_of(nodes)
        tau -= np.log1p(-waits[i]) / total
        taken[i] = find_leaves(nodes, starts, positions[i : i + 1] * total)[0]
        weights[i] = nodes[starts[-1] + taken[i]]
        set_leaves(nodes, starts, taken[i : i + 1], np.zeros(1))
    rest = total_of(nodes)
    tau = tau - np.log1p(-waits[-1]) / rest if rest > 0.0 else np.inf
    set_leaves(nodes, starts, taken, weights)
    return taken, tau


@cache
def _compile_kernels(scheme: Scheme) -> None:
    # Kernels that are called come before those that call them: the other way round, numba's cache
    # gives back a find_leaves that cannot return its array.
    sum_tree.compile_kernels()
    nodes, starts, uniforms = np.ones(FANOUT), np.zeros(1, dtype=np.int64), np.full(2, 0.5)
    if scheme.replacement:
        _draw(nodes, starts, uniforms, True)
    elif scheme.stratified:
        _take_systematic(nodes, starts, 1, 0.5)
    else:
        _take_one_by_one(nodes, starts, uniforms[:1], uniforms)
