"""Rules for what users hand over: each raises a ``ValueError`` that states it and the value."""

from typing import Any


def require(holds: bool, rule: str, value: object) -> None:
    """:raises ValueError: with the rule and the offending value, unless the rule holds."""
    if not holds:
        raise ValueError(f"{rule}, got {value!r}")


def require_fraction(name: str, value: Any) -> None:
    """:raises ValueError: unless the value is a number in [0, 1]."""
    require(_lies_in(0, 1, value), f"{name} must lie in [0, 1]", value)


def require_positive(name: str, value: Any, bound: float, rule: str) -> None:
    """
    :param rule: What the value must do to lie in (0, bound], in words.
    :raises ValueError: unless the value is such a number.
    """
    require(_lies_in(0, bound, value) and value > 0, f"{name} must {rule}", value)


def require_bool(name: str, value: Any) -> None:
    """:raises ValueError: unless the value is True or False; the text "no" counts as true."""
    require(value in (False, True), f"{name} must be True or False", value)


def _lies_in(low: float, high: float, value: Any) -> bool:
    try:
        return bool(low <= value <= high)
    except TypeError:  # no number
        return False
