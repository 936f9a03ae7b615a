"""Rainbow: DQN with six extensions; each of them can be turned off."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import ConstantSchedule
from torch.nn import functional as F

from sb3_per.algorithms.docstrings import explain_arguments
from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.metrics import LOGGED, Metrics
from sb3_per.algorithms.networks import (
    CnnRainbowPolicy,
    MultiInputRainbowPolicy,
    Parts,
    RainbowNetwork,
    RainbowPolicy,
)
from sb3_per.buffers.prioritized import PrioritizedReplayBufferSamples
from sb3_per.options import RAINBOW, ReplayBufferKwargs

# The metrics of gradient steps that have a meaning for distributions.
OF_DISTRIBUTIONS = ("loss", "weight_mean", "effective_sample_size")


@explain_arguments
class Rainbow(PERDQN):
    """
    DQN with six extensions (Hessel et al. 2018, https://arxiv.org/abs/1710.02298): Double
    Q-learning, prioritized replay, dueling networks, n-step returns, distributions of returns and
    noisy layers.

    The arguments are those of ``PERDQN``, with the paper's ``n_steps``, ``double_q`` and options of
    prioritization. The other parts are options in ``policy_kwargs``; without some of them:
    ``policy_kwargs=dict(dueling=False, noisy=False, n_atoms=1)``. They are described at
    ``sb3_per.algorithms.networks.Parts``.

    With noisy layers, ``exploration_*`` has no effect: each action while transitions are collected
    has noise of its own, and so has ``predict`` unless it is deterministic. With distributions,
    discounted returns should lie between ``v_min`` and ``v_max``; ``train/support_edge`` is the
    probability that targets give to the first and last atom.

    Priorities come from the Kullback-Leibler divergence of the target distribution from the
    current one, or from the TD errors if there is one atom.

    :param double_q: Use Double Q-learning (van Hasselt et al. 2016).
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": RainbowPolicy,
        "CnnPolicy": CnnRainbowPolicy,
        "MultiInputPolicy": MultiInputRainbowPolicy,
    }
    default_options = RAINBOW
    _misplaced: ClassVar[Mapping[str, str]] = {
        **PERDQN._misplaced,
        **{field.name: f"policy_kwargs=dict({field.name}=...)" for field in fields(Parts)},
    }
    policy: RainbowPolicy
    q_net: RainbowNetwork
    q_net_target: RainbowNetwork
    # Moving average over gradient steps, on the device: a GPU is waited for once in each `train`.
    _support_edge: th.Tensor | None = None

    def __init__(
        self,
        policy: str | type[RainbowPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 32,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 4,
        gradient_steps: int = 1,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: ReplayBufferKwargs | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 3,
        target_update_interval: int = 10_000,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        max_grad_norm: float = 10,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        double_q: bool = True,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"], arguments["__class__"]
        super().__init__(**arguments)

    @property
    def huber_threshold(self) -> float | None:  # type: ignore[override]  # the policy decides
        """Return 1 for the Huber loss of plain Q-values; None for the loss of distributions."""
        network = vars(self).get("q_net")  # None while the model is built
        n_atoms = self.policy_kwargs.get("n_atoms") if network is None else network.n_atoms
        return 1.0 if n_atoms == 1 else None

    @property
    def logged_metrics(self) -> tuple[str, ...]:  # type: ignore[override]  # the same
        """Return the metrics that the loss has: the others are about Huber losses."""
        return LOGGED if self.q_net.n_atoms == 1 else OF_DISTRIBUTIONS

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.policy.parts.noisy:
            self.exploration_schedule = ConstantSchedule(0.0)

    def weighted_loss(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        Return the loss of a batch, and what its priorities are computed from.

        :return: The mean of weight * cross-entropy, and the Kullback-Leibler divergences, (B, 1),
            detached; or those of ``PERDQN`` with one atom.
        """
        with self.q_net.noise():
            if self.q_net.n_atoms == 1:
                return super().weighted_loss(batch)
            logits = self.q_net.logits(batch.observations)  # (B, A, n_atoms)
        targets = self.td_targets(batch)  # (B, n_atoms)
        logarithms = F.log_softmax(_of_actions(logits, batch.actions), dim=1)  # (B, n_atoms)
        losses = -(targets * logarithms).sum(dim=1, keepdim=True)  # (B, 1)
        entropies = -th.xlogy(targets, targets).sum(dim=1, keepdim=True)  # (B, 1)
        self._note_support_edge(targets)
        # Rounding can make the divergence of equal distributions negative.
        return (batch.weights * losses).mean(), (losses.detach() - entropies).clamp(min=0)

    @th.no_grad()
    def td_targets(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """Return the target distributions, (B, n_atoms); the TD targets, (B, 1), with one atom."""
        network = self.q_net_target
        with network.noise():
            if network.n_atoms == 1:
                return super().td_targets(batch)
            probabilities = network.probabilities(batch.next_observations)  # (B, A, n_atoms)
        next_actions = self.next_actions(batch, probabilities @ network.support)  # (B, 1)
        discounts = self.gamma if batch.discounts is None else batch.discounts
        atoms = batch.rewards + (1 - batch.dones) * discounts * network.support  # (B, n_atoms)
        parts = self.policy.parts
        return project(_of_actions(probabilities, next_actions), atoms, parts.v_min, parts.v_max)

    def next_actions(
        self, batch: PrioritizedReplayBufferSamples, next_q_values: th.Tensor
    ) -> th.Tensor:
        """Return the actions that the targets assume, with noise that the loss does not have."""
        with self.q_net.noise():
            return super().next_actions(batch, next_q_values)

    def _gradient_step(self, batch_size: int) -> Metrics:
        metrics = super()._gradient_step(batch_size)
        # The divergence is the loss of a distribution, less the entropy of its target.
        return metrics if self.q_net.n_atoms == 1 else metrics._replace(loss=metrics.td_error)

    def _note_support_edge(self, targets: th.Tensor) -> None:
        edge = targets[:, [0, -1]].sum(dim=1).mean()
        before = edge if self._support_edge is None else self._support_edge
        self._support_edge = before.lerp(edge, 0.01)

    def _log_prioritization(self, steps: list[Metrics]) -> None:
        super()._log_prioritization(steps)
        if self._support_edge is not None:
            self.logger.record("train/support_edge", self._support_edge.item())

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_support_edge"]


def project(probabilities: th.Tensor, values: th.Tensor, v_min: float, v_max: float) -> th.Tensor:
    """
    Project distributions onto equally spaced atoms (Bellemare et al. 2017, equation 7).

    A value between two atoms gives its probability to both, in proportion to how near they are; a
    value beyond the first or the last atom gives it to that one.

    :param probabilities: Shape (B, n_atoms).
    :param values: What the probabilities belong to, shape (B, n_atoms).
    :return: The probabilities of the atoms from v_min to v_max, (B, n_atoms).
    """
    n_atoms = values.shape[1]
    places = (values.clamp(v_min, v_max) - v_min) * ((n_atoms - 1) / (v_max - v_min))
    atoms = th.arange(n_atoms, device=values.device).unsqueeze(1)  # (n_atoms, 1)
    # A product with all shares instead of `scatter_add`, whose order of additions is random on a
    # GPU.
    shares = (1 - (places.unsqueeze(1) - atoms).abs()).clamp_(min=0)  # (B, n_atoms, n_atoms)
    return (shares @ probabilities.unsqueeze(2)).squeeze(2)


def _of_actions(values: th.Tensor, actions: th.Tensor) -> th.Tensor:
    """Return the values, (B, n_atoms), of one action each, (B, 1), out of (B, A, n_atoms)."""
    index = actions.long().unsqueeze(2).expand(-1, -1, values.shape[2])
    return values.gather(dim=1, index=index).squeeze(1)
