"""QR-DQN with prioritized replay."""

from sb3_contrib import QRDQN

from sb3_per.algorithms.critics import PrioritizedQuantileAlgorithm


class PERQRDQN(PrioritizedQuantileAlgorithm, QRDQN):
    """
    Quantile Regression DQN with prioritized experience replay.

    The quantile loss is weighted by the importance-sampling weights. A transition's TD error is the
    mean of the target distribution minus the mean of the current one. ``train/loss`` is logged as
    in sb3-contrib, without weights.
    """
