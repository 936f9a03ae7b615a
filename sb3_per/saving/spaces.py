"""Observation and action spaces as JSON, and back."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from sb3_per.rules import require
from sb3_per.saving.structure import TEXT, check_structure, one_of, refusing, whole

# A limit on the size of spaces, since each of their numbers takes memory: 16 MB in float32.
MAX_NUMBERS = 2**22


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """
    Return a space as JSON.

    :param space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
    :raises ValueError: for any other space.
    """
    rule = f"only {', '.join(_CODECS)} spaces can be stored without pickle"
    name = type(space).__name__
    require(name in _CODECS, rule, space)
    encoded = {"type": name, **_CODECS[name].encode(space)}
    returned = space_from_json(encoded)
    # A subclass may have more attributes, and older versions of == ignore the type of numbers.
    is_same = type(returned) is type(space) and returned == space and returned.dtype == space.dtype
    require(is_same, rule, space)
    return encoded


def space_from_json(encoded: Any) -> spaces.Space[Any]:
    """
    Return the space that ``space_to_json`` was given.

    :raises ValueError: for JSON that ``space_to_json`` cannot have returned, and for a space of
        more than ``MAX_NUMBERS`` numbers.
    """
    check_structure(encoded, {"type": one_of([*_CODECS])}, "a stored space")
    with refusing(f"a stored {encoded['type']} space must be one that gymnasium can make"):
        space: spaces.Space[Any] = _CODECS[encoded["type"]].decode(encoded)
    return space


class _Codec(NamedTuple):
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[dict[str, Any]], spaces.Space[Any]]


def _bound(bound: Any) -> Any:
    """Return one number if all bounds are equal, as for images."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound.tolist()


def _box_to_json(space: spaces.Box) -> dict[str, Any]:
    bounds = {"low": _bound(space.low), "high": _bound(space.high)}
    return {**bounds, "shape": list(space.shape), "dtype": str(space.dtype)}


def _box_from_json(encoded: dict[str, Any]) -> spaces.Box:
    dtype = _dtype(encoded["dtype"], "biuf")
    shape = _shape(encoded["shape"])
    low, high = (
        np.broadcast_to(np.array(encoded[end], dtype=dtype), shape) for end in ("low", "high")
    )
    return spaces.Box(low, high, shape, dtype.type)


def _dtype(name: Any, kinds: str) -> np.dtype[Any]:
    check_structure(name, TEXT, "the type of a stored space")
    dtype: np.dtype[Any] = np.dtype(name)
    require(dtype.kind in kinds, f"a stored space must be of a type among {kinds}", name)
    return dtype


def _shape(lengths: Any) -> tuple[int, ...]:
    check_structure(lengths, [whole(0)], "the shape of a stored space")
    rule = f"a stored space must have at most {MAX_NUMBERS} numbers"
    require(math.prod(lengths) <= MAX_NUMBERS, rule, lengths)
    return tuple(lengths)


def _binary_from_json(encoded: dict[str, Any]) -> spaces.MultiBinary:
    n = encoded["n"]
    shape = _shape(n if isinstance(n, list) else [n])
    return spaces.MultiBinary(shape if isinstance(n, list) else n)


def _n_numbers(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Dict):
        return sum(_n_numbers(part) for part in space.values())
    return math.prod(space.shape or ())


def _dict_from_json(encoded: dict[str, Any]) -> spaces.Dict:
    parts, n_numbers = [], 0
    for key, part in encoded["spaces"]:
        parts.append((key, space_from_json(part)))
        n_numbers += _n_numbers(parts[-1][1])
        rule = f"a stored Dict space must have at most {MAX_NUMBERS} numbers"
        require(n_numbers <= MAX_NUMBERS, rule, n_numbers)
    names = {str(key) for key, _ in parts}
    rule = "keys of a Dict space must differ as text"
    require(len(names) == len(parts), rule, [key for key, _ in parts])
    return spaces.Dict(parts)


def _type_of(space: spaces.Space[Any]) -> dict[str, str]:
    """Return the type of a space's whole numbers, unless it is int64."""
    return {} if space.dtype == np.int64 else {"dtype": str(space.dtype)}


def _typed(encoded: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": _dtype(encoded["dtype"], "iu").type} if "dtype" in encoded else {}


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
        _binary_from_json,
    ),
    "Dict": _Codec(
        lambda space: {"spaces": [[key, space_to_json(part)] for key, part in space.items()]},
        _dict_from_json,
    ),
}
