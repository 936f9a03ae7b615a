"""Demonstrations: arrays, SB3's buffers, Minari's datasets, and what a policy does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecNormalize,
    unwrap_vec_normalize,
)

from sb3_per._utils import map_arrays, require_whole, select
from sb3_per.buffers.files import is_archive, read_pickled_buffer
from sb3_per.buffers.storage import SlotReplayBuffer, info_values, rows_in_order

Transitions = dict[str, Any]  # arrays (n, ...), or dicts of arrays for Dict observations and infos

FIELDS = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")


def collect(
    policy: Any,
    env: gym.Env[Any, Any] | VecEnv,
    n: int,
    deterministic: bool = True,
    info_keys: Sequence[str] = (),
) -> Transitions:
    """
    Return n transitions of a policy that acts, for ``add_demonstrations`` of a model.

    Observations and rewards are not normalized, also if the policy sees those of ``VecNormalize``.

    :param policy: Anything with ``predict``, such as a model of SB3. If ``predict`` returns a
        state, as recurrent policies do, it gets ``state`` and ``episode_start`` in the next step.
    :param env: An environment of gymnasium, or vectorized environments of SB3, whose transitions
        follow each other. The last episode of each environment counts as truncated. They are reset,
        so do not pass those of a training that goes on.
    :param n: How many transitions, of all environments together.
    :param deterministic: As for ``predict``.
    :param info_keys: Keys of ``infos`` to return, too, for a buffer with ``info_keys``.
    :raises ValueError: for n below 1, for a model with ``VecNormalize`` if ``env`` has none, and if
        there are wrappers around it.
    """
    require_whole("n", n)
    given, is_single = env, not isinstance(env, VecEnv)
    normalize: Any = DummyVecEnv([lambda: given]) if is_single else env  # type: ignore[list-item,return-value]  # mypy takes no notice of is_single
    if not isinstance(normalize, VecNormalize):
        needed = getattr(policy, "get_vec_normalize_env", lambda: None)()
        if (needed is not None and needed.norm_obs) or unwrap_vec_normalize(normalize):
            raise ValueError(f"VecNormalize must be the outermost wrapper of env, got {env}")
        normalize = VecNormalize(normalize, training=False, norm_obs=False, norm_reward=False)
    envs = normalize.venv  # the last observations of episodes are clipped where it normalizes
    observations, memory, steps = map_arrays(np.copy, envs.reset()), dict[str, Any](), []
    for _ in range(-(-n // envs.num_envs)):
        seen = normalize.normalize_obs(observations)
        seen = select(seen, 0) if is_single else seen
        actions, state = policy.predict(seen, deterministic=deterministic, **memory)
        actions = np.array([actions] if is_single else actions)
        after, rewards, dones, infos = envs.step(actions)
        memory = {} if state is None else {"state": state, "episode_start": dones}
        last = map_arrays(np.copy, after)
        for i in np.flatnonzero(dones).tolist():
            map_arrays(np.copyto, select(last, np.s_[i : i + 1]), infos[i]["terminal_observation"])
        cuts = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        values = info_values(infos, info_keys)
        # Copies, since some environments return the same arrays in each step.
        steps.append((observations, actions, np.copy(rewards), last, dones & ~cuts, cuts, values))
        observations = map_arrays(np.copy, after)
    names = (*FIELDS, "infos") if info_keys else FIELDS
    found = {
        name: map_arrays(lambda *parts: _by_env(np.stack(parts))[:n], *column)
        for name, column in zip(names, zip(*steps, strict=True), strict=False)
    }
    ends = np.append(np.arange(len(steps), n, len(steps)), n) - 1
    found["truncations"][ends] |= ~found["terminations"][ends]
    return found


def transitions_of(source: Any) -> Transitions:
    """
    Return the transitions of a source; see ``PrioritizedReplayBuffer.add_demonstrations``.

    :raises ValueError: for another source, and for a dict without one of the fields.
    """
    if isinstance(source, str | os.PathLike):
        with open_path(Path(source), "r", suffix="pkl") as file:
            if is_archive(file):
                raise ValueError(
                    f"{source} is a file of save_buffer: fill a buffer with load_buffer, and add "
                    "the buffer"
                )
            source = read_pickled_buffer(file)
    if isinstance(source, ReplayBuffer):
        return _of_buffer(source)
    if hasattr(source, "iterate_episodes"):
        episodes = [_of_episode(episode) for episode in source.iterate_episodes()]
        if not episodes:
            raise ValueError("a Minari dataset must have at least one episode, got none")
        return _joined(*episodes)
    if isinstance(source, Mapping):
        if missing := [name for name in FIELDS if name not in source]:
            raise ValueError(f"demonstrations must have {', '.join(missing)}, got {[*source]}")
        return dict(source)
    raise ValueError(
        "demonstrations must be a dict of arrays, a ReplayBuffer or the path of its pickle, or a "
        f"Minari dataset, got {type(source).__name__}"
    )


def _of_buffer(buffer: ReplayBuffer) -> Transitions:
    """Return the transitions of SB3's buffer, one environment after the other."""
    rows, next_observations, next_rows = rows_in_order(buffer)
    is_done, is_truncated = buffer.dones[rows] > 0, buffer.timeouts[rows] > 0
    is_cut = is_truncated & ~is_done  # marks of `end_episodes`
    is_cut[-1:] |= ~is_done[-1:]
    transitions = {
        "observations": select(buffer.observations, rows),
        "actions": buffer.actions[rows],
        "rewards": buffer.rewards[rows],
        "next_observations": select(next_observations, next_rows),
        "terminations": is_done & ~is_truncated,
        "truncations": is_done & is_truncated,
        "is_cut": is_cut,
        "infos": select(getattr(buffer, "info_arrays", {}), rows),
    }
    found: Transitions = map_arrays(_by_env, transitions)
    demonstrations = getattr(buffer, "demonstrations", None)
    return found if demonstrations is None else _joined(found, _of_buffer(demonstrations))


def _joined(*parts: Transitions) -> Transitions:
    found: Transitions = map_arrays(lambda *arrays: np.concatenate(arrays), *parts)
    return found


def _of_episode(episode: Any) -> Transitions:
    observations = map_arrays(np.asarray, episode.observations)
    n = len(episode.rewards)
    return {
        "observations": select(observations, np.s_[:-1]),
        "actions": np.asarray(episode.actions),
        "rewards": np.asarray(episode.rewards),
        "next_observations": select(observations, np.s_[1:]),
        "terminations": np.asarray(episode.terminations),
        "truncations": np.asarray(episode.truncations),
        "is_cut": np.arange(n) == n - 1,  # Minari demands no flag at the end
    }


def add_transitions(buffer: SlotReplayBuffer, transitions: Transitions) -> None:
    """Add transitions of ``as_stored`` to a buffer with one environment, and end cut episodes."""
    for i in range(len(transitions["rewards"])):
        row = select(transitions, np.s_[i : i + 1])
        info = {key: values[0] for key, values in row["infos"].items()}
        info["TimeLimit.truncated"] = row["truncations"][0]
        observations = row["observations"], row["next_observations"]
        buffer.add(*observations, row["actions"], row["rewards"], row["dones"], [info])
        if row["is_cut"][0]:
            buffer.end_episodes()


def as_stored(source: Transitions, buffer: SlotReplayBuffer) -> Transitions:
    """Return transitions as ``add`` takes them; raise ValueError if they do not fit a buffer."""
    n = len(source["rewards"])
    observed = n, buffer.observation_space, buffer.obs_shape
    acted = n, buffer.action_space, (buffer.action_dim,)
    infos = {key: np.asarray(source["infos"][key]) for key in buffer.info_keys}
    for key, values in infos.items():
        if len(values) != n:
            raise ValueError(f"infos[{key!r}] must have {n} values, as rewards, got {len(values)}")
    terminations, truncations = (_flags(name, source[name], n) for name in FIELDS[-2:])
    truncations &= ~terminations
    is_cut = _flags("is_cut", source.get("is_cut", np.zeros(n)), n)
    is_cut[-1:] = True  # another source may follow
    return {
        "observations": _reshaped("observations", source["observations"], observed),
        "actions": _reshaped("actions", source["actions"], acted),
        "rewards": np.asarray(source["rewards"], dtype=np.float32).reshape(n),
        "next_observations": _reshaped("next_observations", source["next_observations"], observed),
        "dones": terminations | truncations,
        "truncations": truncations,
        "is_cut": is_cut,
        "infos": infos,
    }


def _flags(name: str, values: Any, n: int) -> NDArray[np.bool_]:
    array = np.array(values, dtype=bool)  # a copy
    if array.size != n:
        raise ValueError(f"{name} must have {n} values, as rewards, got {array.size}")
    return array.reshape(n)


def _reshaped(name: str, values: Any, to: tuple[int, spaces.Space[Any], Any]) -> Any:
    """
    Return elements of a space in the shape in which SB3 stores them.

    :param to: How many elements; the space; the shape of a stored one, or a dict of shapes.
    :raises ValueError: for arrays of another shape or kind of numbers, and for what a discrete
        space does not have.
    """
    n, space, stored = to
    if isinstance(space, spaces.Dict):
        return {
            key: _reshaped(f"{name}[{key!r}]", values[key], (n, part, stored[key]))
            for key, part in space.items()
        }
    array = np.asarray(values)
    fits = np.can_cast(array.dtype, space.dtype or array.dtype, "same_kind")  # no float as int
    if not fits or array.shape not in ((n, *(space.shape or ())), (n, *stored)):
        raise ValueError(
            f"{name} must be {n} elements of {space}, got {array.dtype} of shape {array.shape}"
        )
    if isinstance(space, spaces.Discrete):
        foreign = array[(array < space.start) | (array >= space.start + space.n)]
        if foreign.size:
            raise ValueError(f"{name} must be elements of {space}, got {foreign[0]}")
    return array.reshape(n, *stored)


def has_shape(observations: Any, space: spaces.Space[Any]) -> bool:
    """Return whether arrays (n, ...), or dicts of them, have the shape of a space."""
    if isinstance(space, spaces.Dict):
        return all(has_shape(observations[key], part) for key, part in space.items())
    return bool(np.shape(observations)[1:] == space.shape)


def _by_env(array: NDArray[Any]) -> NDArray[Any]:
    """Return rows (n, n_envs, ...) as (n * n_envs, ...), one environment after the other."""
    return np.concatenate([*np.moveaxis(array, 1, 0)])
