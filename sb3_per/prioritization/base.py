"""The protocol that every prioritization obeys, and the formulas they share."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.sampling import Draw, Scheme
from sb3_per.prioritization.stored_state import stored_number
from sb3_per.prioritization.sum_tree import FloatArray, IntArray
from sb3_per.rules import fixed, require, require_fraction, require_positive

# TD errors come from float32 networks. The bound keeps every sum of priorities below what float64
# can hold.
LARGEST_TD_ERROR = float(np.finfo(np.float32).max)

DEFAULT_EPS = 1e-6


class Prioritization(Protocol):
    """
    Who is drawn how often. It knows slots and TD errors, and nothing of what the slots hold.

    Invariant: a slot has a probability above 0 from ``insert`` until ``remove`` or ``clear``, and
    exactly 0 otherwise. The caller has checked the arguments: slots in range, TD errors finite,
    ``update`` only for inserted slots.
    """

    @property
    def largest_priority(self) -> float:
        """Largest priority seen since the last ``clear``, the initial priority included."""

    def insert(self, slots: IntArray) -> None:
        """
        Let new transitions in, shape (n,), whose TD errors are not known yet. Those that were added
        since the last draw or update come together.
        """

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """Take in TD errors, both of shape (B,); of a slot named twice the last one counts."""

    def remove(self, slots: IntArray) -> None:
        """Bar slots, shape (n,), from being drawn until they are inserted again."""

    def clear(self) -> None:
        """Forget everything; nothing can be drawn."""

    def probabilities(self, slots: IntArray) -> FloatArray:
        """P(i) of slots, shape (n,): the chance of a single draw; 0 while nothing is inserted."""

    def draw(self, scheme: Scheme, batch_size: int, uniforms: FloatArray) -> Draw:
        """Draw with random numbers in [0, 1), as many as ``scheme.n_uniforms(batch_size)``."""


class ByTDError:
    """
    What the prioritizations by TD error share: the priority of a TD error, and of a transition
    that has none yet.

    Invariant: ``largest_priority`` is the largest priority given since the last ``clear``, the
    initial priority included. The options stay what they are: all that is stored came of them.

    :param alpha: How much prioritization, in [0, 1]; 0 draws uniformly.
    :param eps: Added to abs(TD error) so that no transition starves, > 0.
    :param td_error_clip: Upper bound of abs(TD error), before eps; None for no bound.
    :param initial_priority: Priority of the first transitions, > 0.
    :param new_priority: New transitions get the largest priority ever seen (``"max_seen"``, the
        paper's algorithm 1) or the largest of those stored now (``"max_stored"``), the ones that
        they take the places of included.
    """

    alpha: float = fixed("alpha")
    eps: float = fixed("eps")
    td_error_clip: float = fixed("td_error_clip")
    initial_priority: float = fixed("initial_priority")
    new_priority: Literal["max_seen", "max_stored"] = fixed("new_priority")

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
            require_positive(name, value, LARGEST_TD_ERROR, "be positive and finite in float32")
        choices = ("max_seen", "max_stored")
        require(new_priority in choices, f"new_priority must be one of {choices}", new_priority)
        self.alpha = float(alpha)
        self.eps = float(eps)
        self.td_error_clip = float(clip)
        self.initial_priority = float(initial_priority)
        self.new_priority = new_priority
        self.largest_priority = self.initial_priority

    def priorities_of(self, td_errors: FloatArray, power: float = 1.0) -> FloatArray:
        """(min(abs(TD error), clip) + eps)^power, (B,); the largest priority is remembered."""
        powers, largest = _priorities(td_errors, self.td_error_clip, self.eps, power)
        self.largest_priority = max(self.largest_priority, largest)
        return powers

    def stored_largest_priority(self, state: Mapping[str, Any]) -> float:
        """
        Return the largest priority of a stored state.

        :raises ValueError: for one that no TD error can have led to.
        """
        high = max(self.initial_priority, 2 * LARGEST_TD_ERROR)
        return stored_number(state, "largest_priority", self.initial_priority, high)


@kernel
def _priorities(
    td_errors: FloatArray, clip: float, eps: float, power: float
) -> tuple[FloatArray, float]:
    powers = np.empty(len(td_errors))
    largest = 0.0
    for i in range(len(td_errors)):
        priority = min(abs(td_errors[i]), clip) + eps
        largest = max(largest, priority)
        powers[i] = priority if power == 1.0 else priority**power
    return powers, largest


@kernel
def first_bad_update(slots: IntArray, td_errors: FloatArray, n_stored: int) -> int:
    """Position of the first slot out of range or TD error that is not finite in float32, or -1."""
    for i in range(len(slots)):
        if not (0 <= slots[i] < n_stored and abs(td_errors[i]) <= LARGEST_TD_ERROR):
            return i
    return -1


@kernel
def importance_weights(
    probabilities: FloatArray, reference: float, beta: float
) -> NDArray[np.float32]:
    """
    Importance-sampling weights (N * P)^-beta over that of a reference (Schaul et al. 2016, section
    3.4): (reference / P)^beta.

    :param probabilities: P(i) of each drawn slot, shape (B,), all > 0.
    :param reference: The probability that weighs 1: the smallest one to normalise by the largest
        weight, 1 / N not to normalise.
    :param beta: 0 for no correction, 1 for full correction.
    :return: Weights, shape (B, 1).
    """
    weights = np.empty((len(probabilities), 1), dtype=np.float32)
    for i in range(len(probabilities)):
        weights[i, 0] = (reference / probabilities[i]) ** beta
    return weights


@kernel
def smallest(probabilities: FloatArray) -> float:
    """The least of some probabilities, shape (B,); NumPy's own takes three times as long."""
    least = np.inf
    for i in range(len(probabilities)):
        least = min(least, probabilities[i])
    return least


@cache
def compile_kernels() -> None:
    """Compile now, or load from numba's cache, so that no later call has to wait."""
    _priorities(np.zeros(1), 1.0, 1.0, 1.0)
    importance_weights(np.ones(1), 1.0, 1.0)
    smallest(np.ones(1))
    first_bad_update(np.zeros(1, dtype=np.int64), np.zeros(1), 1)
