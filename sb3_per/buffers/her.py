"""Hindsight experience replay (HER) with priorities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import (
    KEY_TO_GOAL_STRATEGY,
    GoalSelectionStrategy,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from typing_extensions import Unpack

from sb3_per._utils import fill, map_arrays, require_one_of, require_whole
from sb3_per.buffers.prioritized import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBufferSamples,
)
from sb3_per.options import ReplayBufferKwargs
from sb3_per.prioritization.sampler import SampledBatch
from sb3_per.prioritization.sum_tree import IntArray


class PrioritizedHerReplayBuffer(  # type: ignore[misc]  # its batches: see PrioritizedReplayBuffer
    HerReplayBuffer, PrioritizedDictReplayBuffer
):
    """
    A ``HerReplayBuffer`` that samples transitions by priority, for the prioritized algorithms.

    The priority belongs to the stored transition, whatever goal it was replayed with: a TD error
    computed with a new goal also decides how often the transition is replayed with its own goal.

    A transition can be sampled after its episode has ended, until the episode's first transition is
    overwritten. Which part of a batch gets new goals does not depend on priority. As in
    ``HerReplayBuffer``, it is the last ``int(her_ratio * batch_size)`` transitions of the batch.

    All random numbers, including those for goals, come from the buffer's own generator, which is
    saved with it. The buffer must not be sampled while another thread adds transitions.
    Files and checkpoints store the buffer, except with ``copy_info_dict=True``.

    The arguments of ``HerReplayBuffer`` come first, in its order, and mean the same; then the
    options of ``PrioritizedReplayBuffer``.

    :param env: The environments, whose ``compute_reward`` gives the rewards for new goals; an
        algorithm passes its own. None if ``set_env`` follows before the first sample.
    :param optimize_memory_usage: Must be False.
    :param n_sampled_goal: How many transitions get a new goal for each one that keeps its goal.
    :param goal_selection_strategy: Where new goals come from: ``"future"`` (this step of the
        episode or a later one), ``"final"`` (the last step) or ``"episode"`` (any step).
    :param copy_info_dict: Store ``infos`` and pass them to ``compute_reward``.
    :param options: The options of ``PrioritizedReplayBuffer``, except ``n_stack``. ``n_steps`` must
        be 1.
    :raises ValueError: for an option out of its range, and for environments without goals.
    """

    _inserts_rows = False

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: VecEnv | None,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        **options: Unpack[ReplayBufferKwargs],
    ) -> None:
        require_goals(observation_space)
        if env is not None:
            require_compute_reward(env)
        require_whole("n_sampled_goal", n_sampled_goal, 0)
        if options.get("n_steps", 1) != 1 or optimize_memory_usage:
            raise ValueError(
                "n_steps must be 1 and optimize_memory_usage False with hindsight replay, got "
                f"{options.get('n_steps', 1)} and {optimize_memory_usage}"
            )
        if not isinstance(goal_selection_strategy, GoalSelectionStrategy):
            name, known = str(goal_selection_strategy).lower(), tuple(KEY_TO_GOAL_STRATEGY)
            require_one_of("goal_selection_strategy", name, known)
            goal_selection_strategy = KEY_TO_GOAL_STRATEGY[name]
        # Not HerReplayBuffer's constructor: it does not pass options on, and makes a dict for the
        # infos of each slot (70 MB for a million slots).
        PrioritizedDictReplayBuffer.__init__(
            self,
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
            **options,
        )
        self.env = env
        self.goal_selection_strategy = goal_selection_strategy
        self.n_sampled_goal = n_sampled_goal
        self.her_ratio = 1 - 1 / (n_sampled_goal + 1)
        self.copy_info_dict = copy_info_dict
        shape = (self.buffer_size, self.n_envs)
        self.infos = np.broadcast_to(np.array({}, dtype=object), shape)
        if copy_info_dict:
            self.infos = self.infos.copy()
        # For each row: where its episode starts, and how long it is; 0 while it has not ended.
        self.ep_start = np.zeros(shape, dtype=np.int64)
        self.ep_length = np.zeros(shape, dtype=np.int64)
        self._current_ep_start = np.zeros(self.n_envs, dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        # Environments are not stored: see `set_env`.
        state = PrioritizedDictReplayBuffer.__getstate__(self)
        del state["env"]
        return state

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        del arguments["n_stack"]
        return {
            **arguments,
            "n_sampled_goal": self.n_sampled_goal,
            "goal_selection_strategy": self.goal_selection_strategy.name.lower(),
            "copy_info_dict": self.copy_info_dict,
        }

    def _fits(self) -> dict[str, Any]:
        return {**super()._fits(), "hindsight replay": True}

    def _state_dict(self) -> dict[str, Any]:
        if self.copy_info_dict:
            raise ValueError(
                "copy_info_dict must be False for files, which hold numbers and no infos (pickle "
                "the buffer, or name numbers in info_keys)"
            )
        return {**super()._state_dict(), "episodes": self._episodes()}

    def _episodes(self) -> dict[str, NDArray[Any]]:
        n_rows = self.size()
        starts = {"start": self.ep_start[:n_rows], "length": self.ep_length[:n_rows]}
        return {**starts, "current_start": self._current_ep_start}

    def _fill(self, state: Mapping[str, Any]) -> None:
        # First: `_episodes` needs the size, and `_sync_every_slot` the episodes.
        self.pos, self.full = state["pos"], state["full"]
        fill(self._episodes(), state["episodes"])
        super()._fill(state)

    def sampleable_slots(self) -> IntArray:
        """Return the slots of the episodes that have ended and are stored as a whole."""
        slots: IntArray = np.flatnonzero(self.ep_length[: self.size()])
        return slots

    def add(  # type: ignore[override]  # as HerReplayBuffer
        self,
        obs: dict[str, NDArray[Any]],
        next_obs: dict[str, NDArray[Any]],
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Store one transition of every environment, as ``HerReplayBuffer.add`` does."""
        for env in np.flatnonzero(self.ep_length[self.pos]):
            self.sampler.remove(self._slots_of_episode(self.pos, int(env)))
        super().add(obs, next_obs, action, reward, done, infos)

    def _compute_episode_length(self, env_idx: int) -> None:
        # SB3 calls this wherever an episode ends.
        super()._compute_episode_length(env_idx)
        self.sampler.insert(self._slots_of_episode(self._newest_row, env_idx))

    def _slots_of_episode(self, row: int, env: int) -> IntArray:
        """Return the slots of the episode that has a transition in this row, in order of time."""
        steps = np.arange(self.ep_length[row, env])
        rows = (self.ep_start[row, env] + steps) % self.buffer_size
        slots: IntArray = rows * self.n_envs + env
        return slots

    def _truncate(self, envs: IntArray) -> None:
        """Treat running episodes as truncated; they can be sampled then."""
        super()._truncate(envs)
        for env in envs[self._current_ep_start[envs] != self.pos]:
            self._compute_episode_length(int(env))

    def set_env(self, env: VecEnv | None) -> None:
        """
        Compute the rewards for new goals with these environments from now on.

        Unlike SB3's, they may be changed; the running episodes are treated as truncated then.
        """
        if self.env is not None and env is not self.env:
            self.end_episodes()
        self.env = env

    def reset(self) -> None:
        """Empty the buffer; TD errors of earlier batches are dropped. The generator continues."""
        super().reset()
        self.ep_length[:] = 0
        self._current_ep_start[:] = self.pos

    def sample(  # type: ignore[override]  # see PrioritizedReplayBuffer
        self, batch_size: int, env: VecNormalize | None = None, *, beta: float | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        Sample a batch by priority, and give new goals to its last transitions.

        The arguments are those of ``PrioritizedReplayBuffer.sample``.

        :raises ValueError: if no episode has ended yet; nothing has changed then.
        """
        if self.env is None and self.n_sampled_goal > 0:
            raise ValueError(
                "a PrioritizedHerReplayBuffer without environments needs set_env(env) before it is "
                "sampled"
            )
        slots, weights = self._sample_slots(batch_size, beta)
        batch_size = len(slots)
        # Stratified batches are in order of slots or ranks, and priority must not decide which
        # transitions get new goals.
        order = self.generator.permutation(batch_size)
        slots, weights = slots[order], weights[order]
        rows, envs = np.divmod(slots, self.n_envs)
        n_real = batch_size - int(self.her_ratio * batch_size)
        parts: list[Any] = [self._get_real_samples(rows[:n_real], envs[:n_real], env)]
        if n_real < batch_size:
            parts.append(self._get_virtual_samples(rows[n_real:], envs[n_real:], env))
        *fields, _ = zip(*parts, strict=True)  # the last ones are discounts: None with one step
        joined = [map_arrays(lambda *tensors: th.cat(tensors), *field) for field in fields]
        return self._batch_of([*joined, None], SampledBatch(slots, weights))

    def _require_enough(self, batch_size: int) -> None:
        if self.n_sampleable == 0:
            raise ValueError(
                "HER only samples from whole episodes that have ended: learning_starts must be "
                "larger than an episode and buffer_size larger than two, times the number of "
                "environments (to continue with a loaded model, load its buffer, too), got no such "
                f"episode in {len(self)} of {self.n_slots} transitions"
            )
        super()._require_enough(batch_size)

    def _sample_goals(self, batch_indices: IntArray, env_indices: IntArray) -> NDArray[Any]:
        """Return new goals for transitions, as ``HerReplayBuffer`` chooses them."""
        starts = self.ep_start[batch_indices, env_indices]
        own_steps = (batch_indices - starts) % self.buffer_size
        lengths = self.ep_length[batch_indices, env_indices]
        if self.goal_selection_strategy is GoalSelectionStrategy.FINAL:
            steps = lengths - 1
        else:
            is_future = self.goal_selection_strategy is GoalSelectionStrategy.FUTURE
            steps = self.generator.integers(own_steps if is_future else 0, lengths)
        rows = (starts + steps) % self.buffer_size
        goals: NDArray[Any] = self.next_observations["achieved_goal"][rows, env_indices]
        return goals


def require_goals(observation_space: spaces.Space[Any]) -> None:
    """Raise ValueError unless observations have an achieved and a desired goal."""
    parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    if not {"achieved_goal", "desired_goal"} <= parts.keys():
        raise ValueError(
            "PrioritizedHerReplayBuffer needs Dict observations with achieved_goal and "
            f"desired_goal (without goals, leave replay_buffer_class out), got {observation_space}"
        )


def require_compute_reward(env: VecEnv | None) -> None:
    """Raise ValueError unless environments can compute the reward for another goal."""
    if not isinstance(env, VecEnv) or not env.has_attr("compute_reward"):
        raise ValueError(
            "PrioritizedHerReplayBuffer needs env to be a VecEnv, such as the result of "
            "model.get_env() or make_vec_env(...) (to load a model, pass env), with a method "
            f"compute_reward(achieved_goal, desired_goal, info), got {env}"
        )
