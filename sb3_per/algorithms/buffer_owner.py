"""The replay buffer that an algorithm owns, and how another one takes its place."""

import io
import pathlib
import pickle
from typing import Any

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv

from sb3_per.algorithms.buffer_options import (
    adopt_options,
    needs_ends,
    options_of,
    require_batches_to_fit,
    require_fitting_environments,
    require_matching_buffer,
    require_prioritized,
    warn_of_size,
)
from sb3_per.algorithms.loss_threshold import warn_of_lap
from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import PrioritizedReplayBuffer


class BufferOwner(OffPolicyAlgorithm):
    """The part of a prioritized algorithm that exchanges its buffer, environments and seed."""

    replay_buffer: PrioritizedReplayBuffer
    beta_initial: float
    beta_final: float
    # The options of the last buffer that the algorithm made or took over.
    _own_options: dict[str, Any]

    @property
    def loss_threshold(self) -> float | None:
        """
        Return the abs(TD error) at which the loss turns linear; None if it is quadratic everywhere.

        ``td_error_clip="loss"`` stands for this value.
        """
        return None

    @property
    def _kept_buffer(self) -> PrioritizedReplayBuffer | None:
        """Return the buffer; None after ``del model.replay_buffer``, which saves memory."""
        return getattr(self, "replay_buffer", None)

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
            warn_of_size(self.buffer_size, buffer)
            self.buffer_size = buffer.n_slots
        # When the model is saved and loaded, it makes a new buffer with these options.
        kind, own_options = self.replay_buffer_class, self._own_options
        if own is not None:  # not deleted
            own_options = options_of(own) if type(own) is kind else {}
        self.replay_buffer_kwargs = adopt_options(
            kind, self.replay_buffer_kwargs, own_options, buffer
        )
        self.optimize_memory_usage = buffer.optimize_memory_usage
        self.replay_buffer, self._own_options = buffer, options_of(buffer)
        self._warn_of_lap(buffer)

    def _warn_of_lap(self, buffer: PrioritizedReplayBuffer) -> None:
        name, betas = type(self).__name__, (self.beta_initial, self.beta_final)
        warn_of_lap(buffer.prioritization, self.loss_threshold, betas, name)

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
