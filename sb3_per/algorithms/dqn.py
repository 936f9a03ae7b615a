"""DQN with prioritized replay: weighted loss, TD errors back into the buffer, beta's clock."""

from typing import Any, TypeVar

import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.dqn.policies import DQNPolicy
from torch.nn import functional as F

from sb3_per.algorithms import gradients
from sb3_per.algorithms.buffer_options import ARGUMENT_HINTS
from sb3_per.algorithms.gradients import prefer_fused_adam
from sb3_per.algorithms.metrics import Metrics, metrics_of
from sb3_per.algorithms.prioritized import PrioritizedAlgorithm
from sb3_per.buffers.prioritized import PrioritizedReplayBufferSamples
from sb3_per.rules import require_bool
from sb3_per.signatures import explain_unknown_arguments

SelfPERDQN = TypeVar("SelfPERDQN", bound="PERDQN")


class PERDQN(PrioritizedAlgorithm, DQN):
    """
    Deep Q-Network with prioritized experience replay (Schaul et al. 2016,
    https://arxiv.org/abs/1511.05952, algorithm 1; their Double Q-learning is an option).

    Each gradient step samples a batch by priority, weights its Huber loss by the
    importance-sampling weights, and gives the buffer the new TD errors. Everything else is as in
    ``DQN``, with two exceptions: the buffer has a random stream of its own, and Adam is torch's
    fused one (the same formula, rounded differently), unless ``policy_kwargs`` has
    ``optimizer_kwargs=dict(fused=False)``.

    The arguments of ``DQN`` come first, in its order, and mean the same. ``replay_buffer_kwargs``
    takes the options of ``PrioritizedReplayBuffer``; ``n_steps`` and ``gamma`` reach the buffer.

    :param beta_initial: Exponent of the importance-sampling weights at the start, in [0, 1].
    :param beta_final: The same at the end of the annealing, in [0, 1].
    :param beta_fraction: Part of the training over which beta moves linearly, in (0, 1].
    :param double_q: Use Double Q-learning (van Hasselt et al. 2016): the online network chooses the
        next action, the target network evaluates it.
    :raises ValueError: for an unknown argument, one out of its range, or a replay buffer without
        priorities.
    """

    loss_threshold = 1.0  # of F.smooth_l1_loss

    @explain_unknown_arguments(ARGUMENT_HINTS)
    def __init__(
        self,
        policy: str | type[DQNPolicy],
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
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
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
        beta_initial: float = 0.4,
        beta_final: float = 1.0,
        beta_fraction: float = 1.0,
        double_q: bool = False,
    ) -> None:
        self.double_q = double_q
        super().__init__(
            policy=policy,
            env=env,
            learning_rate=learning_rate,
            buffer_size=buffer_size,
            learning_starts=learning_starts,
            batch_size=batch_size,
            tau=tau,
            gamma=gamma,
            train_freq=train_freq,
            gradient_steps=gradient_steps,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            n_steps=n_steps,
            target_update_interval=target_update_interval,
            exploration_fraction=exploration_fraction,
            exploration_initial_eps=exploration_initial_eps,
            exploration_final_eps=exploration_final_eps,
            max_grad_norm=max_grad_norm,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
            beta_initial=beta_initial,
            beta_final=beta_final,
            beta_fraction=beta_fraction,
        )

    def _setup_model(self) -> None:
        require_bool("double_q", self.double_q)
        self.policy_kwargs = prefer_fused_adam(self.policy_kwargs, self.policy_class, self.device)
        super()._setup_model()

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """As ``DQN.train``, on batches drawn by priority."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        self.replay_buffer.beta = self._annealed_beta()

        steps = [self._gradient_step(batch_size) for _ in range(gradient_steps)]

        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/beta", self.replay_buffer.beta)
        self.logger.record("train/priority_max", self.replay_buffer.prioritization.largest_priority)
        for name in Metrics._fields if steps else ():
            values = [getattr(metrics, name) for metrics in steps]
            self.logger.record(f"train/{name}", sum(values) / gradient_steps)

    def _gradient_step(self, batch_size: int) -> Metrics:
        batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        loss, td_errors = self._weighted_loss(batch)
        optimizer = self.policy.optimizer
        gradients.clear(optimizer)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        # After `backward` is on its way: on a GPU this copy waits for what was asked of it before.
        on_host = td_errors.cpu().numpy()  # (B, 1)
        # Before the step: TD errors that are not finite raise while the network is still whole.
        self.replay_buffer.update_priorities(batch.slots, on_host)
        gradients.clip(optimizer, self.max_grad_norm)
        optimizer.step()
        weights = batch.weights.cpu().numpy().ravel()
        return metrics_of(loss.item(), on_host.ravel(), weights, self.loss_threshold)

    def _weighted_loss(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        :return: Mean of weight * Huber(TD error), and the signed TD errors, (B, 1), without
            gradient.
        """
        targets = self._targets(batch)  # (B, 1)
        q_values = self.q_net(batch.observations).gather(
            dim=1, index=batch.actions.long()
        )  # (B, 1)
        # The weight belongs outside of the Huber loss: inside it would move the point where the
        # loss turns linear.
        losses = F.smooth_l1_loss(q_values, targets, reduction="none")  # (B, 1)
        return (batch.weights * losses).mean(), targets - q_values.detach()

    @th.no_grad()
    def _targets(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """TD targets, (B, 1)."""
        next_q_values = self.q_net_target(batch.next_observations)  # (B, n_actions)
        if self.double_q:
            # As predict has it: dropout would choose at random, batch norm count the batch twice.
            was_training = self.policy.training
            self.policy.set_training_mode(False)
            next_actions = self.q_net(batch.next_observations).argmax(dim=1, keepdim=True)  # (B, 1)
            self.policy.set_training_mode(was_training)
            next_values = next_q_values.gather(dim=1, index=next_actions)  # (B, 1)
        else:
            next_values = next_q_values.amax(dim=1, keepdim=True)  # (B, 1)
        discounts = self.gamma if batch.discounts is None else batch.discounts
        targets: th.Tensor = batch.rewards + (1 - batch.dones) * discounts * next_values
        return targets

    def learn(
        self: SelfPERDQN,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "PERDQN",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfPERDQN:
        """As ``DQN.learn``; beta follows SB3's training progress, as the exploration rate does."""
        return super().learn(
            total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
        )
