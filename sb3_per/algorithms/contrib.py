"""QR-DQN, TQC and CrossQ of sb3-contrib with prioritized replay."""

from __future__ import annotations

from sb3_contrib import QRDQN, TQC, CrossQ

from sb3_per.algorithms.critics import PrioritizedCriticAlgorithm, PrioritizedQuantileAlgorithm


class PERQRDQN(PrioritizedQuantileAlgorithm, QRDQN):
    """
    Quantile Regression DQN with prioritized experience replay.

    The quantile loss is weighted by the importance-sampling weights. A transition's TD error is the
    mean of the target distribution minus the mean of the current one. ``train/loss`` is logged as
    in sb3-contrib, without weights.
    """


class PERTQC(PrioritizedQuantileAlgorithm, TQC):
    """
    Truncated Quantile Critics with prioritized experience replay.

    The loss of the critics and TD errors are as in ``PERQRDQN``; a priority comes from the mean of
    abs(TD error) over the critics. TQC drops the target's largest quantiles, so the target's mean
    is a little lower. The actor and the entropy coefficient learn from the same batch without
    weights. ``train/critic_loss`` is logged as in sb3-contrib, without weights.
    """


class PERCrossQ(PrioritizedCriticAlgorithm, CrossQ):
    """
    CrossQ with prioritized experience replay.

    Priorities and losses are as in ``PERSAC``: by default those of LAP. The actor and the entropy
    coefficient learn from the same batch without weights, and batch normalization ignores the
    weights, too.
    """
