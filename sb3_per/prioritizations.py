"""The prioritizations that go by a name."""

from collections.abc import Callable
from typing import Any

from sb3_per.priorities import Prioritization
from sb3_per.proportional import Proportional
from sb3_per.rank_based import RankBased
from sb3_per.rules import require

PRIORITIZATIONS: dict[str, Callable[..., Prioritization]] = {
    "proportional": Proportional,
    "rank": RankBased,
}
PRIORITIZATION_NAMES: dict[Any, str] = {kind: name for name, kind in PRIORITIZATIONS.items()}


def kind_of(prioritization: str | Callable[..., Prioritization]) -> Callable[..., Prioritization]:
    """
    :param prioritization: A name, or whatever makes one.
    :raises ValueError: for another name, and for what cannot be called.
    """
    is_known = callable(prioritization) or prioritization in PRIORITIZATIONS
    rule = f"prioritization must be one of {[*PRIORITIZATIONS]} or a class"
    require(is_known, rule, prioritization)
    return PRIORITIZATIONS[prioritization] if isinstance(prioritization, str) else prioritization
