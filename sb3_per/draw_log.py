"""Which drawn slots wait for their TD errors, and which of them were overwritten meanwhile."""

from functools import cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sb3_per.sum_tree import IntArray

_SETTLED, _AWAITED, _OVERWRITTEN = 0, 1, 2


class DrawLog:
    """
    Tells a TD error of what a slot holds from one of what it held when it was drawn.

    Invariant: a slot is overwritten from the moment that something new is put into it while a TD
    error is awaited, until that error comes or the slot is drawn again. One word a slot is exact
    where draws and TD errors alternate; counting draws instead would have to wait for ever for
    the errors of batches that nobody learned from.

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
        """Slots, shape (B,), are drawn."""
        _await(self._states, slots)

    def overwrite(self, slots: IntArray) -> None:
        """Something new is put into slots, shape (n,)."""
        _overwrite(self._states, slots)

    def are_late(self, slots: IntArray) -> NDArray[np.bool_]:
        """Which slots, shape (B,), were overwritten while TD errors were awaited; any numbers."""
        known = (slots >= 0) & (slots < len(self._states))
        late: NDArray[np.bool_] = known & (self._states[slots * known] == _OVERWRITTEN)
        return late

    def settle(self, slots: IntArray) -> tuple[NDArray[np.bool_], int]:
        """TD errors of slots, shape (B,), have come; returns which in time, and how many late."""
        in_time, n_late = _settle(self._states, slots)
        return in_time, n_late


@njit(cache=True)
def _await(states: NDArray[np.int8], slots: IntArray) -> None:
    for i in range(len(slots)):
        states[slots[i]] = _AWAITED


@njit(cache=True)
def _overwrite(states: NDArray[np.int8], slots: IntArray) -> None:
    for i in range(len(slots)):
        if states[slots[i]] == _AWAITED:
            states[slots[i]] = _OVERWRITTEN


@njit(cache=True)
def _settle(states: NDArray[np.int8], slots: IntArray) -> tuple[NDArray[np.bool_], int]:
    in_time = np.empty(len(slots), dtype=np.bool_)
    n_late = 0
    for i in range(len(slots)):
        in_time[i] = states[slots[i]] != _OVERWRITTEN
        n_late += not in_time[i]
    for i in range(len(slots)):
        states[slots[i]] = _SETTLED
    return in_time, n_late


@cache
def compile_kernels() -> None:
    """Compile now, or load from numba's cache, so that no later call has to wait."""
    states, slots = np.zeros(1, dtype=np.int8), np.zeros(1, dtype=np.int64)
    _await(states, slots)
    _overwrite(states, slots)
    _settle(states, slots)
