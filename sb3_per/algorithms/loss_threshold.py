"""What follows from the TD error at which a loss turns linear: a clip, and LAP's threshold."""

import warnings
from typing import Any

from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.lap import LossAdjusted
from sb3_per.rules import require


def clip_at_threshold(
    options: dict[str, Any], loss_threshold: float | None, algorithm: str
) -> float:
    """
    Return the value of ``td_error_clip="loss"``, the threshold of the loss.

    :param options: The options of the buffer.
    :param loss_threshold: The threshold; None if the loss has none.
    :param algorithm: Its name.
    :raises ValueError: if the loss has no threshold, and with LAP.
    """
    rule = "td_error_clip must be None or a number above the threshold with prioritization='lap'"
    kind = options.get("prioritization")
    is_lap = kind == "lap" or (isinstance(kind, type) and issubclass(kind, LossAdjusted))
    require(not is_lap, rule, "loss")
    if loss_threshold is None:
        raise ValueError(
            f"td_error_clip must be a number or None for this {algorithm}, got 'loss', which needs "
            "a Huber loss: PERDQN has one, and PERSAC, PERTD3, PERDDPG and PERCrossQ with "
            "loss='huber'"
        )
    return loss_threshold


def warn_of_lap(
    prioritization: Prioritization,
    loss_threshold: float | None,
    betas: tuple[float, float],
    algorithm: str,
) -> None:
    """
    Warn if LAP's threshold is not that of the loss, or if LAP's bias is corrected.

    :param prioritization: The buffer's prioritization; others than LAP are fine.
    :param loss_threshold: The threshold of the loss; None if it has none.
    :param betas: The first and the last exponent of the weights.
    :param algorithm: The name of the algorithm.
    """
    if not isinstance(prioritization, LossAdjusted):
        return
    if max(betas) > 0:
        warnings.warn(
            "LAP needs no importance-sampling weights: pass beta_initial=0 and beta_final=0, got "
            f"{betas[0]:g} and {betas[1]:g}",
            stacklevel=5,
        )
    if loss_threshold != prioritization.floor:
        warnings.warn(
            f"LAP needs a Huber loss with its own threshold {prioritization.floor:g}, but the loss "
            f"of {algorithm} has the threshold {loss_threshold}; PERSAC, PERTD3, PERDDPG and "
            "PERCrossQ with loss='huber' take over LAP's",
            stacklevel=5,
        )
