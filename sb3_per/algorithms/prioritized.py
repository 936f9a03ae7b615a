"""The base of all prioritized algorithms: it makes their buffer and keeps the schedule of beta."""

import io
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn

from sb3_per.algorithms.buffer_options import (
    complete_options,
    options_of,
    refuse_buffer_options,
    require_batches_to_fit,
    require_fitting_environments,
    require_prioritized,
    resolve_buffer_class,
)
from sb3_per.algorithms.buffer_owner import BufferOwner
from sb3_per.algorithms.loss_threshold import clip_at_threshold
from sb3_per.algorithms.metrics import LOGGED, Metrics, averaged_moments, log_metrics
from sb3_per.rules import UnsupportedActionsError, require_fraction, require_positive
from sb3_per.torch_streams import torch_states

SelfPrioritized = TypeVar("SelfPrioritized", bound="PrioritizedAlgorithm")


class PrioritizedAlgorithm(BufferOwner):
    """
    The part of a prioritized algorithm that does not depend on how the algorithm learns.

    It is a mixin; name it before the algorithm of SB3: ``class PERDQN(PrioritizedAlgorithm, DQN)``.
    It makes the buffer, keeps beta's schedule, loads models and logs metrics. The algorithm itself
    weights its loss and passes the TD errors to the buffer.

    :param args: The arguments of the algorithm of SB3.
    :param beta_initial: Exponent of the importance-sampling weights at the start, in [0, 1].
    :param beta_final: The exponent at the end of the annealing, in [0, 1].
    :param beta_fraction: Part of the training over which beta moves linearly, in (0, 1].
    :param kwargs: The arguments of the algorithm of SB3.
    :raises ValueError: for an argument out of its range or a replay buffer without priorities.
    """

    # Which metrics of gradient steps are logged as ``train/<name>``.
    logged_metrics: ClassVar[tuple[str, ...]] = LOGGED
    _moments: Sequence[float] = (0.0, 0.0)  # of the gradient, averaged
    # While transitions are collected with gSDE; else None.
    torch_states_before_rollout: list[th.Tensor] | None = None

    def __init__(
        self,
        *args: Any,
        beta_initial: float,
        beta_final: float,
        beta_fraction: float,
        **kwargs: Any,
    ) -> None:
        # Before SB3's constructor, which calls `_setup_model`.
        self.beta_initial = beta_initial
        self.beta_final = beta_final
        self.beta_fraction = beta_fraction
        try:
            super().__init__(*args, **kwargs)
        except AssertionError as error:  # SB3's, for the actions of the environment
            if "action spaces" not in str(error):
                raise
            name, space = type(self).__name__, self.action_space
            rule = f"{name} does not support these actions: PERDQN and PERQRDQN need Discrete"
            raise UnsupportedActionsError(f"{rule}, all others need Box, got {space}") from error
        # Checked only here, since a model that is loaded to act may have a buffer for one slot.
        if self._kept_buffer is not None:
            require_batches_to_fit(self.replay_buffer, self.batch_size)

    def _setup_model(self) -> None:
        # Not checked in the constructor, since `load` sets attributes and then calls this.
        require_fraction("beta_initial", self.beta_initial)
        require_fraction("beta_final", self.beta_final)
        require_positive("beta_fraction", self.beta_fraction, 1.0, "lie in (0, 1]")
        self.replay_buffer_class = resolve_buffer_class(
            self.replay_buffer_class, self.observation_space
        )
        # SB3 does not pass n_steps and gamma to a buffer class that is named, and warns about
        # n_steps > 1. So both go into the buffer's options, and SB3 sees n_steps=1 meanwhile.
        given = self.replay_buffer_kwargs, self.n_steps
        options = complete_options(
            self.replay_buffer_class,
            self.replay_buffer_kwargs,
            {"n_steps": self.n_steps, "gamma": self.gamma},
        )
        require_fitting_environments(self.replay_buffer_class, options.get("n_stack", 1), self.env)
        if options.get("td_error_clip") == "loss":
            name = type(self).__name__
            options["td_error_clip"] = clip_at_threshold(options, self.loss_threshold, name)
        self.replay_buffer_kwargs, self.n_steps = {**options, "beta": self.beta_initial}, 1
        try:
            super()._setup_model()
        finally:
            self.replay_buffer_kwargs, self.n_steps = given
        self._own_options = options_of(self.replay_buffer)
        self._warn_of_lap(self.replay_buffer)

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[int, BaseCallback]:
        require_prioritized("learn", self._kept_buffer)
        # SB3 resets the environments on this condition. It may raise after that, for a callback.
        if reset_num_timesteps or self._last_obs is None:
            self.replay_buffer.end_episodes()
        return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *args, **kwargs)

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> RolloutReturn:
        """Collect transitions as SB3 does; after an early stop, ``learn`` resets the envs."""
        is_complete = False  # SB3 drops the step at which it stops: the next one would not follow
        # gSDE samples its noise before any callback can save a checkpoint.
        self.torch_states_before_rollout = torch_states() if self.use_sde else None
        try:
            rollout = super().collect_rollouts(*args, **kwargs)
            is_complete = rollout.continue_training
        finally:
            self.torch_states_before_rollout = None
            if not is_complete:
                self._last_obs = None
        return rollout

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "torch_states_before_rollout", "_own_options"]

    def _annealed_beta(self) -> float:
        """Return beta at this point of the training: linear, then constant."""
        progress = 1.0 - self._current_progress_remaining
        betas = (self.beta_initial, self.beta_final)
        return float(np.interp(progress, (0.0, self.beta_fraction), betas))

    def _log_prioritization(self, steps: list[Metrics]) -> None:
        """Log beta, the largest priority, and the metrics of gradient steps."""
        self.logger.record("train/beta", self.replay_buffer.beta)
        self.logger.record("train/priority_max", self.replay_buffer.prioritization.largest_priority)
        if steps:
            self._moments = averaged_moments(self._moments, steps)
            log_metrics(self.logger, self.logged_metrics, steps, self._moments)

    def learn(
        self: SelfPrioritized,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfPrioritized:
        """
        Train as SB3 does; beta follows SB3's training progress.

        If a second call continues with ``reset_num_timesteps=False``, SB3 counts its steps and
        those before as one training, so the progress, and with it beta, falls back at first.

        :param tb_log_name: By default the name of the class, such as PERDQN.
        """
        name = type(self).__name__ if tb_log_name is None else tb_log_name
        first = total_timesteps, callback, log_interval, name
        return super().learn(*first, reset_num_timesteps, progress_bar)

    @classmethod
    def load(
        cls: type[SelfPrioritized],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfPrioritized:
        """
        Load a model as SB3 does.

        :raises ValueError: for an argument out of its range, and for an option of the buffer that
            is not in ``replay_buffer_kwargs``.
        """
        refuse_buffer_options(cls, kwargs)
        try:
            return super().load(
                path, env, device, custom_objects, print_system_info, force_reset, **kwargs
            )
        except AssertionError as error:
            if "No data found" not in str(error):  # SB3's message for a zip file of something else
                raise
            name = cls.__name__
            raise ValueError(
                f"{path} must be a file of {name}.save (use load_checkpoint for checkpoints, "
                "load_buffer for files of save_buffer)"
            ) from error
