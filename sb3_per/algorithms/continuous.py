"""SAC, TD3 and DDPG with prioritized replay."""

from __future__ import annotations

from stable_baselines3 import DDPG, SAC, TD3

from sb3_per.algorithms.critics import PrioritizedCriticAlgorithm


class PERSAC(PrioritizedCriticAlgorithm, SAC):
    """
    Soft Actor-Critic with prioritized experience replay.

    By default it is LAP (Fujimoto et al. 2020): priorities max(abs(TD error), 1)^0.4, a Huber loss
    with the threshold 1, and no weights. With other priorities, the critics have SAC's squared
    loss, weighted by the importance-sampling weights. A transition's priority comes from the mean
    of abs(TD error) over the critics. The actor and the entropy coefficient learn from the same
    batch without weights. ``train/critic_loss`` is the loss without weights.
    """


class PERTD3(PrioritizedCriticAlgorithm, TD3):
    """
    Twin Delayed DDPG with prioritized experience replay.

    Priorities and losses are as in ``PERSAC``: by default those of LAP. The actor learns from the
    same batch without weights.
    """


class PERDDPG(PrioritizedCriticAlgorithm, DDPG):
    """
    Deep Deterministic Policy Gradient with prioritized experience replay.

    Priorities and losses are as in ``PERSAC``: by default those of LAP. The actor learns from the
    same batch without weights.
    """
