"""Uniform samples of slots, and their mixture with samples by priority."""

from functools import cache

import numpy as np

from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.sampling import SamplingScheme
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, SumTree


class InsertedSlots:
    """
    The set of slots that can be sampled, for uniform sampling in the order of slots.

    Invariant: while there is no tree, the set is the first ``_end`` slots, and a random number
    gives a slot directly. When a slot is removed or inserted out of order, a tree of ones is made,
    and kept until ``clear``.

    :param n_slots: Number of slots.
    """

    def __init__(self, n_slots: int) -> None:
        compile_kernels()
        self._n_slots, self._end = n_slots, 0
        self._tree: SumTree | None = None

    def insert(self, slots: IntArray) -> None:
        """Insert slots, shape (n,), each named once."""
        if self._tree is None and self._end < self._n_slots and len(slots) > 0:
            end = max(self._end, int(slots.max()) + 1)
            if np.count_nonzero(slots >= self._end) == end - self._end:
                self._end = end
            else:
                self._make_tree()
        if self._tree is not None:
            self._tree.set(slots, np.ones(len(slots)))

    def remove(self, slots: IntArray) -> None:
        """Remove slots, shape (n,)."""
        if len(slots) > 0:
            tree = self._make_tree() if self._tree is None else self._tree
            tree.set(slots, np.zeros(len(slots)))

    def clear(self) -> None:
        """Remove all slots."""
        self._end, self._tree = 0, None

    def are_inserted(self, slots: IntArray) -> FloatArray:
        """Return 1 for inserted slots, shape (n,), and 0 for others."""
        if self._tree is not None:
            return self._tree.get(slots)
        return (slots < self._end).astype(np.float64)

    def sample(self, scheme: SamplingScheme, n_samples: int, uniforms: FloatArray) -> IntArray:
        """
        Return sampled slots, shape (n_samples,).

        :param scheme: With replacement.
        :param uniforms: Random numbers in [0, 1), shape (n_samples,).
        """
        if self._tree is not None:
            return scheme.sample(self._tree, n_samples, uniforms).slots
        return sample_first(self._end, uniforms, scheme.stratified)

    def _make_tree(self) -> SumTree:
        self._tree = SumTree(self._n_slots)
        self._tree.set(np.arange(self._end), np.ones(self._end))
        return self._tree


@kernel
def sample_first(n: int, uniforms: FloatArray, stratified: bool) -> IntArray:
    """Return uniform samples of the first ``n`` slots, as a tree of ``n`` ones would give them."""
    slots = np.empty(len(uniforms), dtype=np.int64)
    for i in range(len(uniforms)):
        mass = (i + uniforms[i]) * (n / len(uniforms)) if stratified else uniforms[i] * n
        slots[i] = min(int(mass), n - 1)
    return slots


@kernel
def mix(
    slots: tuple[IntArray, IntArray],
    probabilities: tuple[FloatArray, FloatArray],
    share: float,
    n_sampleable: int,
    mixture: FloatArray,
) -> IntArray:
    """
    Join slots that were sampled by priority with those that were sampled uniformly.

    :param slots: Shapes (n,) and (m,).
    :param probabilities: P(i) by priority of each of them, shapes (n,) and (m,).
    :param share: The probability of a uniform sample, in (0, 1].
    :param n_sampleable: N.
    :param mixture: Filled with share / N + (1 - share) P(i), shape (n + m,).
    :return: All slots, shape (n + m,).
    """
    n = len(slots[0])
    n_all = n + len(slots[1])
    all_slots = np.empty(n_all, dtype=np.int64)
    for i in range(n_all):
        all_slots[i] = slots[0][i] if i < n else slots[1][i - n]
        by_priority = probabilities[0][i] if i < n else probabilities[1][i - n]
        mixture[i] = share / n_sampleable + (1 - share) * by_priority
    return all_slots


@cache
def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, so that no later call waits."""
    slots, ones = sample_first(1, np.zeros(1), True), np.ones(1)
    mix((slots, slots), (ones, ones), 0.5, 1, np.empty(2))
