"""TQC with prioritized replay."""

from sb3_contrib import TQC

from sb3_per.algorithms.critics import PrioritizedQuantileAlgorithm


class PERTQC(PrioritizedQuantileAlgorithm, TQC):
    """
    Truncated Quantile Critics with prioritized experience replay.

    The loss of the critics is weighted by the importance-sampling weights. A transition's TD error
    is the mean of the target distribution minus the mean of the current one; its priority comes
    from the mean of abs(TD error) over the critics. TQC drops the target's largest quantiles, so
    the target's mean is a little lower. The actor and the entropy coefficient learn from the same
    batch without weights. ``train/critic_loss`` is logged as in sb3-contrib, without weights.
    """
