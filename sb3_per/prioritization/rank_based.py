"""Rank-based prioritization: P(i) = rank(i)^-alpha / sum of k^-alpha over all ranks k."""

from typing import Any

import numpy as np

from sb3_per.prioritization.base import DEFAULT_EPS, ByTDError
from sb3_per.prioritization.ranking import OrderedSlots
from sb3_per.prioritization.sampling import Draw, Scheme
from sb3_per.prioritization.stored_state import stored_array
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, SumTree
from sb3_per.rules import require


class RankBased(ByTDError):
    """
    Rank-based prioritization with the exact ranks of what is stored (Schaul et al. 2016, section
    3.3). Rank 1 is the largest priority; of equal ones, the one given last.

    Invariant: leaf r - 1 of the tree holds r^-alpha for each rank r that is taken, and exactly 0
    for the others. So the tree draws ranks, and the order of the slots turns them into slots.

    :param n_slots: Number of slots.
    :param track_smallest: Whether draws also tell the smallest probability of all.
    :param options: As for ``ByTDError``. ``eps`` has to be left alone: added to all priorities, it
        changes no rank. TD errors beyond ``td_error_clip`` tie.
    """

    def __init__(self, n_slots: int, *, track_smallest: bool = False, **options: Any) -> None:
        super().__init__(**options)
        rule = f"eps must stay at {DEFAULT_EPS} with rank-based prioritization: it changes no rank"
        require(self.eps == DEFAULT_EPS, rule, self.eps)
        self._order = OrderedSlots(n_slots)
        self._tree = SumTree(n_slots, track_extremes=track_smallest)

    def insert(self, slots: IntArray) -> None:
        """Let new transitions in at rank 1, so that their TD errors are soon known."""
        n_before, priority = len(self._order), self.largest_priority
        if self.new_priority == "max_stored":
            priority = self._order.largest_priority if n_before else self.initial_priority
        self._order.place(slots, np.full(len(slots), priority))
        if len(self._order) > n_before:  # else newer transitions took the places of older ones
            ranks = np.arange(n_before, len(self._order))
            self._tree.set(ranks, np.power(ranks + 1.0, -self.alpha, dtype=np.float64))

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """Take in TD errors of inserted slots; of a slot named twice the last one counts."""
        self._order.place(slots, self.priorities_of(td_errors))

    def remove(self, slots: IntArray) -> None:
        """Bar slots from being drawn until they are inserted again."""
        n_before = len(self._order)
        self._order.remove(slots)
        ranks = np.arange(len(self._order), n_before)
        self._tree.set(ranks, np.zeros(len(ranks)))

    def clear(self) -> None:
        """Forget all priorities, the largest one included."""
        self._order.clear()
        self._tree.clear()
        self.largest_priority = self.initial_priority

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs to draw the same: slots by rank, their priorities and leaves."""
        slots, priorities = self._order.entries()
        return {
            "largest_priority": self.largest_priority,
            "slots": slots,
            "priorities": priorities,
            # Not to be worked out anew: for many ranks at once NumPy's power rounds otherwise.
            "leaves": self._tree.leaf_weights[: len(slots)],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """
        Go on from a state of the same class with the same options.

        :raises ValueError: before anything has changed, for slots, priorities or leaves that
            ``state`` cannot have given.
        """
        largest_priority = self.stored_largest_priority(state)
        n_slots = self._tree.n_leaves
        slots = stored_array(state, "slots", np.int64, n_slots)
        priorities = stored_array(state, "priorities", np.float64, n_slots)
        leaves = stored_array(state, "leaves", np.float64, n_slots)
        expected = np.arange(1.0, len(slots) + 1) ** -self.alpha
        fit = len(leaves) == len(slots) and np.allclose(leaves, expected, rtol=1e-12, atol=0)
        require(fit, f"stored leaves must be rank^-{self.alpha} for {len(slots)} ranks", leaves)
        rule = f"stored priorities must be in (0, {largest_priority}], as largest_priority says"
        ends = priorities[[0, -1]] if len(priorities) else np.ones(0)  # of what has to be in order
        require(bool(((ends > 0) & (ends <= largest_priority)).all()), rule, ends)
        self._order.restore(slots, priorities)
        if self._tree.total > 0:
            self._tree.clear()
        self._tree.set(np.arange(len(slots)), leaves)
        self.largest_priority = largest_priority

    def probabilities(self, slots: IntArray) -> FloatArray:
        """P(i) of slots, shape (n,): the chance of a single draw; 0 while nothing is inserted."""
        ranks = self._order.ranks(slots)
        return np.where(ranks >= 0, self._tree.get(ranks), 0.0) / (self._tree.total or 1.0)

    def draw(self, scheme: Scheme, batch_size: int, uniforms: FloatArray) -> Draw:
        """Draw slots in O(B log n_slots)."""
        ranks, probabilities, smallest = scheme.draw(self._tree, batch_size, uniforms)
        return Draw(self._order.at(ranks), probabilities, smallest)
