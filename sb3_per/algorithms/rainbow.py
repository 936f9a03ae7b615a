"""Rainbow: DQN with six extensions; each of them can be turned off."""

from __future__ import annotations

import warnings
from math import isnan, nan
from typing import ClassVar

import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, Schedule
from stable_baselines3.common.utils import LinearSchedule
from torch.nn import functional as F

from sb3_per.algorithms.dqn import PERDQN, huber_losses
from sb3_per.algorithms.metrics import LARGEST_SUPPORT_EDGE, Metrics
from sb3_per.algorithms.networks import (
    CnnRainbowPolicy,
    MultiInputRainbowPolicy,
    RainbowKwargs,
    RainbowNetwork,
    RainbowPolicy,
)
from sb3_per.buffers.prioritized import PrioritizedReplayBufferSamples
from sb3_per.options import RAINBOW, ReplayBufferKwargs

# The logged metrics that have a meaning for distributions of returns.
OF_DISTRIBUTIONS = ("loss", "weight_mean", "effective_sample_size")


class Rainbow(PERDQN):
    """
    DQN with six extensions (Hessel et al. 2018, https://arxiv.org/abs/1710.02298): Double
    Q-learning, prioritized replay, dueling networks, n-step returns, distributions of returns and
    noisy layers.

    The arguments are those of ``PERDQN``, with the paper's ``n_steps``, ``double_q`` and options of
    prioritization. The other parts are options in ``policy_kwargs``; without some of them:
    ``policy_kwargs=dict(dueling=False, noisy=False, n_atoms=1)``.

    With noisy layers, each action while transitions are collected has noise of its own, and so has
    ``predict`` unless it is deterministic. Epsilon is then 0, unless you set ``exploration_*``;
    without noisy layers, it is that of ``DQN``. With distributions, discounted returns should lie
    between ``v_min`` and ``v_max``; ``train/support_edge`` is the probability that targets give to
    the first and last atom.

    Priorities come from the Kullback-Leibler divergence of the target distribution from the
    current one, or from the TD errors if there is one atom.

    :param policy_kwargs: Arguments of ``DQNPolicy``, and the parts of the network, which
        ``sb3_per.algorithms.networks.Parts`` explains. The defaults are ``dueling=True``;
        ``noisy=True`` with the initial noise ``noisy_sigma=0.5``; and distributions of
        ``n_atoms=51`` atoms from ``v_min=-10.0`` to ``v_max=10.0``.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": RainbowPolicy,
        "CnnPolicy": CnnRainbowPolicy,
        "MultiInputPolicy": MultiInputRainbowPolicy,
    }
    default_options = RAINBOW
    policy: RainbowPolicy
    q_net: RainbowNetwork
    q_net_target: RainbowNetwork
    # Moving average over gradient steps, NaN before the first. It is updated in place, on the
    # device: a GPU is waited for once in each `train`.
    _support_edge: th.Tensor

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
        exploration_fraction: float | None = None,
        exploration_initial_eps: float | None = None,
        exploration_final_eps: float | None = None,
        max_grad_norm: float = 10,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: RainbowKwargs | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        double_q: bool = True,
        cuda_graphs: bool = False,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"], arguments["__class__"]
        super().__init__(**arguments)

    @property
    def _has_distributions(self) -> bool:
        """Return whether the network has distributions of returns, not plain Q-values."""
        network = vars(self).get("q_net")  # None while the model is built
        n_atoms = self.policy_kwargs.get("n_atoms") if network is None else network.n_atoms
        return bool(n_atoms != 1)

    @property
    def huber_threshold(self) -> float | None:  # type: ignore[override]  # the policy decides
        """Return 1 for the Huber loss of plain Q-values; None for the loss of distributions."""
        return None if self._has_distributions else super().huber_threshold

    @property
    def logged_metrics(self) -> tuple[str, ...]:  # type: ignore[override]  # the same
        """Return the metrics that have a meaning for the loss."""
        return OF_DISTRIBUTIONS if self._has_distributions else super().logged_metrics

    def _setup_model(self) -> None:
        super()._setup_model()
        self._support_edge = th.full((), nan, device=self.device)
        self._has_warned = False  # of a support that is too narrow; a loaded model warns again
        self._require_usable_buffer()
        self._set_epsilon()

    def _require_usable_buffer(self) -> None:
        super()._require_usable_buffer()
        if self._has_distributions and self.loss_threshold is not None:
            prioritization = self.replay_buffer.arguments()["prioritization"]
            raise ValueError(
                f"n_atoms must be 1 with {prioritization!r} priorities: they need a Huber loss, "
                f"and would bias the gradient of another loss, got {self.q_net.n_atoms}"
            )

    def _set_epsilon(self) -> None:
        """
        Use what the user has set; by default, 0 with noisy layers, and SB3's values without.

        If only a final value above 0 is set, epsilon falls to it from 1, as in SB3.
        """
        is_noisy = self.policy.parts.noisy
        defaults = {
            "exploration_fraction": 0.1,
            "exploration_initial_eps": 0.0 if is_noisy and not self.exploration_final_eps else 1.0,
            "exploration_final_eps": 0.0 if is_noisy else 0.05,
        }
        for name, default in defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, default)
        self.exploration_schedule = LinearSchedule(
            self.exploration_initial_eps, self.exploration_final_eps, self.exploration_fraction
        )

    def weighted_loss(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        Return the loss of a batch, and what its priorities are computed from.

        :return: The mean of weight * cross-entropy, and the Kullback-Leibler divergences, (B, 1),
            detached; or those of ``PERDQN`` with one atom.
        """
        noise = self.q_net.draw_noise()
        targets = self.td_targets(batch)  # (B, n_atoms)
        logits = self.q_net.logits(batch.observations, noise)  # (B, A, n_atoms)
        current = _of_actions(logits, batch.actions)  # (B, n_atoms)
        if self._has_distributions:
            losses, td_errors = cross_entropies(current, targets)
            self._note_support_edge(targets)
        else:
            losses, td_errors = huber_losses(current, targets, self.loss_threshold)
        return (batch.weights * losses).mean(), td_errors

    @th.no_grad()
    def td_targets(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """Return the target distributions, (B, n_atoms); the TD targets, (B, 1), with one atom."""
        network = self.q_net_target
        logits = network.logits(batch.next_observations, network.draw_noise())  # (B, A, n_atoms)
        next_q_values = network.q_values(logits, batch.next_observations)  # (B, A)
        next_actions = self.next_actions(batch, next_q_values)  # (B, 1)
        next_logits = _of_actions(logits, next_actions)  # (B, n_atoms)
        discounts = self.gamma if batch.discounts is None else batch.discounts
        discounts = (1 - batch.dones) * discounts  # (B, 1)
        if not self._has_distributions:
            return batch.rewards + discounts * next_logits
        # An infinite reward would count as the end of the support. The buffer refuses NaN.
        rewards = th.where(batch.rewards.isfinite(), batch.rewards, nan)
        atoms, parts = rewards + discounts * network.support, network.parts  # (B, n_atoms)
        return project(next_logits.softmax(dim=1), atoms, parts.v_min, parts.v_max)

    def double_q_values(self, observations: PyTorchObs) -> th.Tensor:
        """Return the Q-values by which Double Q-learning chooses, with noise of their own."""
        q_values: th.Tensor = self.q_net(observations, self.q_net.draw_noise())
        return q_values

    def _note_support_edge(self, targets: th.Tensor) -> None:
        edge = (targets[:, 0] + targets[:, -1]).mean()
        before = th.where(self._support_edge.isnan(), edge, self._support_edge)
        self._support_edge.copy_(before.lerp(edge, 0.01))

    def _log_prioritization(self, steps: list[Metrics]) -> None:
        if self._has_distributions:
            # The divergence is the loss of a distribution, less the entropy of its target.
            steps = [step._replace(loss=step.td_error) for step in steps]
        super()._log_prioritization(steps)
        edge = self._support_edge.item()  # NaN without distributions
        if not isnan(edge):
            self.logger.record("train/support_edge", edge)
        if edge > LARGEST_SUPPORT_EDGE and self._n_updates >= 1000 and not self._has_warned:
            self._has_warned = True
            parts = self.policy.parts
            warnings.warn(
                f"targets give a probability of {edge:.2f} to the first and last atom, so many "
                f"discounted returns are outside of the support from {parts.v_min} to "
                f"{parts.v_max}: set v_min and v_max in policy_kwargs, or scale the rewards",
                stacklevel=2,
            )

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        networks, tensors = super()._get_torch_save_params()
        return networks, [*tensors, "_support_edge"]


def cross_entropies(logits: th.Tensor, targets: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    Return cross-entropies and, detached, Kullback-Leibler divergences, (B, 1).

    :param logits: Those of the current distributions, (B, n_atoms).
    :param targets: The target distributions, (B, n_atoms).
    """
    losses = -(targets * F.log_softmax(logits, dim=1)).sum(dim=1, keepdim=True)  # (B, 1)
    entropies = -th.xlogy(targets, targets).sum(dim=1, keepdim=True)  # (B, 1)
    # Rounding can make the divergence of equal distributions negative.
    return losses, (losses.detach() - entropies).clamp(min=0)


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
    places.clamp_(max=n_atoms - 1)  # rounding can pass the last atom, whose share would be negative
    lower = places.long().clamp_(0, n_atoms - 2)  # NaN becomes any atom
    of_upper = (places - lower) * probabilities
    moved = th.zeros_like(probabilities)
    for atoms, shares in ((lower, probabilities - of_upper), (lower + 1, of_upper)):
        if places.is_cpu:
            moved.scatter_add_(1, atoms, shares)
        else:  # there, `scatter_add_` adds in a random order
            rows = th.arange(len(places), device=places.device).unsqueeze(1)  # (B, 1)
            moved.index_put_((rows, atoms), shares, accumulate=True)
    return moved


def _of_actions(values: th.Tensor, actions: th.Tensor) -> th.Tensor:
    """Return the values, (B, n_atoms), of one action each, (B, 1), out of (B, A, n_atoms)."""
    index = actions.long().unsqueeze(2).expand(-1, -1, values.shape[2])
    return values.gather(dim=1, index=index).squeeze(1)
