"""Rank-based prioritization: P(i) = rank(i)^-alpha / sum of k^-alpha over all ranks k."""

from typing import Any

import numpy as np

from sb3_per.prioritization.base import DEFAULT_EPS, TDErrorPrioritization
from sb3_per.prioritization.ranking import Ranking
from sb3_per.prioritization.sampling import SampledSlots, SamplingScheme
from sb3_per.prioritization.stored_state import stored_array
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, SumTree
from sb3_per.rules import require


class RankBased(TDErrorPrioritization):
    """
    Rank-based prioritization with the exact ranks of what is stored (Schaul et al. 2016, section
    3.3). Rank 1 is the largest priority; among equal priorities, the one given last comes first.

    Invariant: leaf r - 1 of the tree holds r^-alpha for each rank r in use, and exactly 0 for the
    others. So ranks are sampled from the tree, and the ranking turns them into slots.

    :param n_slots: Number of slots.
    :param options: As for ``TDErrorPrioritization``. ``eps`` cannot affect ranks, so any value
        except the default raises an error. TD errors beyond ``td_error_clip`` tie.
    """

    def __init__(self, n_slots: int, **options: Any) -> None:
        super().__init__(**options)
        rule = f"eps must stay at {DEFAULT_EPS} with prioritization='rank': it cannot affect ranks"
        require(self.eps == DEFAULT_EPS, rule, self.eps)
        self._order = Ranking(n_slots)
        self._tree = SumTree(n_slots)
        self._n_weighted = 0  # how many ranks have a weight

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._n_weighted = state.get("_n_weighted", len(self._order))  # 0.1.0 did not have it

    def _weigh_ranks(self) -> None:
        """Give all ranks in use their weights, and 0 to the others."""
        # From the last call on, which Ctrl-C may have stopped, not from the change of the order.
        n_weighted, n_ranks = self._n_weighted, len(self._order)
        if n_ranks > n_weighted:
            ranks = np.arange(n_weighted, n_ranks)
            self._tree.set(ranks, np.power(ranks + 1.0, -self.alpha, dtype=np.float64))
        elif n_ranks < n_weighted:
            ranks = np.arange(n_ranks, n_weighted)
            self._tree.set(ranks, np.zeros(len(ranks)))
        self._n_weighted = n_ranks

    def insert(self, slots: IntArray) -> None:
        """Insert new transitions at rank 1, so that they are sampled soon."""
        priority = self.largest_priority
        if self.new_priority == "max_stored":
            priority = self._order.largest_priority if len(self._order) else self.initial_priority
        self._order.place(slots, np.full(len(slots), priority))
        self._weigh_ranks()

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """Set priorities from TD errors; if a slot occurs twice, the last one counts."""
        self._order.place(slots, self.priorities_of(td_errors))

    def remove(self, slots: IntArray) -> None:
        """Keep slots from being sampled until they are inserted again."""
        self._order.remove(slots)
        self._weigh_ranks()

    def clear(self) -> None:
        """Forget all priorities, including the largest one."""
        self._order.clear()
        self._tree.clear()
        self._n_weighted = 0
        self.largest_priority = self.initial_priority

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` needs: slots by rank, their priorities and leaves."""
        slots, priorities = self._order.entries()
        return {
            "largest_priority": self.largest_priority,
            "slots": slots,
            "priorities": priorities,
            # Stored, since NumPy's power rounds differently when it computes many ranks at once.
            "leaves": self._tree.leaf_weights[: len(slots)],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """
        Continue from a state of the same class with the same options.

        :raises ValueError: before anything has changed, for slots, priorities or leaves that
            ``state`` cannot have returned.
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
        # The first and the last one, since `Ranking.restore` checks the order.
        ends = priorities[[0, -1]] if len(priorities) else priorities
        require(bool(((ends > 0) & (ends <= largest_priority)).all()), rule, ends)
        self._order.restore(slots, priorities)
        if self._tree.total > 0:
            self._tree.clear()
        self._tree.set(np.arange(len(slots)), leaves)
        self._n_weighted = len(slots)
        self.largest_priority = largest_priority

    def probabilities(self, slots: IntArray) -> FloatArray:
        """Return P(i) of slots, shape (n,), for one sample; 0 for slots that are not inserted."""
        ranks = self._order.ranks(slots)
        return np.where(ranks >= 0, self._tree.get(ranks), 0.0) / (self._tree.total or 1.0)

    def sample(
        self,
        scheme: SamplingScheme,
        batch_size: int,
        uniforms: FloatArray,
        *,
        with_smallest: bool = False,
    ) -> SampledSlots:
        """Sample slots in O(B log n_slots)."""
        ranks, probabilities, smallest = scheme.sample(
            self._tree, batch_size, uniforms, with_smallest=with_smallest
        )
        return SampledSlots(self._order.at(ranks), probabilities, smallest)
