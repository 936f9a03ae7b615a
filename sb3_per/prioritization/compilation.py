"""The decorator of all compiled functions: numba, with a cache on disk if one can be written."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """
    Compile a function with numba when it is first called, and keep the result on disk.

    If neither the package's folder nor the user's can be written (as in a container with a
    read-only file system), numba refuses to cache, and every process compiles the function.
    """
    try:
        return cast(Function, njit(cache=True)(function))
    except RuntimeError:  # "cannot cache function ...: no locator available"
        _warn_that_nothing_is_cached()
        return cast(Function, njit(function))


@cache
def _warn_that_nothing_is_cached() -> None:
    warnings.warn(
        "numba finds no folder where it can cache compiled functions, so every process compiles "
        "them again, which takes seconds. Set the environment variable NUMBA_CACHE_DIR to a folder "
        "that can be written.",
        RuntimeWarning,
        stacklevel=2,
    )
