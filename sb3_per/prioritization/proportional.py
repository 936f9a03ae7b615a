"""Proportional prioritization: P(i) = p_i^alpha / sum of p_k^alpha."""

from typing import Any

import numpy as np

from sb3_per.prioritization.base import TDErrorPrioritization
from sb3_per.prioritization.sampling import SampledSlots, SamplingScheme
from sb3_per.prioritization.stored_state import stored_array
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, SumTree
from sb3_per.rules import require


class Proportional(TDErrorPrioritization):
    """
    Proportional prioritization on a sum tree (Schaul et al. 2016, section 3.3).

    Invariant: the leaf of an inserted slot holds priority^alpha, and every other leaf exactly 0.

    :param n_slots: Number of slots.
    :param options: As for ``TDErrorPrioritization``.
    """

    def __init__(self, n_slots: int, **options: Any) -> None:
        super().__init__(**options)
        self._tree = SumTree(n_slots)

    def insert(self, slots: IntArray) -> None:
        """Insert new transitions with the largest priority, so that they are sampled soon."""
        weight = self.largest_priority**self.alpha
        if self.new_priority == "max_stored":
            weight = self._tree.largest() or self.initial_priority**self.alpha
        self._tree.set(slots, np.full(len(slots), weight))

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """Set priorities from TD errors; if a slot occurs twice, the last one counts."""
        self._tree.set(slots, self.priorities_of(td_errors, self.alpha))

    def remove(self, slots: IntArray) -> None:
        """Keep slots from being sampled until they are inserted again."""
        self._tree.set(slots, np.zeros(len(slots)))

    def clear(self) -> None:
        """Forget all priorities, including the largest one."""
        self._tree.clear()
        self.largest_priority = self.initial_priority

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` needs: the leaves up to the last one above 0, as a view."""
        leaves = self._tree.leaf_weights
        inserted = np.flatnonzero(leaves)
        n_leaves = inserted[-1] + 1 if len(inserted) else 0
        return {"largest_priority": self.largest_priority, "leaves": leaves[:n_leaves]}

    def restore(self, state: dict[str, Any]) -> None:
        """
        Continue from a state of the same class with the same options.

        :raises ValueError: before anything has changed, for too many leaves, leaves out of range,
            and an impossible largest priority.
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
        """Return P(i) of slots, shape (n,), for one sample; 0 for slots that are not inserted."""
        return self._tree.get(slots) / (self._tree.total or 1.0)

    def sample(
        self,
        scheme: SamplingScheme,
        batch_size: int,
        uniforms: FloatArray,
        *,
        with_smallest: bool = False,
    ) -> SampledSlots:
        """Sample slots in O(B log n_slots)."""
        return scheme.sample(self._tree, batch_size, uniforms, with_smallest=with_smallest)
