"""Rank-based prioritization: P(i) = rank(i)^-alpha / sum of k^-alpha over all ranks k."""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_per.prioritization.base import TDErrorPrioritization
from sb3_per.prioritization.ranking import Ranking
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, SumTree


class RankBased(TDErrorPrioritization):
    """
    Rank-based prioritization with the exact ranks of what is stored (Schaul et al. 2016, section
    3.3). Rank 1 is the largest priority; among equal priorities, the one given last comes first.

    Invariant: leaf r - 1 of the tree holds r^-alpha for each rank r in use, and exactly 0 for the
    others. So ranks are sampled from the tree, and the ranking turns them into slots.

    :param options: As for ``TDErrorPrioritization``. ``eps`` cannot affect ranks. TD errors beyond
        ``td_error_clip`` tie.
    """

    def __init__(self, n_slots: int, **options: Any) -> None:
        super().__init__(**options)
        self._order = Ranking(n_slots)
        self.tree = SumTree(n_slots)
        self._n_ranks = 0  # how many ranks have a mass
        self._new_priority = np.zeros(1)  # kept, since a new array takes time at each insertion

    def _set_ranks(self, n_ranks: int) -> None:
        """Give the first ranks their masses, and 0 to the others."""
        n_before, self._n_ranks = self._n_ranks, -1
        # All of them if Ctrl-C has stopped the last call; else those that come or go.
        bounds = (0, self.tree.n_leaves) if n_before < 0 else sorted((n_before, n_ranks))
        ranks = np.arange(*bounds)
        masses = np.where(ranks < n_ranks, (ranks + 1.0) ** -self.alpha, 0.0)
        self.tree.set(ranks, masses)
        self._n_ranks = n_ranks

    def insert(self, slots: IntArray) -> None:
        """Insert new transitions at rank 1, so that they are sampled soon."""
        priority = self.largest_priority
        if self.new_priority == "max_stored":
            priority = self._order.largest_priority if len(self._order) else self.initial_priority
        self._new_priority[0] = priority
        self._order.place(slots, self._new_priority)
        n_ranks = len(self._order)
        if n_ranks != self._n_ranks:  # not in a full buffer
            self._set_ranks(n_ranks)

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        self._order.place(slots, self.priorities_of(td_errors))

    def remove(self, slots: IntArray) -> None:
        # First the masses: another thread must not sample a rank that nothing has.
        self._set_ranks(len(self._order) - self._order.count(slots))
        self._order.remove(slots)

    def clear(self) -> None:
        self._set_ranks(0)
        self._order.clear()
        self.largest_priority = self.initial_priority

    def probabilities(self, slots: IntArray) -> FloatArray:
        ranks = self._order.ranks(slots)
        return np.where(ranks >= 0, self.tree.get(ranks), 0.0) / (self.tree.total or 1.0)

    def slots_at(self, leaves: IntArray) -> IntArray:
        return self._order.at(leaves)

    def leaves_of(self, slots: IntArray) -> IntArray:
        return self._order.ranks(slots)

    def entries(self) -> tuple[IntArray, FloatArray, float]:
        return *self._order.entries(), self.largest_priority

    def restore(self, slots: IntArray, values: FloatArray, largest: float) -> None:
        self.clear()
        self._order.restore(slots, values)
        self._set_ranks(len(slots))
        self.largest_priority = largest
