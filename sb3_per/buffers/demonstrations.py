"""Demonstrations: transitions from arrays, SB3's buffers, Minari's datasets, or an agent."""

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.storage import STORAGE, SlotReplayBuffer, rows_in_order

Transitions = dict[str, Any]  # arrays (n, ...), or dicts of arrays for Dict observations and infos

FIELDS = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")


def collect(
    policy: Any,
    env: gym.Env[Any, Any],
    n: int,
    deterministic: bool = True,
    info_keys: Sequence[str] = (),
) -> Transitions:
    """
    Return n transitions of an agent that acts, for ``add_demonstrations`` of a model.

    :param policy: Anything with ``predict``, such as a model of SB3.
    :param env: An environment of gymnasium.
    :param n: How many transitions.
    :param deterministic: As for ``predict``.
    :param info_keys: Keys of ``infos`` to return, too, for a buffer with ``info_keys``.
    """
    steps: list[tuple[Any, ...]] = []
    observation, _ = deepcopy(env.reset())  # an environment may return the same array again
    while len(steps) < n:
        action, _ = policy.predict(observation, deterministic=deterministic)
        next_observation, reward, terminated, truncated, info = deepcopy(env.step(action))
        step = observation, action, reward, next_observation, terminated, truncated
        steps.append((*step, {key: info[key] for key in info_keys}))
        observation = deepcopy(env.reset())[0] if terminated or truncated else next_observation
    names = (*FIELDS, "infos") if info_keys else FIELDS
    return {name: _stacked([step[i] for step in steps]) for i, name in enumerate(names)}


def transitions_of(source: Any) -> Transitions:
    """
    Return the transitions of a source; see ``PrioritizedReplayBuffer.add_demonstrations``.

    :raises ValueError: for another source.
    """
    if isinstance(source, str | os.PathLike):
        source = load_from_pkl(os.fspath(source))
    if isinstance(source, ReplayBuffer):
        return _of_buffer(source)
    if hasattr(source, "iterate_episodes"):
        joined: Transitions = _joined([_of_episode(one) for one in source.iterate_episodes()])
        return joined
    if isinstance(source, Mapping):
        return dict(source)
    raise ValueError(
        "demonstrations must be a dict of arrays, a ReplayBuffer or the path of its pickle, or a "
        f"Minari dataset, got {type(source).__name__}"
    )


def _of_buffer(buffer: ReplayBuffer) -> Transitions:
    """Return the transitions of SB3's buffer, one environment after the other."""
    ours: Any = buffer
    if isinstance(buffer, SlotReplayBuffer) and (ours.n_stack > 1 or ours.n_demonstration_rows > 0):
        raise ValueError("a buffer with n_stack or with demonstrations cannot be a source")
    rows, next_observations, next_rows = rows_in_order(buffer)
    ends = buffer.timeouts[rows] > 0
    is_done = buffer.dones[rows] > 0
    ends[-1:] |= ~is_done[-1:]

    def by_env(array: Any, chosen: NDArray[Any]) -> Any:
        if isinstance(array, dict):
            return {key: by_env(part, chosen) for key, part in array.items()}
        return np.concatenate([*np.moveaxis(array[chosen], 1, 0)])

    every = np.arange(len(rows))
    return {
        "observations": by_env(buffer.observations, rows),
        "actions": by_env(buffer.actions, rows),
        "rewards": by_env(buffer.rewards, rows),
        "next_observations": by_env(next_observations, next_rows),
        "terminations": by_env(is_done & ~ends, every),
        "truncations": by_env(ends, every),
    }


def _of_episode(episode: Any) -> Transitions:
    def part(observations: Any, start: int, stop: int | None) -> Any:
        if isinstance(observations, Mapping):
            return {key: part(value, start, stop) for key, value in observations.items()}
        return np.asarray(observations)[start:stop]

    return {
        "observations": part(episode.observations, 0, -1),
        "actions": np.asarray(episode.actions),
        "rewards": np.asarray(episode.rewards),
        "next_observations": part(episode.observations, 1, None),
        "terminations": np.asarray(episode.terminations),
        "truncations": np.asarray(episode.truncations),
    }


def add_demonstrations(buffer: Any, sources: Sequence[Transitions]) -> None:
    """
    Store transitions in the first rows of a ``PrioritizedReplayBuffer``; see its method.

    Each environment gets consecutive transitions, so that n-step returns stay within episodes. An
    episode that is cut counts as truncated there.
    """
    if buffer.n_stack > 1 or buffer.optimize_memory_usage or isinstance(buffer, HerReplayBuffer):
        raise ValueError(
            "demonstrations do not work with n_stack, optimize_memory_usage and hindsight replay"
        )
    if buffer.size() > 0:
        raise ValueError(
            "demonstrations must be added to an empty buffer, all in one call, got a buffer with "
            f"{len(buffer)} transitions"
        )
    checked = _joined([_checked(source, buffer) for source in sources])
    n = len(checked["rewards"])
    n_rows = -(-n // buffer.n_envs)
    if n_rows >= buffer.buffer_size:
        rule = f"buffer_size must be larger than the {n} demonstrations"
        raise ValueError(f"{rule}, got {buffer.n_slots}")
    buffer.make_info_arrays(checked["infos"])
    stores = {name: getattr(buffer, name) for name in STORAGE} | {"infos": buffer.info_arrays}
    start = 0
    for env in range(buffer.n_envs):
        n_of_env = len(range(env, n, buffer.n_envs))  # slots 0 to n - 1 are filled
        _put(stores, checked, env, slice(start, start + n_of_env))
        start += n_of_env
        if n_of_env > 0:
            last = n_of_env - 1, env
            buffer.timeouts[last] = max(buffer.timeouts[last], 1 - buffer.dones[last])
    buffer.pos = n_rows
    buffer._set_demonstrations(n)
    buffer.sampler.insert(np.arange(n))


def _put(store: Any, values: Any, env: int, chosen: slice) -> None:
    if isinstance(store, dict):
        for key, part in store.items():
            _put(part, values[key], env, chosen)
    else:
        store[: chosen.stop - chosen.start, env] = values[chosen]


def _checked(source: Transitions, buffer: Any) -> Transitions:
    """Return transitions as the buffer stores them; raise ValueError if they do not fit."""
    n = len(source["rewards"])
    observed = n, buffer.observation_space, buffer.obs_shape
    acted = n, buffer.action_space, (buffer.action_dim,)
    infos = {key: np.asarray(source["infos"][key]) for key in buffer.info_keys}
    for key, values in infos.items():
        if len(values) != n:
            raise ValueError(f"infos[{key!r}] must have {n} values, got {len(values)}")
    terminations = np.asarray(source["terminations"], dtype=bool).reshape(n)
    truncations = np.asarray(source["truncations"], dtype=bool).reshape(n) & ~terminations
    timeouts = truncations.astype(np.float32)
    dones = np.maximum(terminations, timeouts)
    timeouts[-1:] = np.maximum(timeouts[-1:], 1 - dones[-1:])  # another source may follow
    return {
        "observations": _reshaped("observations", source["observations"], observed),
        "actions": _reshaped("actions", source["actions"], acted),
        "rewards": np.asarray(source["rewards"], dtype=np.float32).reshape(n),
        "next_observations": _reshaped("next_observations", source["next_observations"], observed),
        "dones": dones,
        "timeouts": timeouts,
        "infos": infos,
    }


def _reshaped(name: str, values: Any, to: tuple[int, spaces.Space[Any], Any]) -> Any:
    """
    Return elements of a space in the shape in which SB3 stores them.

    :param to: How many elements; the space; the shape of a stored one, or a dict of shapes.
    :raises ValueError: for arrays of another shape or kind of numbers.
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
        rule = f"{name} must be {n} elements of {space}"
        raise ValueError(f"{rule}, got {array.dtype} of shape {array.shape}")
    return array.reshape(n, *stored)


def _stacked(values: Sequence[Any]) -> Any:
    """Return single values, or dicts of them, as arrays."""
    if isinstance(values[0], Mapping):
        return {key: np.stack([value[key] for value in values]) for key in values[0]}
    return np.stack(values)


def _joined(parts: Sequence[Any]) -> Any:
    """Return the concatenation of arrays, or of dicts of arrays."""
    if isinstance(parts[0], Mapping):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)
