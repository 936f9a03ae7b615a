"""Proportional prioritization: P(i) = p_i^alpha / sum of p_k^alpha."""

from typing import Any

import numpy as np

from sb3_per.prioritization.base import ByTDError
from sb3_per.prioritization.sampling import Draw, Scheme
from sb3_per.prioritization.stored_state import stored_array
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, SumTree
from sb3_per.rules import require


class Proportional(ByTDError):
    """
    Proportional prioritization on a sum tree (Schaul et al. 2016, section 3.3).

    Invariant: the leaf of an inserted slot holds priority^alpha, that of any other slot exactly 0.

    :param n_slots: Number of slots.
    :param track_smallest: Whether draws also tell the smallest probability of all.
    :param options: As for ``ByTDError``.
    """

    def __init__(self, n_slots: int, *, track_smallest: bool = False, **options: Any) -> None:
        super().__init__(**options)
        track_extremes = track_smallest or self.new_priority == "max_stored"
        self._tree = SumTree(n_slots, track_extremes=track_extremes)

    def insert(self, slots: IntArray) -> None:
        """Let new transitions in at the top, so that their TD errors are soon known."""
        weight = self.largest_priority**self.alpha
        if self.new_priority == "max_stored":
            weight = self._tree.largest or self.initial_priority**self.alpha
        self._tree.set(slots, np.full(len(slots), weight))

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """Take in TD errors of inserted slots; of a slot named twice the last one counts."""
        self._tree.set(slots, self.priorities_of(td_errors, self.alpha))

    def remove(self, slots: IntArray) -> None:
        """Bar slots from being drawn until they are inserted again."""
        self._tree.set(slots, np.zeros(len(slots)))

    def clear(self) -> None:
        """Forget all priorities, the largest one included."""
        self._tree.clear()
        self.largest_priority = self.initial_priority

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs to draw the same: leaves, shape (n_slots,), as a view."""
        return {"largest_priority": self.largest_priority, "leaves": self._tree.leaf_weights}

    def restore(self, state: dict[str, Any]) -> None:
        """
        Go on from a state of the same class with the same options.

        :raises ValueError: before anything has changed, for leaves that are too many or out of
            range, and for a largest priority that cannot be.
        """
        largest_priority = self.stored_largest_priority(state)
        leaves = stored_array(state, "leaves", np.float64, self._tree.n_leaves)
        bound = largest_priority**self.alpha * (1 + 1e-9)  # powers round
        fit = bool(((leaves >= 0) & (leaves <= bound)).all())
        require(fit, f"stored leaves must be in [0, {bound}], largest_priority^alpha", leaves)
        if self._tree.total > 0:
            self._tree.clear()
        self._tree.set(np.arange(len(leaves)), leaves)
        self.largest_priority = largest_priority

    def probabilities(self, slots: IntArray) -> FloatArray:
        """P(i) of slots, shape (n,): the chance of a single draw; 0 while nothing is inserted."""
        return self._tree.get(slots) / (self._tree.total or 1.0)

    def draw(self, scheme: Scheme, batch_size: int, uniforms: FloatArray) -> Draw:
        """Draw slots in O(B log n_slots)."""
        return scheme.draw(self._tree, batch_size, uniforms)
