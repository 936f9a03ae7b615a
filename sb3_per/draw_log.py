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
    error is awaited, until that error comes or the slot is drawn again.

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
        self._states[slots] = _AWAITED

    def overwrite(self, slots: IntArray) -> None:
        """Something new is put into slots, shape (n,)."""
        states = self._states[slots]
        self._states[slots] = np.where(states == _AWAITED, _OVERWRITTEN, states)

    def settle(self, slots: IntArray) -> NDArray[np.bool_]:
        """TD errors of slots, shape (B,), have come; returns which of them came in time."""
        return _settle(self._states, slots)


@njit(cache=True)
def _settle(states: NDArray[np.int8], slots: IntArray) -> NDArray[np.bool_]:
    in_time = np.empty(len(slots), dtype=np.bool_)
    for i in range(len(slots)):
        in_time[i] = states[slots[i]] != _OVERWRITTEN
    for i in range(len(slots)):
        states[slots[i]] = _SETTLED
    return in_time


@cache
def compile_kernels() -> None:
    """Compile now, or load from numba's cache, so that no later call has to wait."""
    _settle(np.zeros(1, dtype=np.int8), np.zeros(1, dtype=np.int64))
