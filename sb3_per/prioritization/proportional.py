"""Priorities from TD errors: proportional (Schaul et al. 2016) and LAP (Fujimoto et al. 2020)."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike

from sb3_per._utils import kernel, require_number
from sb3_per.options import LARGEST_TD_ERROR, SMALLEST
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, SumTree

DEFAULT_EPS = 1e-6


class Prioritization(Protocol):
    """
    Decides how often each slot is sampled. It knows slots and TD errors, but not transitions.

    Invariant: a slot has a probability above 0 from ``insert`` until ``remove`` or ``clear``, and
    exactly 0 otherwise. The caller has checked the arguments: slots in range, TD errors finite,
    ``update`` only for inserted slots.

    A class of your own is called with the number of slots, the options that all prioritizations
    share (``alpha``, ``eps``, ``td_error_clip``, ``initial_priority``, ``new_priority``) and
    ``prioritization_kwargs``. In place of ``tree`` and ``slots_at`` it may have a method
    ``sample(scheme, batch_size, uniforms, *, with_smallest)`` that returns ``SampledSlots``; see
    ``SamplingScheme.sample`` for the arguments.
    """

    tree: SumTree  # its leaves are sampled

    @property
    def largest_priority(self) -> float:
        """Return the largest priority since the last ``clear``, including the initial priority."""

    def insert(self, slots: IntArray) -> None:
        """Insert new transitions, shape (n,), whose TD errors are not known yet."""

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """Set priorities from TD errors, both (B,); if a slot occurs twice, the last one counts."""

    def remove(self, slots: IntArray) -> None:
        """Keep slots, shape (n,), from being sampled until they are inserted again."""

    def clear(self) -> None:
        """Forget everything; nothing can be sampled."""

    def probabilities(self, slots: IntArray) -> FloatArray:
        """Return P(i) of slots, shape (n,), for one sample; 0 for slots that are not inserted."""

    def slots_at(self, leaves: IntArray) -> IntArray:
        """Return the slots that leaves of the tree, shape (B,), stand for."""

    def state_dict(self) -> dict[str, Any]:
        """Return what ``load_state_dict`` needs: arrays, and values that JSON can hold."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Continue from a state of the same class with the same options.

        :raises ValueError: before anything has changed, for a state that ``state_dict`` cannot have
            returned.
        """


class TDErrorPrioritization:
    """
    Base of the prioritizations by TD error: it computes priorities and keeps the largest one.
    ``Prioritization`` says what their methods do.

    Invariant: ``largest_priority`` is the largest priority given since the last ``clear``,
    including the initial priority. The options are those of ``PrioritizationOptions``, which has
    checked them.
    """

    # Lower bound of priorities.
    floor = 0.0

    def __init__(
        self,
        *,
        alpha: float = 0.6,
        eps: float = DEFAULT_EPS,
        td_error_clip: float | None = None,
        initial_priority: float = 1.0,
        new_priority: Literal["max_seen", "max_stored"] = "max_seen",
    ) -> None:
        self.alpha = float(alpha)
        self.eps = float(eps)
        self.td_error_clip = LARGEST_TD_ERROR if td_error_clip is None else float(td_error_clip)
        self.initial_priority = float(initial_priority)
        self.new_priority = new_priority
        self.largest_priority = self.initial_priority

    def priorities_of(self, td_errors: FloatArray, power: float = 1.0) -> FloatArray:
        """
        Return max(min(abs(TD error), clip) + eps, floor)^power, shape (B,).

        The call updates ``largest_priority``.
        """
        powers = np.empty(len(td_errors))
        largest = _priorities(td_errors, self.td_error_clip, self.eps, self.floor, power, powers)
        self.largest_priority = max(self.largest_priority, largest)
        return powers

    def stored_largest_priority(self, state: Mapping[str, Any]) -> float:
        """Return the largest priority of a stored state, or raise ValueError."""
        value: Any = state.get("largest_priority")
        high = max(self.initial_priority, 2 * LARGEST_TD_ERROR)
        require_number("stored largest_priority", value, self.initial_priority, high)
        return float(value)


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
        self._new_weight = np.zeros(1)  # kept, since a new array takes longer than the insertion

    def insert(self, slots: IntArray) -> None:
        """Insert new transitions with the largest priority, so that they are sampled soon."""
        weight = self.largest_priority**self.alpha
        if self.new_priority == "max_stored":
            weight = self.tree.largest() or self.initial_priority**self.alpha
        self._new_weight[0] = weight
        self.tree.set(slots, self._new_weight)

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        self.tree.set(slots, self.priorities_of(td_errors, self.alpha))

    def remove(self, slots: IntArray) -> None:
        self.tree.set(slots, np.zeros(1))

    def clear(self) -> None:
        self.tree.clear()
        self.largest_priority = self.initial_priority

    def probabilities(self, slots: IntArray) -> FloatArray:
        return self.tree.get(slots) / (self.tree.total or 1.0)

    def slots_at(self, leaves: IntArray) -> IntArray:
        return leaves

    def state_dict(self) -> dict[str, Any]:
        leaves = np.trim_zeros(self.tree.leaf_weights, "b")
        return {"largest_priority": self.largest_priority, "leaves": leaves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        largest_priority = self.stored_largest_priority(state)
        leaves = stored_array(state, "leaves", np.float64, self.tree.n_leaves)
        bound = largest_priority**self.alpha * (1 + 1e-9)  # powers round
        if not ((leaves >= 0) & (leaves <= bound)).all():
            raise ValueError(f"stored leaves must lie in [0, {bound}], got {leaves}")
        self.tree.clear()
        self.tree.set(np.arange(len(leaves)), leaves)
        self.largest_priority = largest_priority


class LossAdjusted(Proportional):
    """
    LAP, loss-adjusted prioritized replay (Fujimoto et al. 2020, https://arxiv.org/abs/2007.06049,
    section 4): the priority is max(abs(TD error), threshold).

    LAP needs a Huber loss with the same threshold, which all algorithms without quantiles choose by
    themselves, and no correction (beta 0). While abs(TD error) is below the threshold, the loss is
    quadratic and sampling is uniform; above it, the loss is linear and sampling is prioritized. The
    paper uses alpha 0.4.

    :param threshold: Lower bound of priorities, and the threshold of the loss, > 0.
    :param options: As for ``Proportional``. ``eps`` has no effect here, so any value except the
        default raises an error. ``td_error_clip`` must be above the threshold.
    """

    def __init__(self, n_slots: int, *, threshold: float = 1.0, **options: Any) -> None:
        refuse_eps("lap", options)
        require_number("threshold", threshold, SMALLEST, LARGEST_TD_ERROR)
        clip = options.get("td_error_clip")
        if clip is not None and clip <= threshold:
            rule = f"td_error_clip must be above LAP's threshold {threshold}, or left out"
            raise ValueError(f"{rule}, got {clip}")
        initial_priority = max(threshold, options.get("initial_priority", 1.0))
        options |= {"initial_priority": initial_priority, "eps": 0.0}
        super().__init__(n_slots, **options)
        self.floor = float(threshold)


def refuse_eps(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an ``eps`` that would have no effect."""
    eps = options.get("eps", DEFAULT_EPS)
    if eps != DEFAULT_EPS:
        rule = (
            f"eps must stay at {DEFAULT_EPS} with prioritization={name!r}, where it has no effect"
        )
        raise ValueError(f"{rule}, got {eps}")


def stored_array(state: Mapping[str, Any], name: str, dtype: DTypeLike, most: int) -> Any:
    """Return a stored array of at most so many numbers; kernels read it without checks."""
    array: Any = state.get(name)
    is_array = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == 1
    if not is_array or len(array) > most:
        rule = f"stored {name} must be at most {most} numbers of type {np.dtype(dtype)} on one axis"
        raise ValueError(f"{rule}, got {array!r}")
    return array


@kernel
def _priorities(
    td_errors: FloatArray, clip: float, eps: float, floor: float, power: float, powers: FloatArray
) -> float:
    """Fill in the powers of priorities, and return the largest priority."""
    largest = 0.0
    for i in range(len(td_errors)):
        priority = max(min(abs(td_errors[i]), clip) + eps, floor)
        largest = max(largest, priority)
        powers[i] = priority if power == 1.0 else priority**power
    return largest
