"""Checks of the buffer's arguments: slots and TD errors (NumPy or torch), and batch sizes."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch as th
from numpy.typing import ArrayLike, NDArray

from sb3_per.prioritization.base import LARGEST_TD_ERROR
from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.sum_tree import FloatArray, IntArray
from sb3_per.rules import require, require_whole

# More than one sample before an update may be intended; this many batches without one hardly are.
BATCHES_BEFORE_WARNING = 10


def as_batch_size(batch_size: int) -> int:
    """
    Return a batch size as an int; NumPy's numbers of 8 bits would overflow.

    :raises ValueError: unless it is a whole number of at least 1.
    """
    if type(batch_size) is not int or batch_size < 1:  # saves a microsecond in the usual case
        require_whole("batch_size", batch_size)
    return int(batch_size)


def as_slots(slots: ArrayLike | th.Tensor) -> IntArray:
    """
    Return slots as int64, shape (B,).

    :param slots: Whole numbers of any width, on any device, shape (B,) or (B, 1).
    :return: The same, shape (B,).
    :raises ValueError: for another shape or numbers that are not whole.
    """
    if isinstance(slots, th.Tensor):
        slots = slots.detach().cpu().numpy()
    array = _flat(np.asarray(slots), "slots")
    if array.dtype == np.int64:
        return array
    require(array.dtype.kind in "iu" or array.size == 0, "slots must be whole numbers", array.dtype)
    return array.astype(np.int64)


def as_td_errors(td_errors: ArrayLike | th.Tensor) -> FloatArray:
    """
    Return TD errors as float64, shape (B,).

    :param td_errors: Numbers of any width, on any device, shape (B,) or (B, 1).
    :return: The same, shape (B,).
    :raises ValueError: for another shape, text, dates and complex numbers.
    """
    if isinstance(td_errors, th.Tensor):
        td_errors = td_errors.detach().cpu()
        # NumPy widens float32 faster than torch, and knows no bfloat16.
        td_errors = (td_errors if td_errors.dtype == th.float32 else td_errors.double()).numpy()
    array = np.asarray(td_errors)
    # NumPy would read numbers from text and dates, and drop the imaginary part.
    require(array.dtype.kind not in "SUMmc", "td_errors must be real numbers", array.dtype)
    return _flat(array.astype(np.float64, copy=False), "td_errors")


def check_update(
    slots: IntArray,
    td_errors: FloatArray,
    n_stored: int,
    are_late: Callable[[IntArray], NDArray[np.bool_]],
) -> None:
    """
    Raise ValueError for an update that cannot be applied.

    :param slots: The slots, shape (B,).
    :param td_errors: The TD errors, shape (B,).
    :param n_stored: How many slots hold a transition: the first ``n_stored`` ones.
    :param are_late: Returns which slots were sampled before the buffer was emptied or overwritten;
        such slots may lie beyond ``n_stored``.
    :raises ValueError: for unequal lengths, a slot that holds nothing, or a TD error that is not
        finite in float32.
    """
    same_length = len(slots) == len(td_errors)
    lengths = f"{len(td_errors)} TD errors, {len(slots)} slots"
    require(same_length, "there must be as many TD errors as slots", lengths)
    first = first_bad_update(slots, td_errors, n_stored)
    if first >= 0 and slots[first] >= n_stored:
        in_time = ~are_late(slots)
        slots, td_errors = slots[in_time], td_errors[in_time]
        first = first_bad_update(slots, td_errors, n_stored)
    if first >= 0:
        slot, td_error = int(slots[first]), td_errors[first]
        is_stored = bool(0 <= slot < n_stored)
        require(
            is_stored, f"a slot must lie in [0, {n_stored}), where transitions are stored", slot
        )
        raise ValueError(
            f"a TD error must be finite in float32, got {td_error} for slot {slot}: either the "
            "network has diverged, or the rewards or observations in it are not finite"
        )


def check_sample(batch_size: int, n_sampleable: int, most: int, replacement: bool) -> None:
    """
    Raise ValueError for a batch that cannot be sampled; the message says what helps.

    :param n_sampleable: How many transitions can be sampled now.
    :param most: How many transitions can be sampled when the buffer is full.
    """
    n_needed = 1 if replacement else batch_size
    if n_sampleable >= n_needed:
        return
    rule = f"this sample needs at least {n_needed} transitions that can be sampled"
    if not replacement:
        rule += " with replacement=False"
    if n_needed > most:
        rule += " (a larger buffer_size helps)"
    elif not replacement:
        rule += " (a larger learning_starts helps)"
    raise ValueError(f"{rule}, got {n_sampleable}")


def warn_without_updates() -> None:
    """Warn the caller of ``sample`` that priorities are out of date."""
    warnings.warn(
        f"{BATCHES_BEFORE_WARNING} batches were sampled, but update_priorities was not "
        "called, so priorities are out of date. SB3's algorithms neither weight their loss nor "
        "update priorities: use the algorithm of sb3_per instead (sb3_per.PERDQN for "
        "DQN), or multiply the loss by batch.weights and call "
        "buffer.update_priorities(batch.slots, td_errors) after each gradient step.",
        stacklevel=4,
    )


@kernel
def first_bad_update(slots: IntArray, td_errors: FloatArray, n_stored: int) -> int:
    """Return the position of the first slot or TD error out of range, or -1."""
    for i in range(len(slots)):
        if not (0 <= slots[i] < n_stored and abs(td_errors[i]) <= LARGEST_TD_ERROR):
            return i
    return -1


@cache
def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, so that no later call waits."""
    first_bad_update(np.zeros(1, dtype=np.int64), np.zeros(1), 1)


def _flat(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.ndim != 1:
        is_column = array.ndim == 2 and array.shape[1] == 1
        require(is_column, f"{name} must have shape (B,) or (B, 1)", array.shape)
    return array.ravel()
