"""The protocol that every prioritization obeys, and what prioritizations by TD error share."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np

from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.sampling import SampledSlots, SamplingScheme
from sb3_per.prioritization.stored_state import stored_number
from sb3_per.prioritization.sum_tree import FloatArray, IntArray
from sb3_per.rules import fixed, require, require_fraction, require_positive

# TD errors come from float32 networks. The bound keeps every sum of priorities below what float64
# can hold.
LARGEST_TD_ERROR = float(np.finfo(np.float32).max)

DEFAULT_EPS = 1e-6


def require_priority(name: str, value: Any) -> None:
    """Raise ValueError unless the value can be a priority: positive, and finite in float32."""
    require_positive(name, value, LARGEST_TD_ERROR, "be positive and finite in float32")


class Prioritization(Protocol):
    """
    Decides how often each slot is sampled. It knows slots and TD errors, but not transitions.

    Invariant: a slot has a probability above 0 from ``insert`` until ``remove`` or ``clear``, and
    exactly 0 otherwise. The caller has checked the arguments: slots in range, TD errors finite,
    ``update`` only for inserted slots.

    A class of your own is called with the number of slots, the options that all prioritizations
    share (``alpha``, ``eps``, ``td_error_clip``, ``initial_priority``, ``new_priority``) and
    ``prioritization_kwargs``.
    """

    @property
    def largest_priority(self) -> float:
        """Return the largest priority since the last ``clear``, including the initial priority."""

    def insert(self, slots: IntArray) -> None:
        """
        Insert new transitions, shape (n,), whose TD errors are not known yet.

        One call inserts all transitions that were added since the last ``sample`` or ``update``;
        with hindsight replay, it inserts an episode that has ended.
        """

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """Set priorities from TD errors, both (B,); if a slot occurs twice, the last one counts."""

    def remove(self, slots: IntArray) -> None:
        """Keep slots, shape (n,), from being sampled until they are inserted again."""

    def clear(self) -> None:
        """Forget everything; nothing can be sampled."""

    def probabilities(self, slots: IntArray) -> FloatArray:
        """Return P(i) of slots, shape (n,), for one sample; 0 for slots that are not inserted."""

    def sample(
        self,
        scheme: SamplingScheme,
        batch_size: int,
        uniforms: FloatArray,
        *,
        with_smallest: bool = False,
    ) -> SampledSlots:
        """
        Sample slots.

        :param scheme: How the samples of a batch depend on each other.
        :param batch_size: B, at least 1.
        :param uniforms: Random numbers in [0, 1), shape (scheme.n_uniforms(B),).
        :param with_smallest: Whether to find the smallest probability of all slots as well.
        """

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` needs: arrays, and values that JSON can hold."""

    def restore(self, state: dict[str, Any]) -> None:
        """
        Continue from a state of the same class with the same options.

        :raises ValueError: before anything has changed, for a state that ``state`` cannot have
            returned.
        """


class TDErrorPrioritization:
    """
    Base of the prioritizations by TD error: it computes priorities and keeps the largest one.

    Invariant: ``largest_priority`` is the largest priority given since the last ``clear``,
    including the initial priority. The options cannot change: everything stored depends on them.

    :param alpha: How much prioritization, in [0, 1]; 0 samples uniformly.
    :param eps: Added to abs(TD error) so that every transition can be sampled, > 0.
    :param td_error_clip: Upper bound of abs(TD error), before eps; None for no bound.
    :param initial_priority: Priority of the first transitions, > 0.
    :param new_priority: New transitions get the largest priority ever seen (``"max_seen"``, the
        paper's algorithm 1) or the largest priority stored now (``"max_stored"``). That includes
        the transitions that they replace, except with hindsight replay and memory-optimised
        storage, which remove these first.
    """

    alpha: float = fixed("alpha")
    eps: float = fixed("eps")
    td_error_clip: float = fixed("td_error_clip")
    initial_priority: float = fixed("initial_priority")
    new_priority: Literal["max_seen", "max_stored"] = fixed("new_priority")
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
        compile_kernels()
        clip = LARGEST_TD_ERROR if td_error_clip is None else td_error_clip
        require_fraction("alpha", alpha)
        positive = {"eps": eps, "td_error_clip": clip, "initial_priority": initial_priority}
        for name, value in positive.items():
            require_priority(name, value)
        choices = ("max_seen", "max_stored")
        require(new_priority in choices, f"new_priority must be one of {choices}", new_priority)
        self.alpha = float(alpha)
        self.eps = float(eps)
        self.td_error_clip = float(clip)
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
        """
        Return the largest priority of a stored state.

        :raises ValueError: for a number that cannot be the largest priority.
        """
        high = max(self.initial_priority, 2 * LARGEST_TD_ERROR)
        return stored_number(state, "largest_priority", self.initial_priority, high)


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


@cache
def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, so that no later call waits."""
    _priorities(np.zeros(1), 1.0, 1.0, 0.0, 1.0, np.empty(1))
