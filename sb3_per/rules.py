"""Rules for what users hand over: each raises a ``ValueError`` that states it and the value."""

from numbers import Integral
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


def require_whole(name: str, value: Any) -> None:
    """:raises ValueError: unless the value is a whole number of at least 1, one of NumPy's too."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(is_whole and value >= 1, f"{name} must be a whole number of at least 1", value)


def fixed() -> Any:
    """:return: An attribute, for the body of a class, of which instances keep the first value."""
    return _Fixed()


class _Fixed:
    # Without __get__ Python reads the instance's own value, at no cost.
    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, instance: Any, value: Any) -> None:
        kept = instance.__dict__.setdefault(self._name, value)
        require(value == kept, f"{self._name} stays {kept!r}: make a new buffer", value)


def _lies_in(low: float, high: float, value: Any) -> bool:
    try:
        return bool(low <= value <= high)
    except TypeError:  # no number
        return False
