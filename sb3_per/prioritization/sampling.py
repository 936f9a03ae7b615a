"""Four ways to sample a batch of leaves from a sum tree, with the probability of each leaf."""

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


class SampledSlots(NamedTuple):
    """
    The slots of one batch. A slot's probability is how often a batch holds it on average, over B.

    The order of stratified slots is not random: shuffle a batch before you split it.
    """

    slots: IntArray  # (B,)
    probabilities: FloatArray  # (B,), > 0
    smallest_probability: float = np.nan  # of all slots; NaN unless with_smallest


class SamplingScheme(NamedTuple):
    """
    How the B samples of a batch depend on each other.

    With replacement, each sample is a leaf with P(i) = weight / total. Strata are B equal slices
    of the total, with one sample from each (Schaul et al. 2016, section 3.3).

    Without replacement, strata share one offset (systematic sampling): a leaf is sampled with
    probability min(1, c * weight), where c makes these probabilities add up to B. Leaves that fill
    a whole stratum are taken first.

    Independent samples without replacement are taken one after the other from the leaves that are
    left. This is the same as letting each leaf arrive after an exponential time whose rate is its
    weight, and taking the first B. Let tau be the time at which leaf B + 1 arrives. Given tau, a
    leaf is sampled with probability 1 - exp(-weight * tau), and importance weights from this
    probability are unbiased (rank conditioning, Cohen & Kaplan 2007).

    :param stratified: True: one sample from each of B equal slices of the total. False: B
        independent samples.
    :param replacement: Whether a batch may hold a leaf twice.
    """

    stratified: bool = True
    replacement: bool = True

    def compile_kernels(self) -> None:
        """Compile the kernels, or load them from numba's cache, so that no later call waits."""
        _compile_kernels(self)

    def n_uniforms(self, batch_size: int) -> int:
        """Return how many random numbers ``sample`` uses for a batch."""
        if self.replacement:
            return batch_size
        return 1 if self.stratified else 2 * batch_size + 1

    def sample(
        self,
        tree: SumTree,
        batch_size: int,
        uniforms: FloatArray,
        *,
        with_smallest: bool = False,
    ) -> SampledSlots:
        """
        Sample leaves; leaves of weight 0 are never sampled. O(B log n_leaves).

        :param tree: A tree with a total above 0. Without replacement, at least B of its leaves must
            be above 0.
        :param batch_size: B, how many leaves to sample.
        :param uniforms: Random numbers in [0, 1), shape (n_uniforms(B),).
        :param with_smallest: Whether to find the smallest probability of all leaves as well.
        """
        lightest = tree.smallest() if with_smallest else np.nan
        if self.replacement:
            probabilities = np.empty(batch_size)
            leaves = _sample(tree.nodes, tree.starts, uniforms, self.stratified, probabilities)
            smallest = lightest / tree.total
        elif self.stratified:
            rates = np.empty(1)
            leaves = _take_systematic(tree.nodes, tree.starts, batch_size, uniforms[0], rates)
            rate = float(rates[0])
            probabilities = np.minimum(rate * tree.get(leaves), 1.0) / batch_size
            smallest = min(rate * lightest, 1.0) / batch_size
        else:
            taus, positions, waits = np.empty(1), uniforms[:batch_size], uniforms[batch_size:]
            leaves = _take_one_by_one(tree.nodes, tree.starts, positions, waits, taus)
            tau = float(taus[0])
            probabilities = -np.expm1(-tau * tree.get(leaves)) / batch_size
            smallest = float(-np.expm1(-tau * lightest)) / batch_size
        return SampledSlots(leaves, probabilities, smallest)


@kernel
def _sample(
    nodes: FloatArray,
    starts: IntArray,
    uniforms: FloatArray,
    stratified: bool,
    probabilities: FloatArray,
) -> IntArray:
    """Return leaves, one from each stratum or independent; fill in their probabilities."""
    n_samples, total = len(uniforms), total_of(nodes)
    masses = np.empty(n_samples)
    for i in range(n_samples):
        masses[i] = (i + uniforms[i]) * (total / n_samples) if stratified else uniforms[i] * total
    leaves = find_leaves(nodes, starts, masses)
    for i in range(n_samples):
        probabilities[i] = nodes[starts[-1] + leaves[i]] / total
    return leaves


@kernel
def _take_systematic(
    nodes: FloatArray, starts: IntArray, n_samples: int, offset: float, rates: FloatArray
) -> IntArray:
    """Return distinct leaves at equal distances; fill in the factor c of ``SamplingScheme``."""
    # Equal distances always hit a leaf that fills a whole stratum, perhaps twice. Such leaves are
    # taken first and set to 0, and the other leaves are sampled from the new total. At the end, all
    # weights are restored.
    taken = np.empty(n_samples, dtype=np.int64)
    weights = np.empty(n_samples)
    n_taken = 0
    rates[0] = np.inf
    while n_taken < n_samples:
        n_left = n_samples - n_taken
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
            for i in range(n_left):  # a slice would take seconds to compile
                taken[n_taken + i] = found[i]
            rates[0] = n_left / total
            break
        set_leaves(nodes, starts, taken[n_taken : n_taken + n_certain], np.zeros(n_certain))
        n_taken += n_certain
    set_leaves(nodes, starts, taken[:n_taken], weights[:n_taken])
    return taken


@kernel
def _take_one_by_one(
    nodes: FloatArray, starts: IntArray, positions: FloatArray, waits: FloatArray, taus: FloatArray
) -> IntArray:
    """Return distinct leaves, each sampled from what is left; fill in tau of ``SamplingScheme``."""
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
    taus[0] = tau - np.log1p(-waits[-1]) / rest if rest > 0.0 else np.inf
    set_leaves(nodes, starts, taken, weights)
    return taken


@cache
def _compile_kernels(scheme: SamplingScheme) -> None:
    # Compile kernels before the kernels that call them: the other way round, numba's cache returns
    # a find_leaves that cannot return its array.
    sum_tree.compile_kernels()
    nodes, starts, uniforms = np.ones(FANOUT), np.zeros(1, dtype=np.int64), np.full(2, 0.5)
    filled_in = np.empty(2)
    if scheme.replacement:
        _sample(nodes, starts, uniforms, True, filled_in)
    elif scheme.stratified:
        _take_systematic(nodes, starts, 1, 0.5, filled_in)
    else:
        _take_one_by_one(nodes, starts, uniforms[:1], uniforms, filled_in)
