"""CrossQ with prioritized replay."""

from sb3_contrib import CrossQ

from sb3_per.algorithms.critics import PrioritizedCriticAlgorithm


class PERCrossQ(PrioritizedCriticAlgorithm, CrossQ):
    """
    CrossQ with prioritized experience replay.

    By default it is LAP (Fujimoto et al. 2020): priorities max(abs(TD error), 1)^0.4, a Huber loss
    with the threshold 1, and no weights. With other priorities, the critics have CrossQ's squared
    loss, weighted by the importance-sampling weights. A transition's priority comes from the mean
    of abs(TD error) over the critics. The actor and the entropy coefficient learn from the same
    batch without weights, and batch normalization ignores the weights, too. ``train/critic_loss``
    is the loss without weights.
    """
