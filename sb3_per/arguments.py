"""Slots and TD errors from outside, NumPy or torch, as the arrays that the ground floor takes."""

from typing import Any

import numpy as np
import torch as th
from numpy.typing import ArrayLike, NDArray

from sb3_per.priorities import require
from sb3_per.sum_tree import FloatArray, IntArray


def as_slots(slots: ArrayLike | th.Tensor) -> IntArray:
    """
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
    :param td_errors: Numbers of any width, on any device, shape (B,) or (B, 1).
    :return: The same, shape (B,).
    :raises ValueError: for another shape.
    """
    if isinstance(td_errors, th.Tensor):
        td_errors = td_errors.detach().cpu()
        # NumPy widens float32 faster than torch, and knows no bfloat16.
        td_errors = (td_errors if td_errors.dtype == th.float32 else td_errors.double()).numpy()
    return _flat(np.asarray(td_errors, dtype=np.float64), "td_errors")


def _flat(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.ndim != 1:
        is_column = array.ndim == 2 and array.shape[1] == 1
        require(is_column, f"{name} must have shape (B,) or (B, 1)", array.shape)
    return array.ravel()
