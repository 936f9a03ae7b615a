"""The base of all prioritized algorithms: it keeps their buffer and the schedule of beta."""

import io
import pathlib
import pickle
import warnings
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn

from sb3_per.algorithms.buffer_options import (
    adopt_options,
    clip_at_threshold,
    complete_options,
    needs_ends,
    refuse_buffer_options,
    require_batches_to_fit,
    require_fitting_environments,
    require_matching_buffer,
    require_prioritized,
    resolve_buffer_class,
    warn_of_lap,
)
from sb3_per.algorithms.metrics import Metrics
from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import PrioritizedReplayBuffer
from sb3_per.rules import require_fraction, require_positive

SelfPrioritized = TypeVar("SelfPrioritized", bound="PrioritizedAlgorithm")


class UnsupportedActionsError(ValueError, AssertionError):
    """Raised for actions that an algorithm does not support; SB3 raises an AssertionError."""


class PrioritizedAlgorithm(OffPolicyAlgorithm):
    """
    The part of a prioritized algorithm that does not depend on how the algorithm learns.

    It is a mixin; name it before the algorithm of SB3: ``class PERDQN(PrioritizedAlgorithm, DQN)``.
    It makes the buffer, keeps beta's schedule, sets seeds, loads models and logs metrics. The
    algorithm itself weights its loss and passes the TD errors to the buffer.

    :param args: The arguments of the algorithm of SB3.
    :param beta_initial: Exponent of the importance-sampling weights at the start, in [0, 1].
    :param beta_final: The exponent at the end of the annealing, in [0, 1].
    :param beta_fraction: Part of the training over which beta moves linearly, in (0, 1].
    :param kwargs: The arguments of the algorithm of SB3.
    :raises ValueError: for an argument out of its range or a replay buffer without priorities.
    """

    replay_buffer: PrioritizedReplayBuffer

    # Which metrics of gradient steps are logged as ``train/<name>``.
    logged_metrics: ClassVar[tuple[str, ...]] = Metrics._fields

    @property
    def loss_threshold(self) -> float | None:
        """
        Return the abs(TD error) at which the loss turns linear; None if it is quadratic everywhere.

        ``td_error_clip="loss"`` stands for this value.
        """
        return None

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

    @property
    def _kept_buffer(self) -> PrioritizedReplayBuffer | None:
        """Return the buffer; None after ``del model.replay_buffer``, which saves memory."""
        return getattr(self, "replay_buffer", None)

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
        warn_of_lap(self.replay_buffer.prioritization, self.loss_threshold, type(self).__name__)

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
        try:
            rollout = super().collect_rollouts(*args, **kwargs)
            is_complete = rollout.continue_training
        finally:
            if not is_complete:
                self._last_obs = None
        return rollout

    def _annealed_beta(self) -> float:
        """Return beta at this point of the training: linear, then constant."""
        progress = 1.0 - self._current_progress_remaining
        betas = (self.beta_initial, self.beta_final)
        return float(np.interp(progress, (0.0, self.beta_fraction), betas))

    def _log_prioritization(self, steps: list[Metrics]) -> None:
        """Log beta, the largest priority, and the means of the metrics of gradient steps."""
        self.logger.record("train/beta", self.replay_buffer.beta)
        self.logger.record("train/priority_max", self.replay_buffer.prioritization.largest_priority)
        for name in self.logged_metrics if steps else ():
            values = [getattr(metrics, name) for metrics in steps]
            self.logger.record(f"train/{name}", sum(values) / len(steps))

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

    def load_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True
    ) -> None:
        """
        Load a buffer as SB3 does, with its priorities and the state of its random generator.

        :raises ValueError: if the file does not hold a buffer with priorities that fits the model;
            the model keeps its own buffer then.
        """
        own = self._kept_buffer
        try:
            super().load_replay_buffer(path, truncate_last_traj)
            loaded = self.replay_buffer
        except AssertionError as error:  # SB3's, for what is no buffer
            raise ValueError(str(error)) from error
        except (EOFError, pickle.UnpicklingError) as error:
            raise ValueError(
                f"{path} must be a whole file of save_replay_buffer (use load_buffer for files of "
                f"save_buffer): {error}"
            ) from error
        finally:
            self.replay_buffer = own  # type: ignore[assignment]  # None if it was deleted
        require_prioritized("load_replay_buffer", loaded)
        is_continued = isinstance(loaded, PrioritizedHerReplayBuffer) and not truncate_last_traj
        self._adopt(loaded, ends_episodes=not is_continued)

    def use_replay_buffer(self, buffer: PrioritizedReplayBuffer) -> None:
        """
        Continue with another buffer, with its options, its priorities and its random generator.

        ``buffer_size`` and ``replay_buffer_kwargs`` take the buffer's values, with a warning if you
        had set others. During a run, the last episodes in the buffer are treated as truncated,
        because the model's environments are in other episodes.

        :param buffer: A buffer, for example from ``sb3_per.load_buffer``.
        :raises ValueError: if the buffer has no priorities or does not fit the model; the model
            keeps its own buffer then.
        """
        require_prioritized("use_replay_buffer", buffer)
        self._adopt(buffer, ends_episodes=True)

    def _adopt(self, buffer: PrioritizedReplayBuffer, ends_episodes: bool) -> None:
        require_matching_buffer(buffer, self)
        require_batches_to_fit(buffer, self.batch_size)
        if self.env is not None:
            require_fitting_environments(type(buffer), buffer.n_stack, self.env)
        buffer.device = self.device
        own = self._kept_buffer
        is_elsewhere = self._last_obs is not None and buffer is not own
        if ends_episodes and is_elsewhere and needs_ends(buffer):
            buffer.end_episodes()
        if isinstance(buffer, PrioritizedHerReplayBuffer):
            buffer.continue_with(self.env)
        if buffer.buffer_size != max(self.buffer_size // self.n_envs, 1):
            warnings.warn(
                f"buffer_size is now {buffer.n_slots}, the loaded buffer's, instead of "
                f"{self.buffer_size}",
                stacklevel=3,
            )
            self.buffer_size = buffer.n_slots
        # When the model is saved and loaded, it makes a new buffer with these options.
        self.replay_buffer_kwargs = adopt_options(
            self.replay_buffer_class, self.replay_buffer_kwargs, own, buffer
        )
        self.optimize_memory_usage = buffer.optimize_memory_usage
        self.replay_buffer = buffer

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Continue with other environments, as SB3 does; hindsight replay uses them, too."""
        env = self._wrap_env(env, self.verbose)
        buffer = self._kept_buffer
        if buffer is not None:
            require_fitting_environments(type(buffer), buffer.n_stack, env)
        super().set_env(env, force_reset)
        if isinstance(buffer, PrioritizedHerReplayBuffer):
            buffer.continue_with(self.env)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Set all seeds as SB3 does, and seed the buffer's random generator."""
        super().set_random_seed(seed)
        buffer = self._kept_buffer  # None while the model is built
        if seed is not None and buffer is not None:
            buffer.generator = np.random.default_rng(seed)

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
