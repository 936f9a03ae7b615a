"""Prioritized actor-critics with the squared loss of their base, or with a Huber loss."""

from typing import Any

import torch as th
from torch.nn import functional as F

from sb3_per.algorithms.critic_loss import Loss, PrioritizedCriticAlgorithm
from sb3_per.prioritization.lap import LossAdjusted
from sb3_per.rules import require

LOSSES = ("mse", "huber")
DEFAULT_THRESHOLD = 1.0


class PrioritizedSquaredLossAlgorithm(PrioritizedCriticAlgorithm):
    """
    A prioritized algorithm whose base computes a mean squared error for each critic.

    :param args: The arguments of the algorithm of SB3.
    :param loss: ``"mse"``, the base's loss, or ``"huber"``: the same up to the threshold, then
        linear. The threshold is LAP's with ``prioritization="lap"``, and 1 otherwise.
    :param kwargs: The other arguments of ``PrioritizedAlgorithm``.
    """

    loss_name = "F.mse_loss"
    critic: Any  # the base has it

    def __init__(self, *args: Any, loss: str, **kwargs: Any) -> None:
        self.loss = loss
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        # Not checked in the constructor, since `load` sets attributes and then calls this.
        require(self.loss in LOSSES, f"loss must be one of {LOSSES}", self.loss)
        super()._setup_model()
        rule = "the critic must have n_critics, the number of Q-values that it returns"
        require(hasattr(self.critic, "n_critics"), rule, f"{type(self.critic).__name__} without it")

    @property
    def loss_threshold(self) -> float | None:
        """Return the abs(TD error) at which the loss turns linear; None for the squared loss."""
        if self.loss == "mse":
            return None
        buffer: Any = getattr(self, "replay_buffer", None)  # None while it is being made
        is_lap = buffer is not None and isinstance(buffer.prioritization, LossAdjusted)
        return buffer.prioritization.floor if is_lap else DEFAULT_THRESHOLD

    def _replace_loss(self, loss: Loss) -> Loss:
        threshold = self.loss_threshold
        return loss if threshold is None else huber_loss(threshold)

    def _n_losses(self) -> int:
        n_critics: int = self.critic.n_critics
        return n_critics


def huber_loss(threshold: float) -> Loss:
    """
    Return the mean Huber loss that equals the mean squared error up to the threshold.

    Beyond it, a sample's loss is 2 * threshold * abs(TD error) - threshold^2. It is twice torch's
    ``huber_loss``, so learning rates and ``max_grad_norm`` mean the same as in SB3.

    :param threshold: The abs(TD error) at which the loss turns linear, > 0.
    """

    def loss(current: th.Tensor, target: th.Tensor) -> th.Tensor:
        return 2 * F.huber_loss(current, target, delta=threshold)

    return loss
