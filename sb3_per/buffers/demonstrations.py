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

from sb3_per._utils import require_whole
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
    :raises ValueError: for other n than whole numbers of at least 1.
    """
    require_whole("n", n)
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
    if buffer.n_stack > 1 or buffer.optimize_memory_usage:
        raise ValueError("demonstrations do not work with n_stack and optimize_memory_usage")
    if buffer.size() > 0:
        raise ValueError(
            "demonstrations must be added to an empty buffer, all in one call, got a buffer with "
            f"{len(buffer)} transitions"
        )
    checked = _joined([_checked(source, buffer) for source in sources])
    n = len(checked["rewards"])
    n_rows = -(-n // buffer.n_envs)
    if not 0 < n_rows < buffer.buffer_size:
        rule = f"buffer_size must be larger than the {n} demonstrations, which must be at least 1"
        raise ValueError(f"{rule}, got {buffer.n_slots}")
    buffer.store_infos_like({key: array[0] for key, array in checked["infos"].items()})
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
    """Return transitions with SB3's dones and timeouts; raise ValueError if they do not fit."""
    missing = [name for name in FIELDS if name not in source]
    if missing:
        raise ValueError(f"demonstrations must have {FIELDS}, got none of {missing}")
    n = len(source["rewards"])
    for name in ("observations", "next_observations"):
        _require_fit(name, source[name], buffer.observation_space, n)
    _require_fit("actions", source["actions"], buffer.action_space, n)
    for name in ("rewards", "terminations", "truncations"):
        if np.size(source[name]) != n:
            raise ValueError(f"{name} must be {n} numbers, got shape {np.shape(source[name])}")
    infos = {key: np.asarray(array) for key, array in source.get("infos", {}).items()}
    lengths = {key: infos[key].shape[:1] if key in infos else None for key in buffer.info_keys}
    if any(length != (n,) for length in lengths.values()):
        raise ValueError(f"infos must have arrays of {n} values, got lengths {lengths}")
    terminations = np.asarray(source["terminations"], dtype=bool).reshape(n)
    truncations = np.asarray(source["truncations"], dtype=bool).reshape(n) & ~terminations
    timeouts = truncations.astype(np.float32)
    dones = np.maximum(terminations, timeouts)
    timeouts[-1:] = np.maximum(timeouts[-1:], 1 - dones[-1:])  # another source may follow
    return {
        "observations": _shaped(source["observations"], buffer.obs_shape),
        "actions": np.asarray(source["actions"]).reshape(n, buffer.action_dim),
        "rewards": np.asarray(source["rewards"], dtype=np.float32).reshape(n),
        "next_observations": _shaped(source["next_observations"], buffer.obs_shape),
        "dones": dones,
        "timeouts": timeouts,
        "infos": {key: infos[key] for key in buffer.info_keys},
    }


def _require_fit(name: str, values: Any, space: spaces.Space[Any], n: int) -> None:
    """Raise ValueError unless values are n elements of a space, by shape and type."""
    if isinstance(space, spaces.Dict):
        if not isinstance(values, Mapping) or not set(space.spaces) <= set(values):
            got = [*values] if isinstance(values, Mapping) else type(values).__name__
            raise ValueError(f"{name} must be a dict of {[*space.spaces]}, got {got}")
        for key, part in space.spaces.items():
            _require_fit(f"{name}[{key!r}]", values[key], part, n)
        return
    array, shape = np.asarray(values), space.shape or ()
    is_number = array.dtype.kind in ("biu" if np.dtype(space.dtype).kind in "iu" else "biuf")
    if not is_number or array.shape not in ((n, *shape), (n, *(shape or (1,)))):
        raise ValueError(
            f"{name} must be {n} elements of {space}, got {array.dtype} of shape {array.shape}"
        )


def _shaped(values: Any, shape: Any) -> Any:
    """Return observations in the shape in which SB3 stores them."""
    if isinstance(shape, dict):
        return {key: _shaped(values[key], part) for key, part in shape.items()}
    return np.asarray(values).reshape(-1, *shape)


def _stacked(values: Sequence[Any]) -> Any:
    """Return single values, or dicts of them, as arrays."""
    if isinstance(values[0], Mapping):
        return {key: np.stack([value[key] for value in values]) for key in values[0]}
    return np.stack(values)


def _joined(parts: Sequence[Any]) -> Any:
    """Return the concatenation of arrays, or of dicts of arrays; raise ValueError for none."""
    if len(parts) == 0:
        raise ValueError("there must be at least 1 demonstration, got none")
    if isinstance(parts[0], Mapping):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)
