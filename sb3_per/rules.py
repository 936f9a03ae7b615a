"""Rules for arguments: each raises a ``ValueError`` that states the rule and the value."""

from numbers import Integral
from operator import attrgetter
from typing import Any

import numpy as np


class UnsupportedActionsError(ValueError, AssertionError):
    """Raised for actions that an algorithm does not support; SB3 raises an AssertionError."""


def require(holds: bool, rule: str, value: object) -> None:
    """Raise ValueError with the rule and the offending value, unless the rule holds."""
    if not holds:
        raise ValueError(f"{rule}, got {value!r}")


def require_fraction(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a number in [0, 1]."""
    require(_lies_in(0, 1, value), f"{name} must lie in [0, 1]", value)


def require_positive(name: str, value: Any, bound: float, rule: str) -> None:
    """
    Raise ValueError unless the value is a number in (0, bound].

    :param rule: The rule in words, as they follow "must": "lie in (0, 1]".
    :raises ValueError: unless the value is such a number.
    """
    require(_lies_in(0, bound, value) and value > 0, f"{name} must {rule}", value)


def require_bool(name: str, value: Any) -> None:
    """Raise ValueError unless the value is True or False; the text "no" would count as true."""
    require(value in (False, True), f"{name} must be True or False", value)


def require_whole(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a whole number of at least 1; NumPy's are accepted."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(is_whole and value >= 1, f"{name} must be a whole number of at least 1", value)


def fixed(name: str) -> Any:
    """
    Return a property that keeps its first value.

    :param name: Name of the attribute. It must not change because stored data depend on it.
    :return: A property for the body of a class. Setting another value raises a ``ValueError``.
    """
    # `setattr`, since Python reads all attributes more slowly after a write to __dict__ itself.
    kept_as = f"_{name}"

    def keep(instance: Any, value: Any) -> None:
        kept = getattr(instance, kept_as, value)
        require(value == kept, f"{name} must stay {kept!r} (make a new buffer to change it)", value)
        setattr(instance, kept_as, value)

    return property(attrgetter(kept_as), keep)


def _lies_in(low: float, high: float, value: Any) -> bool:
    if isinstance(value, bool | np.bool_):  # YAML's "yes" is no number
        return False
    try:
        return bool(low <= value <= high)
    except (TypeError, ValueError):  # no number, or several
        return False
