"""Observation and action spaces as JSON, and back."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from sb3_per.rules import require


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """
    :param space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of such.
    :raises ValueError: for any other space.
    """
    rule = f"only {', '.join(_CODECS)} spaces can be stored without pickle"
    name = type(space).__name__
    require(name in _CODECS, rule, space)
    encoded = {"type": name, **_CODECS[name].encode(space)}
    returned = space_from_json(encoded)
    # Of a subclass, more than we know may matter; and older == pass over the type of numbers.
    is_same = type(returned) is type(space) and returned == space and returned.dtype == space.dtype
    require(is_same, rule, space)
    return encoded


def space_from_json(encoded: dict[str, Any]) -> spaces.Space[Any]:
    """The space that ``space_to_json`` was given."""
    space: spaces.Space[Any] = _CODECS[encoded["type"]].decode(encoded)
    return space


class _Codec(NamedTuple):
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[dict[str, Any]], spaces.Space[Any]]


def _bound(bound: Any) -> Any:
    """One number where all are the same, as for images."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound.tolist()


def _box_to_json(space: spaces.Box) -> dict[str, Any]:
    bounds = {"low": _bound(space.low), "high": _bound(space.high)}
    return {**bounds, "shape": list(space.shape), "dtype": str(space.dtype)}


def _box_from_json(encoded: dict[str, Any]) -> spaces.Box:
    dtype = np.dtype(encoded["dtype"])
    shape = tuple(encoded["shape"])
    low, high = (
        np.broadcast_to(np.array(encoded[end], dtype=dtype), shape) for end in ("low", "high")
    )
    return spaces.Box(low, high, shape, dtype.type)


def _type_of(space: spaces.Space[Any]) -> dict[str, str]:
    """Whole numbers are of int64 unless it is told."""
    return {} if space.dtype == np.int64 else {"dtype": str(space.dtype)}


def _typed(encoded: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": np.dtype(encoded["dtype"]).type} if "dtype" in encoded else {}


_CODECS = {
    "Box": _Codec(_box_to_json, _box_from_json),
    "Discrete": _Codec(
        lambda space: {"n": int(space.n), "start": int(space.start), **_type_of(space)},
        lambda encoded: spaces.Discrete(encoded["n"], start=encoded["start"], **_typed(encoded)),
    ),
    "MultiDiscrete": _Codec(
        lambda space: {
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            **_type_of(space),
        },
        lambda encoded: spaces.MultiDiscrete(
            encoded["nvec"], start=encoded["start"], **_typed(encoded)
        ),
    ),
    "MultiBinary": _Codec(
        lambda space: {"n": space.n if isinstance(space.n, int) else list(space.n)},
        lambda encoded: spaces.MultiBinary(encoded["n"]),
    ),
    "Dict": _Codec(
        lambda space: {"spaces": [[key, space_to_json(part)] for key, part in space.items()]},
        lambda encoded: spaces.Dict(
            [(key, space_from_json(part)) for key, part in encoded["spaces"]]
        ),
    ),
}
