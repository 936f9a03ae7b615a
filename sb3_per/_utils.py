"""Checks of arguments, dicts of arrays, random generators, install hints, numba's decorator."""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache

BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
UNUSABLE = (OSError, EOFError, ValueError, pickle.UnpicklingError)  # a damaged or full cache
Function = TypeVar("Function", bound=Callable[..., Any])

_KERNELS: list[Any] = []


def require_number(name: str, value: Any, low: float, high: float) -> None:
    """Raise ValueError unless the value is a number in [low, high]; True is no number."""
    is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if not (is_number and low <= float(value) <= high):
        raise ValueError(f"{name} must be a number in [{low}, {high}], got {value!r}")


def require_whole(name: str, value: Any, lowest: int = 1) -> None:
    """Raise ValueError unless the value is a whole number of at least ``lowest``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < lowest:
        raise ValueError(f"{name} must be a whole number of at least {lowest}, got {value!r}")


def require_one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state of a random generator, which names its kind: numbers, text and arrays."""
    state: dict[str, Any] = dict(generator.bit_generator.state)
    require_one_of("a random generator", state["bit_generator"], BIT_GENERATORS)
    return state


def generator_from(state: dict[str, Any]) -> np.random.Generator:
    """Return a random generator that continues from a state of ``generator_state``."""
    require_one_of("a random generator", state["bit_generator"], BIT_GENERATORS)
    bit_generator = getattr(np.random, state["bit_generator"])(0)
    bit_generator.state = as_arrays(state)
    return np.random.Generator(bit_generator)


def as_arrays(state: Any) -> Any:
    """Return a state with NumPy's arrays in place of arrays in a file."""
    return map_arrays(lambda part: np.asarray(part) if hasattr(part, "__array__") else part, state)


def map_arrays(function: Callable[..., Any], *stores: Any) -> Any:
    """Return what a function makes of arrays, or by key, of those in dicts with the same keys."""
    if isinstance(stores[0], dict):
        return {key: map_arrays(function, *(s[key] for s in stores)) for key in stores[0]}
    return function(*stores)


def select(store: Any, index: Any) -> Any:
    """Return a part of an array, or of every array in a dict."""
    return map_arrays(lambda array: array[index], store)


def fill(targets: Any, sources: Any, name: str = "arrays") -> None:
    """
    Fill arrays, in dicts of dicts, from others; from arrays in a file without a copy.

    :raises ValueError: for an array of another shape or type.
    """
    if isinstance(targets, dict):
        for key, target in targets.items():
            fill(target, sources[key], key)
    elif (targets.shape, targets.dtype) != (sources.shape, sources.dtype):
        rule = f"{name} must be {targets.dtype} of shape {targets.shape}"
        raise ValueError(f"{rule}, got {sources.dtype} of {sources.shape}")
    elif isinstance(sources, np.ndarray) or not targets.flags.c_contiguous:
        targets[...] = sources
    else:
        sources.read_into(targets)


def install(extra: str) -> str:
    """Return the commands that install an extra of sb3-per; each of them is enough."""
    return f'pip install ".[{extra}]" in a copy of the source, or pip install "sb3-per[{extra}]"'


class Cache(FunctionCache):  # type: ignore[misc]  # mypy does not see numba's classes
    """
    numba's cache of a function, which is compiled where the cache cannot be read or written.

    A power cut may leave empty files, which numba alone would fail to read for ever.
    """

    def load_overload(self, *args: Any) -> Any:
        try:
            return super().load_overload(*args)
        except UNUSABLE as error:
            warn_of_cache(f"{self.cache_path}: {error!r}")
            with contextlib.suppress(OSError):
                self.flush()  # so that the next process finds it whole
            return None

    def save_overload(self, *args: Any) -> None:
        try:
            super().save_overload(*args)
        except UNUSABLE as error:
            warn_of_cache(f"{self.cache_path}: {error!r}")


def warn_of_cache(reason: str) -> None:
    """Warn from this line, so that Python shows each reason once."""
    warnings.warn(
        f"numba's cache of compiled functions cannot be used ({reason}), so they are compiled "
        "again, which takes seconds. Set the environment variable NUMBA_CACHE_DIR to a folder "
        "that can be written.",
        RuntimeWarning,
        stacklevel=1,
    )


def kernel(function: Function) -> Function:
    """
    Compile a function with numba when it is first called, and keep the result on disk.

    Most kernels fill arrays that they are given, since new arrays take long to compile. They return
    no tuple of arrays: Ctrl-C raises SystemError while numba makes it. Kernels that call each other
    are in one file, since numba does not compile them again when only another file has changed.
    Dividing by zero gives infinity, as in NumPy: looking for zeros takes long to compile, too.

    If neither the package's folder nor the user's can be written (as in a container with a
    read-only file system), numba refuses to cache, and every process compiles the function.
    """
    compiled: Any = njit(error_model="numpy")(function)
    try:
        compiled._cache = Cache(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        warn_of_cache("no folder can be written")
    _KERNELS.append(compiled)
    return cast(Function, compiled)


def n_compiled() -> int:
    """Return how many functions this process has compiled, since numba's cache lacked them."""
    return sum(sum(compiled.stats.cache_misses.values()) for compiled in _KERNELS)
