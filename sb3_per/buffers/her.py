"""Hindsight experience replay (HER) with priorities."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.arguments import as_batch_size
from sb3_per.buffers.goals import (
    are_whole,
    as_strategy,
    goal_steps,
    require_compute_reward,
    require_goals,
    require_replayable,
    require_whole_episode,
)
from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples, concatenated
from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.sum_tree import IntArray
from sb3_per.rules import require
from sb3_per.signatures import explain_unknown_arguments


class PrioritizedHerReplayBuffer(HerReplayBuffer, PrioritizedDictReplayBuffer):
    """
    A ``HerReplayBuffer`` that samples transitions by priority, for the prioritized algorithms.

    The priority belongs to the stored transition, whatever goal it was replayed with: a TD error
    computed with a new goal also decides how often the transition is replayed with its own goal.

    A transition can be sampled after its episode has ended, until the episode's first transition is
    overwritten. Which part of a batch gets new goals does not depend on priority. As in
    ``HerReplayBuffer``, it is the last ``int(her_ratio * batch_size)`` transitions of the batch.

    All random numbers, including those for goals, come from the buffer's own generator, which is
    saved with it. The buffer must not be sampled while another thread adds transitions.
    ``save_buffer`` and checkpoints store the buffer, except with ``copy_info_dict=True``: use
    ``save_replay_buffer`` then.

    The arguments of ``HerReplayBuffer`` come first, in its order, and mean the same; then the
    options of ``PrioritizedReplayBuffer``.

    :param env: The environments, whose ``compute_reward`` gives the rewards for new goals; an
        algorithm passes its own. None if ``set_env`` follows before the first sample.
    :param optimize_memory_usage: Must be False.
    :param n_sampled_goal: How many transitions get a new goal for each one that keeps its goal.
    :param goal_selection_strategy: Where new goals come from: ``"future"`` (this step of the
        episode or a later one), ``"final"`` (the last step) or ``"episode"`` (any step).
    :param copy_info_dict: Store ``infos`` and pass them to ``compute_reward``.
    :param n_steps: Must be 1.
    :param gamma: Not used with one-step returns.
    :raises ValueError: for an option out of its range, and for environments without goals.
    """

    @explain_unknown_arguments({})
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
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        prioritization: str | Callable[..., Prioritization] = "proportional",
        prioritization_kwargs: dict[str, Any] | None = None,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
        td_error_clip: float | Literal["loss"] | None = None,
        uniform_share: float = 0.0,
        initial_priority: float = 1.0,
        new_priority: Literal["max_seen", "max_stored"] = "max_seen",
        weight_normalization: Literal["batch", "buffer", "mean", "none"] = "batch",
        stratified: bool = True,
        replacement: bool = True,
    ) -> None:
        require_goals(observation_space)
        if env is not None:
            require_compute_reward(env)
        require_replayable(n_sampled_goal, n_steps, optimize_memory_usage)
        strategy = as_strategy(goal_selection_strategy)
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
            n_steps=n_steps,
            gamma=gamma,
            prioritization=prioritization,
            prioritization_kwargs=prioritization_kwargs,
            alpha=alpha,
            beta=beta,
            eps=eps,
            td_error_clip=td_error_clip,
            uniform_share=uniform_share,
            initial_priority=initial_priority,
            new_priority=new_priority,
            weight_normalization=weight_normalization,
            stratified=stratified,
            replacement=replacement,
        )
        self.env = env
        self.goal_selection_strategy = strategy
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

    def __setstate__(self, state: dict[str, Any]) -> None:
        PrioritizedDictReplayBuffer.__setstate__(self, state)
        self.env = None  # environments are not stored: see `set_env`

    @property
    def n_sampleable(self) -> int:
        """Return how many slots hold a transition that can be sampled: N in the weights."""
        return self.sampler.n_sampleable

    def options(self) -> dict[str, Any]:
        """Return the options of HER and of prioritization, except its kind and beta."""
        return {
            **super().options(),
            "n_sampled_goal": self.n_sampled_goal,
            "goal_selection_strategy": self.goal_selection_strategy.name.lower(),
            "copy_info_dict": self.copy_info_dict,
        }

    def storage(self) -> dict[str, NDArray[Any]]:
        """
        Return views of the data by row or slot: transitions, episodes, awaited TD errors.

        :raises ValueError: with ``copy_info_dict=True``: infos may hold any objects.
        """
        rule = "copy_info_dict must be False for save_buffer and checkpoints, which cannot store "
        rule += "infos (save_replay_buffer pickles them)"
        require(not self.copy_info_dict, rule, self.copy_info_dict)
        return {
            **super().storage(),
            "ep_start": self.ep_start[: self.size()],
            "ep_length": self.ep_length[: self.size()],
            "current_ep_start": self._current_ep_start,
        }

    def restore_prioritization(self, state: dict[str, Any]) -> None:
        """
        Continue from a state of the prioritization.

        :raises ValueError: for a state that does not fit, for priorities of other transitions than
            those of episodes that have ended, and for stored episodes that do not fit.
        """
        rule = "stored ep_start, ep_length and current_ep_start must be those of whole episodes"
        n_rows = self.size()
        episodes = self.ep_start[:n_rows], self.ep_length[:n_rows], self._current_ep_start
        is_whole = are_whole(episodes, self.pos, self.buffer_size, is_full=self.full)
        require(is_whole, rule, self.ep_length[:n_rows])
        super().restore_prioritization(state)

    def _sampleable_slots(self) -> IntArray:
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
        """
        Store one transition of every environment, as ``HerReplayBuffer.add`` does.

        An episode can no longer be sampled when its first transition is overwritten.
        """
        for env in np.flatnonzero(self.ep_length[self.pos]):
            self.sampler.remove(self._slots_of_episode(self.pos, int(env)))
        super().add(obs, next_obs, action, reward, done, infos)

    def _compute_episode_length(self, env_idx: int) -> None:
        # SB3 calls this wherever an episode ends.
        super()._compute_episode_length(env_idx)
        last = (self.pos - 1) % self.buffer_size
        self.sampler.insert(self._slots_of_episode(last, env_idx))

    def _slots_of_episode(self, row: int, env: int) -> IntArray:
        """Return the slots of the episode that has a transition in this row, in order of time."""
        steps = np.arange(self.ep_length[row, env])
        rows = (self.ep_start[row, env] + steps) % self.buffer_size
        slots: IntArray = rows * self.n_envs + env
        return slots

    def hand_over_new_rows(self) -> None:
        """Do nothing: the sampler gets an episode when it ends, and loses it when overwritten."""

    def end_episodes(self) -> None:
        """
        Treat the running episodes as truncated; they can be sampled then.

        The next transitions belong to new episodes.
        """
        super().end_episodes()
        for env in np.flatnonzero(self._current_ep_start != self.pos):
            self._compute_episode_length(int(env))

    def continue_with(self, env: VecEnv | None) -> None:
        """
        Compute the rewards for new goals with these environments from now on.

        If they differ from the ones before, the running episodes are treated as truncated.
        """
        if env is not self.env:
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
        Sample a batch by priority, and give new goals to a part of it.

        :param batch_size: B, how many transitions.
        :param env: Normalizes observations and rewards, if given.
        :param beta: Exponent of this batch's weights; None for the buffer's ``beta``.
        :return: The batch: first the transitions with their own goals, then those with new goals.
        :raises ValueError: if no episode has ended yet, or the buffer holds too few transitions;
            nothing has changed then.
        """
        require_whole_episode(self)
        batch_size = as_batch_size(batch_size)
        n_virtual = int(self.her_ratio * batch_size)
        rule = "a PrioritizedHerReplayBuffer without environments needs set_env(env), or "
        rule += "use_replay_buffer of an algorithm, before it is sampled"
        require(self.env is not None or n_virtual == 0, rule, self.env)
        slots, weights = self._sample_slots(batch_size, beta)
        # Stratified batches are in order of slots or ranks, and priority must not decide which
        # transitions get new goals.
        order = self.generator.permutation(batch_size)
        slots, weights = slots[order], weights[order]
        parts: list[Any] = [self.gather(slots[: batch_size - n_virtual], env)]
        if n_virtual > 0:
            rows, envs = np.divmod(slots[batch_size - n_virtual :], self.n_envs)
            parts.append(self._get_virtual_samples(rows, envs, env))
        # Without discounts, since returns are of one step.
        fields = [concatenated([part[i] for part in parts]) for i in range(5)]
        batch = [*fields, None, self._tensor(weights), slots]
        return PrioritizedReplayBufferSamples._make(batch)

    def _sample_goals(self, batch_indices: IntArray, env_indices: IntArray) -> NDArray[Any]:
        """
        Return new goals for transitions, as ``HerReplayBuffer`` chooses them.

        The random numbers come from the buffer's generator instead of NumPy's global one, so a
        saved buffer continues with the same batches.

        :param batch_indices: Rows, shape (B,).
        :param env_indices: Environments, shape (B,).
        """
        starts = self.ep_start[batch_indices, env_indices]
        own_steps = (batch_indices - starts) % self.buffer_size
        lengths = self.ep_length[batch_indices, env_indices]
        steps = goal_steps(self.goal_selection_strategy, own_steps, lengths, self.generator)
        rows = (starts + steps) % self.buffer_size
        goals: NDArray[Any] = self.next_observations["achieved_goal"][rows, env_indices]
        return goals
