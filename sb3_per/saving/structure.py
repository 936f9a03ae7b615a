"""Checks of the structure of a header: the kind of every value is checked before any is used."""

import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tokenize import TokenError
from typing import Any, NamedTuple

from sb3_per.rules import require

# What NumPy, gymnasium, SB3, torch and zipfile raise for values that they cannot take.
_COMPLAINTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TokenError,
    TypeError,
    zipfile.BadZipFile,
)


@contextmanager
def refusing(rule: str) -> Iterator[None]:
    """Turn the errors that other packages raise for wrong values into a ``ValueError``."""
    try:
        yield
    except _COMPLAINTS as error:
        raise ValueError(f"{rule}, got {type(error).__name__}: {error}") from error


class Kind(NamedTuple):
    """A kind of values, in words and as a test."""

    rule: str
    holds: Callable[[Any], bool]


# What a value must be: a value of a kind; a dict with these names (and perhaps others); or a list
# of values with the structure of the first one.
Structure = Kind | dict[str, Any] | list[Any]

TEXT = Kind("text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
ANYTHING = Kind("anything", lambda value: True)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))


def is_number(value: Any, low: float, high: float) -> bool:
    """Return whether a value is a number in [low, high]; true and false are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def whole(low: int, high: int = 2**62) -> Kind:
    """Return the kind of whole numbers in [low, high]."""
    rule = f"a whole number in [{low}, {high}]"
    return Kind(rule, lambda value: isinstance(value, int) and is_number(value, low, high))


def number(low: float, high: float) -> Kind:
    """Return the kind of numbers in [low, high]."""
    return Kind(f"a number in [{low}, {high}]", lambda value: is_number(value, low, high))


def one_of(choices: Sequence[str]) -> Kind:
    """Return the kind of values that are one of some texts."""
    return Kind(f"one of {[*choices]}", lambda value: value in [*choices])


def check_structure(value: Any, expected: Structure, where: str) -> None:
    """
    Check a value of a header, and all values in it.

    :param where: The name of the value in errors.
    :raises ValueError: for the first value of another kind; the message says where it is.
    """
    if isinstance(expected, Kind):
        require(expected.holds(value), f"{where} must be {expected.rule}", value)
    elif isinstance(expected, list):
        require(isinstance(value, list), f"{where} must be a list", value)
        for i, item in enumerate(value):
            check_structure(item, expected[0], f"{where}[{i}]")
    else:
        require(isinstance(value, dict), f"{where} must be an object", value)
        for name, part in expected.items():
            require(name in value, f"{where} must hold {name}", [*value])
            check_structure(value[name], part, f"{where}.{name}")
