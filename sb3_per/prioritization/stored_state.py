"""Checks of priorities that come from a file, before kernels without bounds checks read them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_per.rules import require


def stored_array(state: Mapping[str, Any], name: str, dtype: DTypeLike, most: int) -> NDArray[Any]:
    """
    Return an array of a stored state.

    :param dtype: The type that its numbers must have.
    :param most: How many numbers it may hold.
    :raises ValueError: if it is missing, has another type, more than one axis, or too many numbers.
    """
    array = state.get(name)
    rule = f"stored {name} must be at most {most} numbers of type {np.dtype(dtype)} on one axis"
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{rule}, got {array!r}")
    fits = array.dtype == dtype and array.ndim == 1 and len(array) <= most
    require(fits, rule, f"{array.dtype} of shape {array.shape}")
    return array


def stored_number(state: Mapping[str, Any], name: str, low: float, high: float) -> float:
    """
    Return a number of a stored state.

    :raises ValueError: unless it is a number in [low, high].
    """
    value = state.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise ValueError(f"stored {name} must be a number in [{low}, {high}], got {value!r}")
