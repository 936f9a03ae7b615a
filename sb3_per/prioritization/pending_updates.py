"""Which slots hold a transition that can be sampled, and which sampled slots await TD errors."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.sum_tree import IntArray

# One signed byte for each slot, so that a million slots cost 1 MB. The byte is the bitwise
# complement of the numbers below, so that zeros mean empty slots: an array of zeros takes no memory
# before it is written.
#   0                 inserted, and no TD error is awaited
#   2 n - 1 (odd)     inserted, and n TD errors are awaited
#   2 n (even, > 0)   inserted, and n TD errors are awaited that belong to what was there before
#   -1 - 2 n          not inserted, and n TD errors are awaited that belong to what was there before
MAX_STATE = 125  # 63 awaited TD errors; more are not counted


def are_states(states: NDArray[np.int8]) -> bool:
    """Return whether all numbers, shape (n,), are states of the table above."""
    in_range = (~states >= -2 - MAX_STATE) & (~states <= MAX_STATE + 1)
    return bool((in_range & ((~states >= 0) | (~states % 2 == 1))).all())


def states_of_0_1_0(states: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return states of version 0.1.0, which do not say what is inserted, in today's form."""
    return ~states


class PendingUpdates:
    """
    Finds TD errors that come late: their transition was replaced after it was sampled.

    Invariant: if a transition is replaced or removed while its slot awaits n TD errors, the next n
    TD errors of the slot are late, unless the slot is sampled again before. Sampling restarts the
    count, so TD errors that never come cannot block a slot.

    :param n_slots: Number of slots.
    """

    def __init__(self, n_slots: int) -> None:
        compile_kernels()
        self._states = np.zeros(n_slots, dtype=np.int8)

    @property
    def states(self) -> NDArray[np.int8]:
        """Return the state of every slot, shape (n_slots,), to be stored and restored as it is."""
        return self._states

    def insert(self, slots: IntArray) -> int:
        """Note new transitions in slots, shape (n,); return how many of the slots were empty."""
        return int(_insert(self._states, slots))

    def remove(self, slots: IntArray) -> int:
        """Note that slots, shape (n,), cannot be sampled; return how many of them could be."""
        return int(_remove(self._states, slots))

    def sample(self, slots: IntArray) -> None:
        """Note that slots, shape (B,), were sampled, each as often as it is named."""
        _sample(self._states, slots)

    def are_inserted(self, slots: IntArray) -> NDArray[np.bool_]:
        """Return which slots, shape (n,), hold a transition that can be sampled."""
        inserted: NDArray[np.bool_] = ~self._states[slots] >= 0
        return inserted

    def are_late(self, slots: IntArray) -> NDArray[np.bool_]:
        """Return which slots, shape (B,), await late TD errors; any whole numbers are allowed."""
        known = (slots >= 0) & (slots < len(self._states))
        states = ~self._states[slots * known]
        late: NDArray[np.bool_] = known & ((states < -1) | ((states > 0) & (states % 2 == 0)))
        return late

    def settle(self, slots: IntArray) -> tuple[NDArray[np.bool_], int]:
        """
        Note that TD errors of slots, shape (B,), have come.

        :return: Which TD errors count, shape (B,), and how many do not count: they are late, or
            their slot is not inserted.
        """
        in_time = np.empty(len(slots), dtype=np.bool_)
        return in_time, _settle(self._states, slots, in_time)


@kernel
def _insert(states: NDArray[np.int8], slots: IntArray) -> int:
    n_empty = 0
    for i in range(len(slots)):
        state = ~states[slots[i]]
        if state < 0:
            states[slots[i]] = ~(-1 - state)
            n_empty += 1
        elif state & 1:
            states[slots[i]] = ~(state + 1)
    return n_empty


@kernel
def _remove(states: NDArray[np.int8], slots: IntArray) -> int:
    n_inserted = 0
    for i in range(len(slots)):
        state = ~states[slots[i]]
        if state >= 0:
            states[slots[i]] = ~(-1 - (state + (state & 1)))
            n_inserted += 1
    return n_inserted


@kernel
def _sample(states: NDArray[np.int8], slots: IntArray) -> None:
    for i in range(len(slots)):
        state = ~states[slots[i]]
        states[slots[i]] = ~(min(state + 2, MAX_STATE) if state & 1 else 1)


@kernel
def _settle(states: NDArray[np.int8], slots: IntArray, in_time: NDArray[np.bool_]) -> int:
    """Fill in which TD errors are in time, and return how many are not."""
    n_late = 0
    for i in range(len(slots)):
        state = ~states[slots[i]]
        in_time[i] = state == 0 or (state > 0 and state & 1 == 1)
        n_late += not in_time[i]
    # A second pass, so that both TD errors of a slot that is named twice are in time.
    for i in range(len(slots)):
        state = ~states[slots[i]]
        states[slots[i]] = ~(max(state - 2, 0) if state >= 0 else min(state + 2, -1))
    return n_late


@cache
def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, so that no later call waits."""
    states, slots = np.zeros(1, dtype=np.int8), np.zeros(1, dtype=np.int64)
    _insert(states, slots)
    _remove(states, slots)
    _sample(states, slots)
    _settle(states, slots, np.zeros(1, dtype=np.bool_))
