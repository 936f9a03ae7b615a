"""What a prioritization is, and the base of those that compute priorities from TD errors."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sb3_per._utils import kernel
from sb3_per.options import LARGEST_TD_ERROR, NewPriority, PrioritizationOptions
from sb3_per.prioritization.sum_tree import FloatArray, IntArray, SumTree


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

    tree: SumTree  # P(i) is the mass of a slot's leaf, divided by the sum of all masses
    # The abs(TD error) at which the loss that it needs turns linear; None for the algorithm's own.
    loss_threshold: float | None

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

    def leaves_of(self, slots: IntArray) -> IntArray:
        """Return the leaves of slots that are inserted, shape (B,)."""

    def entries(self) -> tuple[IntArray, FloatArray, float]:
        """
        Return what a file keeps: inserted slots, a number of each, and ``largest_priority``.

        Slots and numbers have shape (n,). All numbers are above 0, and at most twice the largest
        number of float32.
        """

    def restore(self, slots: IntArray, values: FloatArray, largest: float) -> None:
        """Replace everything by what ``entries`` returned, for a class with the same options."""


class TDErrorPrioritization:
    """
    Base of the prioritizations by TD error: it computes priorities and keeps the largest one.

    ``Prioritization`` explains the methods, ``PrioritizationOptions`` has checked the options.
    """

    # Lower bound of priorities.
    floor = 0.0
    loss_threshold: float | None = None

    def __init__(
        self,
        *,
        alpha: float = PrioritizationOptions.alpha,
        eps: float = PrioritizationOptions.eps,
        td_error_clip: float | None = PrioritizationOptions.td_error_clip,
        initial_priority: float = PrioritizationOptions.initial_priority,
        new_priority: NewPriority = PrioritizationOptions.new_priority,
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

    def slots_at(self, leaves: IntArray) -> IntArray:
        """Return the slots that leaves stand for: the same numbers, unless a class overrides it."""
        return leaves

    def leaves_of(self, slots: IntArray) -> IntArray:
        """Return the leaves of slots: the same numbers, unless a class overrides it."""
        return slots


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
