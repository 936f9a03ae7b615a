"""Checks for hindsight experience replay: goals, environments, stored episodes."""

from numbers import Integral
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.goal_selection_strategy import (
    KEY_TO_GOAL_STRATEGY,
    GoalSelectionStrategy,
)

from sb3_per.buffers.storage import SlotReplayBuffer
from sb3_per.prioritization.sum_tree import IntArray
from sb3_per.rules import require

GOALS = ("achieved_goal", "desired_goal")


def require_goals(observation_space: spaces.Space[Any]) -> None:
    """Raise ValueError unless observations have an achieved and a desired goal."""
    parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    has_goals = all(name in parts for name in GOALS)
    rule = f"PrioritizedHerReplayBuffer needs Dict observations with {' and '.join(GOALS)}"
    rule += " (without goals, leave replay_buffer_class out)"
    require(has_goals, rule, observation_space)


def require_compute_reward(env: VecEnv | None) -> None:
    """Raise ValueError unless environments can compute the reward for another goal."""
    rule = "PrioritizedHerReplayBuffer needs env to be a VecEnv, such as the result of "
    rule += "model.get_env() or make_vec_env(...) (to load a model, pass env)"
    require(isinstance(env, VecEnv), rule, env)
    rule = "PrioritizedHerReplayBuffer needs environments with a method "
    rule += "compute_reward(achieved_goal, desired_goal, info)"
    require(env is not None and env.has_attr("compute_reward"), rule, env)


def require_replayable(n_sampled_goal: Any, n_steps: Any, optimize_memory_usage: Any) -> None:
    """Raise ValueError for an invalid number of goals, and for options that HER does not have."""
    is_number = isinstance(n_sampled_goal, Integral) and not isinstance(n_sampled_goal, bool)
    is_number = is_number and n_sampled_goal >= 0
    require(is_number, "n_sampled_goal must be a whole number of at least 0", n_sampled_goal)
    require(n_steps == 1, "n_steps must be 1 with PrioritizedHerReplayBuffer", n_steps)
    rule = "optimize_memory_usage must be False with PrioritizedHerReplayBuffer"
    require(not optimize_memory_usage, rule, optimize_memory_usage)


def require_whole_episode(buffer: SlotReplayBuffer) -> None:
    """Raise ValueError unless a buffer holds an episode that has ended; say what helps."""
    reason = "(times the number of environments), since HER only samples from episodes that have "
    reason += "ended and are stored as a whole"
    rule = f"buffer_size must hold two episodes {reason}"
    require(buffer.n_sampleable > 0 or not buffer.full, rule, buffer.n_slots)
    rule = f"learning_starts must be larger than the length of the first episode {reason}; to "
    rule += "continue with a loaded model, load its buffer, too"
    require(buffer.n_sampleable > 0, rule, f"a sample after {buffer.n_stored} steps")


def as_strategy(strategy: GoalSelectionStrategy | str) -> GoalSelectionStrategy:
    """Return a strategy as SB3's enum; raise ValueError for an unknown one."""
    if isinstance(strategy, str):
        strategy = KEY_TO_GOAL_STRATEGY.get(strategy.lower(), strategy)
    is_known = isinstance(strategy, GoalSelectionStrategy)
    rule = f"goal_selection_strategy must be one of {tuple(KEY_TO_GOAL_STRATEGY)}"
    require(is_known, rule, strategy)
    return strategy  # type: ignore[return-value]  # it was checked


def goal_steps(
    strategy: GoalSelectionStrategy,
    own_steps: IntArray,
    lengths: IntArray,
    generator: np.random.Generator,
) -> IntArray:
    """
    Choose the step of its episode that each transition gets its new goal from.

    :param own_steps: The step of each transition in its episode, shape (B,).
    :param lengths: The length of each transition's episode, shape (B,).
    :param generator: Where the random numbers come from.
    :return: Steps, shape (B,).
    """
    if strategy is GoalSelectionStrategy.FINAL:
        return lengths - 1
    first = own_steps if strategy is GoalSelectionStrategy.FUTURE else 0
    return generator.integers(first, lengths)


def are_whole(
    episodes: tuple[IntArray, IntArray, IntArray], pos: int, n_rows: int, *, is_full: bool
) -> bool:
    """
    Return whether each row that can be sampled lies in an episode that is stored whole.

    :param episodes: Three arrays: for each stored row, the row where its episode starts, and the
        length of the episode (0 while it has not ended), both of shape (n_stored, n_envs); for each
        environment, the row where its running episode starts, shape (n_envs,).
    :param pos: The row that is written next.
    :param n_rows: Number of rows of the buffer.
    :param is_full: Whether all rows hold transitions.
    """
    starts, lengths, current = episodes
    if not (_are_in(current, 0, n_rows - 1) and _are_in(starts, 0, n_rows - 1)):
        return False
    # In a buffer that is not full, no episode continues in row 0.
    is_inside = is_full or (_are_in(current, 0, pos) and _are_in(starts + lengths, 0, len(starts)))
    if not (is_inside and _are_in(lengths, 0, n_rows)):
        return False
    rows = np.arange(len(starts))[:, None]
    steps, has_ended = (rows - starts) % n_rows, lengths > 0
    next_fits, former_fits = (
        (np.roll(lengths, by, axis=0) == lengths) & (np.roll(starts, by, axis=0) == starts)
        for by in (-1, 1)
    )
    is_whole = (steps < lengths) & ((steps == lengths - 1) | next_fits)
    is_whole &= (steps == 0) | former_fits
    is_running = (rows - current) % n_rows < (pos - current) % n_rows
    fits = np.where(is_running, ~has_ended & (starts == current), ~has_ended | is_whole)
    return bool(fits.all())


def _are_in(values: IntArray, low: int, high: int) -> bool:
    return bool(((values >= low) & (values <= high)).all())
