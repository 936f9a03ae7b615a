"""Proportional prioritization (Schaul et al. 2016), and LAP (Fujimoto et al. 2020)."""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_per.options import require_positive
from sb3_per.prioritization.base import TDErrorPrioritization
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, SumTree

NOTHING = np.zeros(1)  # the mass of slots that cannot be sampled


class Proportional(TDErrorPrioritization):
    """
    Proportional prioritization on a sum tree: P(i) = p_i^alpha / sum of p_k^alpha (Schaul et al.
    2016, section 3.3).

    Invariant: the leaf of an inserted slot holds priority^alpha, and every other leaf exactly 0.

    :param options: As for ``TDErrorPrioritization``.
    """

    def __init__(self, n_slots: int, **options: Any) -> None:
        super().__init__(**options)
        self.tree = SumTree(n_slots)
        self._new_mass = np.zeros(1)  # kept, since a new array takes half as long as the insertion

    def insert(self, slots: IntArray) -> None:
        """Insert new transitions with the largest priority, so that they are sampled soon."""
        mass = self.largest_priority**self.alpha
        if self.new_priority == "max_stored":
            mass = self.tree.largest() or self.initial_priority**self.alpha
        self._new_mass[0] = mass
        self.tree.set(slots, self._new_mass)

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        self.tree.set(slots, self.priorities_of(td_errors, self.alpha))

    def remove(self, slots: IntArray) -> None:
        self.tree.set(slots, NOTHING)

    def clear(self) -> None:
        self.tree.clear()
        self.largest_priority = self.initial_priority

    def probabilities(self, slots: IntArray) -> FloatArray:
        return self.tree.get(slots) / (self.tree.total or 1.0)

    def entries(self) -> tuple[IntArray, FloatArray, float]:
        slots = np.flatnonzero(self.tree.leaf_masses)
        return slots, self.tree.get(slots), self.largest_priority

    def restore(self, slots: IntArray, values: FloatArray, largest: float) -> None:
        self.tree.clear()
        self.tree.set(slots, values)
        self.largest_priority = largest


class LossAdjusted(Proportional):
    """
    LAP, loss-adjusted prioritized replay (Fujimoto et al. 2020, https://arxiv.org/abs/2007.06049,
    section 4): the priority is max(abs(TD error), threshold).

    LAP needs a Huber loss with the same threshold, which all algorithms choose by themselves except
    those with quantiles or distributions, and no correction (beta 0). While abs(TD error) is below
    the threshold, the loss is quadratic and sampling is uniform; above it, the loss is linear and
    sampling is prioritized. The paper uses alpha 0.4.

    :param threshold: Lower bound of priorities, and the threshold of the loss, > 0.
    :param options: As for ``Proportional``. ``eps`` has no effect here. ``td_error_clip`` must be
        above the threshold.
    """

    def __init__(self, n_slots: int, *, threshold: float = 1.0, **options: Any) -> None:
        require_positive("threshold", threshold)
        clip = options.get("td_error_clip")
        if clip is not None and clip <= threshold:
            raise ValueError(
                f"td_error_clip must be above LAP's threshold {threshold}, or left out, got {clip}"
            )
        initial_priority = max(threshold, options.get("initial_priority", 1.0))
        options |= {"initial_priority": initial_priority, "eps": 0.0}
        super().__init__(n_slots, **options)
        self.floor = self.loss_threshold = float(threshold)
