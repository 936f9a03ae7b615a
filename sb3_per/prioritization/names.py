"""The prioritizations that have a name."""

from collections.abc import Callable
from typing import Any

from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.lap import LossAdjusted
from sb3_per.prioritization.proportional import Proportional
from sb3_per.prioritization.rank_based import RankBased
from sb3_per.rules import require

PRIORITIZATIONS: dict[str, Callable[..., Prioritization]] = {
    "proportional": Proportional,
    "rank": RankBased,
    "lap": LossAdjusted,
}
PRIORITIZATION_NAMES: dict[Any, str] = {kind: name for name, kind in PRIORITIZATIONS.items()}


def resolve_prioritization(
    prioritization: str | Callable[..., Prioritization],
) -> Callable[..., Prioritization]:
    """
    Return the class of a prioritization.

    :param prioritization: Its name, or the class itself (or a function that makes one).
    :raises ValueError: for another name, and for what cannot be called.
    """
    names = [*PRIORITIZATIONS]  # a list, since `in` must accept values without a hash
    is_known = callable(prioritization) or prioritization in names
    require(is_known, f"prioritization must be one of {names} or a class", prioritization)
    return PRIORITIZATIONS[prioritization] if isinstance(prioritization, str) else prioritization
