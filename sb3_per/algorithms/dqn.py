"""DQN with prioritized replay: weighted loss, TD errors back into the buffer, beta's clock."""

import io
import pathlib
import pickle
from typing import Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, TensorDict
from torch.nn import functional as F

from sb3_per.algorithms import buffer_options as buffer_choice
from sb3_per.algorithms import gradients
from sb3_per.algorithms.metrics import Metrics, metrics_of
from sb3_per.buffers.prioritized import PrioritizedReplayBuffer, PrioritizedReplayBufferSamples
from sb3_per.rules import require, require_bool, require_fraction, require_positive
from sb3_per.signatures import spliced

SelfPERDQN = TypeVar("SelfPERDQN", bound="PERDQN")


class PERDQN(DQN):
    """
    Deep Q-Network with prioritized experience replay (Schaul et al. 2016,
    https://arxiv.org/abs/1511.05952, algorithm 1 without its Double Q-learning unless asked for).

    Each gradient step draws a batch by priority, weights its Huber loss by the importance-sampling
    weights and gives the buffer the new TD errors. Everything else is ``DQN``'s, but for the
    buffer's own random stream, and for Adam, which is torch's fused one (the same formula, rounded
    differently) unless ``policy_kwargs`` says ``optimizer_kwargs=dict(fused=False)``.

    :param args: As for ``DQN``, in its order. ``replay_buffer_kwargs`` takes the options of
        ``PrioritizedReplayBuffer``; ``n_steps`` and ``gamma`` reach the buffer.
    :param beta_initial: Exponent of the importance-sampling weights at the start, in [0, 1].
    :param beta_final: The same at the end of the annealing, in [0, 1].
    :param beta_fraction: Part of the training over which beta moves linearly, in (0, 1].
    :param double_q: Double Q-learning (van Hasselt et al. 2016): the online network chooses the
        next action, the target network values it.
    :param kwargs: As for ``DQN``.
    :raises ValueError: for an argument out of its range or a replay buffer without priorities.
    """

    replay_buffer: PrioritizedReplayBuffer

    def __init__(
        self,
        *args: Any,
        beta_initial: float = 0.4,
        beta_final: float = 1.0,
        beta_fraction: float = 1.0,
        double_q: bool = False,
        **kwargs: Any,
    ) -> None:
        self.beta_initial = beta_initial
        self.beta_final = beta_final
        self.beta_fraction = beta_fraction
        self.double_q = double_q
        buffer_choice.refuse_options(kwargs)
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        # Here rather than in the constructor: `load` sets attributes, and then calls this.
        require_fraction("beta_initial", self.beta_initial)
        require_fraction("beta_final", self.beta_final)
        require_positive("beta_fraction", self.beta_fraction, 1.0, "lie in (0, 1]")
        require_bool("double_q", self.double_q)
        self.replay_buffer_class = buffer_choice.fitting_class(
            self.replay_buffer_class, self.observation_space
        )
        asked_for = self.replay_buffer_kwargs, self.n_steps
        # SB3 passes a named buffer class neither n_steps nor gamma, and warns that it ignores them.
        known = {"n_steps": self.n_steps, "gamma": self.gamma}
        options = buffer_choice.completed(self.replay_buffer_kwargs, known)
        self.replay_buffer_kwargs, self.n_steps = {**options, "beta": self.beta_initial}, 1
        try:
            super()._setup_model()
        finally:
            self.replay_buffer_kwargs, self.n_steps = asked_for
        gradients.fuse(self.policy.optimizer)

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[int, BaseCallback]:
        # SB3's own condition for a reset of the environments, of which it leaves no other trace.
        is_reset = reset_num_timesteps or self._last_obs is None
        ready = super()._setup_learn(
            total_timesteps, callback, reset_num_timesteps, *args, **kwargs
        )
        if is_reset:
            self.replay_buffer.end_episodes()
        return ready

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
        return metrics_of(loss.item(), on_host.ravel(), batch.weights.cpu().numpy().ravel())

    def _annealed_beta(self) -> float:
        """Beta at this point of the training: linear, then constant."""
        progress = 1.0 - self._current_progress_remaining
        betas = (self.beta_initial, self.beta_final)
        return float(np.interp(progress, (0.0, self.beta_fraction), betas))

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

    def load_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True
    ) -> None:
        """
        As ``DQN.load_replay_buffer``: priorities and random stream go on where they were saved.

        :raises ValueError: if the file holds something else than a buffer with priorities of the
            model's shape; the model keeps its own.
        """
        own = self.replay_buffer
        try:
            super().load_replay_buffer(path, truncate_last_traj)
            loaded = self.replay_buffer
        except AssertionError as error:  # SB3's, for what is no buffer
            raise ValueError(str(error)) from error
        except (EOFError, pickle.UnpicklingError) as error:
            rule = f"{path} must be a whole file of save_replay_buffer (load_buffer reads others)"
            raise ValueError(f"{rule}, got {error}") from error
        finally:
            self.replay_buffer = own
        self.use_replay_buffer(loaded)

    def use_replay_buffer(self, buffer: PrioritizedReplayBuffer) -> None:
        """
        Go on with another buffer; its options, priorities and random stream come with it, and
        ``replay_buffer_kwargs`` tells of them, with a warning where it told of others. In mid-run
        the episodes at its end count as cut, since those of the model's environments are others.

        :param buffer: For example from ``sb3_per.load_buffer``.
        :raises ValueError: if the buffer has no priorities or another shape; the model keeps its
            own.
        """
        has_priorities = isinstance(buffer, PrioritizedReplayBuffer)
        require(has_priorities, "the buffer must have priorities", type(buffer).__name__)
        buffer_choice.require_fitting(buffer, self)
        buffer.device = self.device
        if self._last_obs is not None and buffer is not self.replay_buffer:
            buffer.end_episodes()
        # A model that is saved and loaded makes a buffer with such options again.
        self.replay_buffer_kwargs = buffer_choice.taken_over(
            self.replay_buffer_kwargs, self.replay_buffer, buffer
        )
        self.optimize_memory_usage = buffer.optimize_memory_usage
        self.replay_buffer = buffer

    def set_random_seed(self, seed: int | None = None) -> None:
        """As ``DQN.set_random_seed``; the buffer's random stream is seeded, too."""
        super().set_random_seed(seed)
        if seed is not None and self.replay_buffer is not None:  # there is none while it is built
            self.replay_buffer.generator = np.random.default_rng(seed)

    def set_parameters(
        self,
        load_path_or_dict: str | TensorDict,
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """As ``DQN.set_parameters``; whether Adam steps fused stays the model's own choice."""
        groups = self.policy.optimizer.param_groups
        were_fused = [group.get("fused") for group in groups]
        super().set_parameters(load_path_or_dict, exact_match, device)
        gradients.keep_fused(self.policy.optimizer, were_fused)

    @classmethod
    def load(
        cls: type[SelfPERDQN],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfPERDQN:
        """
        As ``DQN.load``.

        :raises ValueError: for an argument out of its range, and for an option of the buffer that
            is not in ``replay_buffer_kwargs``.
        """
        buffer_choice.refuse_options(kwargs)
        return super().load(
            path, env, device, custom_objects, print_system_info, force_reset, **kwargs
        )


# What help() and editors show. Of the constructor: a class would pass it on to its subclasses.
PERDQN.__init__.__signature__ = spliced(DQN.__init__, PERDQN.__init__)  # type: ignore[attr-defined]  # read by inspect
