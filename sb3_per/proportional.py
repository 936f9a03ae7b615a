"""Proportional prioritization: P(i) = p_i^alpha / sum of p_k^alpha."""

from functools import cache
from typing import Literal

import numpy as np
from numba import njit

from sb3_per import draws
from sb3_per.draws import Draw, Scheme
from sb3_per.priorities import LARGEST_TD_ERROR, require
from sb3_per.sum_tree import FloatArray, IntArray, SumTree


class Proportional:
    """
    Proportional prioritization on a sum tree (Schaul et al. 2016, section 3.3).

    Invariant: the leaf of an inserted slot holds priority^alpha, that of any other slot exactly 0.

    :param n_slots: Number of slots.
    :param alpha: Exponent of the priorities, in [0, 1]; 0 draws uniformly.
    :param eps: Added to abs(TD error) so that no transition starves, > 0.
    :param td_error_clip: Upper bound of abs(TD error), before eps; None for no bound.
    :param initial_priority: Priority of the first transitions, > 0.
    :param new_priority: New transitions get the largest priority ever seen (``"max_seen"``, the
        paper's algorithm 1) or the largest of those stored now (``"max_stored"``).
    :param track_smallest: Whether draws also tell the smallest probability of all.
    """

    def __init__(
        self,
        n_slots: int,
        *,
        alpha: float = 0.6,
        eps: float = 1e-6,
        td_error_clip: float | None = None,
        initial_priority: float = 1.0,
        new_priority: Literal["max_seen", "max_stored"] = "max_seen",
        track_smallest: bool = False,
    ) -> None:
        clip = LARGEST_TD_ERROR if td_error_clip is None else td_error_clip
        require(0 <= alpha <= 1, "alpha must lie in [0, 1]", alpha)
        require(0 < eps <= LARGEST_TD_ERROR, "eps must be positive and finite in float32", eps)
        require(
            0 < clip <= LARGEST_TD_ERROR,
            "td_error_clip must be positive and finite in float32",
            td_error_clip,
        )
        require(
            0 < initial_priority <= LARGEST_TD_ERROR,
            "initial_priority must be positive and finite in float32",
            initial_priority,
        )
        require(
            new_priority in ("max_seen", "max_stored"),
            "new_priority must be 'max_seen' or 'max_stored'",
            new_priority,
        )
        self.alpha = float(alpha)
        self.eps = float(eps)
        self.td_error_clip = float(clip)
        self.initial_priority = float(initial_priority)
        self.new_priority = new_priority
        self.largest_priority = self.initial_priority
        self._tree = SumTree(n_slots, track_extremes=track_smallest or new_priority == "max_stored")
        compile_kernels()

    def insert(self, slots: IntArray) -> None:
        """Let new transitions in at the top, so that their TD errors are soon known."""
        weight = self.largest_priority**self.alpha
        if self.new_priority == "max_stored":
            weight = self._tree.largest or self.initial_priority**self.alpha
        self._tree.set(slots, np.full(len(slots), weight))

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """Take in TD errors of inserted slots; of a slot named twice the last one counts."""
        weights, largest = _weigh(td_errors, self.td_error_clip, self.eps, self.alpha)
        self._tree.set(slots, weights)
        self.largest_priority = max(self.largest_priority, largest)

    def remove(self, slots: IntArray) -> None:
        """Bar slots from being drawn until they are inserted again."""
        self._tree.set(slots, np.zeros(len(slots)))

    def clear(self) -> None:
        """Forget all priorities, the largest one included."""
        self._tree.clear()
        self.largest_priority = self.initial_priority

    def probabilities(self, slots: IntArray) -> FloatArray:
        """P(i) of slots, shape (n,): the chance of a single draw."""
        return self._tree.get(slots) / self._tree.total

    def draw(self, scheme: Scheme, batch_size: int, uniforms: FloatArray) -> Draw:
        """Draw slots in O(B log n_slots)."""
        return scheme.draw(self._tree, batch_size, uniforms)


@njit(cache=True)
def _weigh(
    td_errors: FloatArray, clip: float, eps: float, alpha: float
) -> tuple[FloatArray, float]:
    """priority^alpha of each TD error, and the largest priority."""
    weights = np.empty(len(td_errors))
    largest = 0.0
    for i in range(len(td_errors)):
        priority = min(abs(td_errors[i]), clip) + eps
        largest = max(largest, priority)
        weights[i] = priority**alpha
    return weights, largest


@cache
def compile_kernels() -> None:
    """Compile now, or load from numba's cache, so that no later call has to wait."""
    draws.compile_kernels()
    _weigh(np.zeros(1), 1.0, 1.0, 1.0)
