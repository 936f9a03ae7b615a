"""The decorator of all compiled functions: numba, with a cache on disk if one can be written."""

import logging
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import event

Function = TypeVar("Function", bound=Callable[..., Any])

_logger = logging.getLogger("sb3_per")


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


class _FirstCompilation(event.Listener):
    """Logs once why construction takes long. Functions from the cache are not compiled."""

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"].py_func.__module__.startswith("sb3_per."):
            _say_that_compiling_takes_long()

    def on_end(self, event: Any) -> None:
        pass


@cache
def _say_that_compiling_takes_long() -> None:
    # A log message, since a warning would end programs that turn warnings into errors. Python
    # prints it to stderr unless the program has set up logging.
    _logger.warning("sb3-per compiles its functions, which takes some seconds the first time")


event.register("numba:compile", _FirstCompilation())  # type: ignore[no-untyped-call]  # numba's own
