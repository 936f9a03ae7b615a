"""Which drawn slots wait for their TD errors, and which of them were overwritten meanwhile."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.sum_tree import IntArray

# Of a slot that n TD errors are awaited for: 2 n - 1, and 2 n once it was overwritten; else 0.
_MOST = 125  # of how many errors one byte knows: 63


class DrawLog:
    """
    Tells a TD error of what a slot holds from one of what it held when it was drawn.

    Invariant: a slot is overwritten from the moment that something new is put into it while TD
    errors are awaited, until as many have come or the slot is drawn again. That a draw starts the
    count anew keeps it from waiting for ever for the errors of batches that nobody learned from.

    :param n_slots: Number of slots.
    """

    def __init__(self, n_slots: int) -> None:
        compile_kernels()
        self._states = np.zeros(n_slots, dtype=np.int8)

    @property
    def states(self) -> NDArray[np.int8]:
        """What is known of every slot, shape (n_slots,), to be stored and put back as it is."""
        return self._states

    def draw(self, slots: IntArray) -> None:
        """Slots, shape (B,), are drawn; each as often as it is named."""
        _await(self._states, slots)

    def overwrite(self, slots: IntArray) -> None:
        """Something new is put into slots, shape (n,)."""
        _overwrite(self._states, slots)

    def are_late(self, slots: IntArray) -> NDArray[np.bool_]:
        """Which slots, shape (B,), were overwritten while TD errors were awaited; any numbers."""
        known = (slots >= 0) & (slots < len(self._states))
        states = self._states[slots * known]
        late: NDArray[np.bool_] = known & (states > 0) & (states % 2 == 0)
        return late

    def settle(self, slots: IntArray) -> tuple[NDArray[np.bool_], int]:
        """TD errors of slots, shape (B,), have come; returns which in time, and how many late."""
        in_time, n_late = _settle(self._states, slots)
        return in_time, n_late


@kernel
def _await(states: NDArray[np.int8], slots: IntArray) -> None:
    for i in range(len(slots)):
        state = states[slots[i]]
        states[slots[i]] = min(state + 2, _MOST) if state & 1 else 1


@kernel
def _overwrite(states: NDArray[np.int8], slots: IntArray) -> None:
    for i in range(len(slots)):
        if states[slots[i]] & 1:
            states[slots[i]] += 1


@kernel
def _settle(states: NDArray[np.int8], slots: IntArray) -> tuple[NDArray[np.bool_], int]:
    in_time = np.empty(len(slots), dtype=np.bool_)
    n_late = 0
    for i in range(len(slots)):
        state = states[slots[i]]
        in_time[i] = state == 0 or state & 1 == 1
        n_late += not in_time[i]
    for i in range(len(slots)):
        states[slots[i]] = max(states[slots[i]] - 2, 0)
    return in_time, n_late


@cache
def compile_kernels() -> None:
    """Compile now, or load from numba's cache, so that no later call has to wait."""
    states, slots = np.zeros(1, dtype=np.int8), np.zeros(1, dtype=np.int64)
    _await(states, slots)
    _overwrite(states, slots)
    _settle(states, slots)
