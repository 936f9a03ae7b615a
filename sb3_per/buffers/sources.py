"""What people fill a buffer from: arrays, SB3's buffers, Minari's datasets, a policy that acts."""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from sb3_per._utils import map_arrays, require_whole, select
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
    :param env: An environment of gymnasium, or vectorized environments of SB3. The transitions of
        several environments follow each other. The last episode of each counts as truncated. They
        are reset, so take other ones than those of a training that goes on.
    :param n: How many transitions, of all environments together.
    :param deterministic: As for ``predict``.
    :param info_keys: Keys of ``infos`` to return, too, for a buffer with ``info_keys``.
    :raises ValueError: for n below 1, and for a model with ``VecNormalize`` if the environment has
        none.
    """
    require_whole("n", n)
    _require_normalization(policy, env)
    normalize = unwrap_vec_normalize(env) if isinstance(env, VecEnv) else None
    was_training = normalize is not None and normalize.training
    if normalize is not None:
        normalize.training = False  # else its statistics would change
    try:
        return _collected(policy, env, n, deterministic, info_keys)
    finally:
        if normalize is not None:
            normalize.training = was_training


def _collected(
    policy: Any,
    env: gym.Env[Any, Any] | VecEnv,
    n: int,
    deterministic: bool,
    info_keys: Sequence[str],
) -> Transitions:
    act = functools.partial(policy.predict, deterministic=deterministic)
    if isinstance(env, VecEnv):
        steps, n_of_env = _steps_of_vec_env(act, env, info_keys), -(-n // env.num_envs)
    else:
        steps, n_of_env = _steps_of_env(act, env, info_keys), n
    columns = zip(*itertools.islice(steps, n_of_env), strict=True)
    names = (*FIELDS, "infos") if info_keys else FIELDS
    found = {
        name: map_arrays(lambda array: _by_env(array)[:n], _stacked(column))
        for name, column in zip(names, columns, strict=False)
    }
    ends = np.append(np.arange(n_of_env, n, n_of_env), n) - 1
    found["truncations"][ends] |= ~found["terminations"][ends]
    return found


def _require_normalization(policy: Any, env: gym.Env[Any, Any] | VecEnv) -> None:
    """Raise ValueError if a model has ``VecNormalize`` for its observations, and env has none."""
    normalize = getattr(policy, "get_vec_normalize_env", lambda: None)()
    if normalize is None or not normalize.norm_obs:
        return
    if not (isinstance(env, VecEnv) and unwrap_vec_normalize(env)):
        rule = "a model with VecNormalize needs an environment with it, such as model.get_env()"
        raise ValueError(f"{rule}, got {env}")


def _steps_of_env(
    act: Callable[..., Any], env: gym.Env[Any, Any], info_keys: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield transitions as ``_steps_of_vec_env`` does, of one environment."""
    observation, _ = env.reset()
    memory: dict[str, Any] = {}
    while True:
        before = _stacked([observation])  # a copy: an environment may return the same array again
        action, state = act(observation, **memory)
        observation, reward, terminated, truncated, info = env.step(action)
        after, infos = _stacked([observation]), info_values([info], info_keys)
        yield before, _stacked([action]), [reward], after, [terminated], [truncated], infos
        is_over = terminated or truncated
        memory = {} if state is None else {"state": state, "episode_start": np.array([is_over])}
        if is_over:
            observation, _ = env.reset()


def _steps_of_vec_env(
    act: Callable[..., Any], env: VecEnv, info_keys: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield one transition of every environment at a time: ``FIELDS`` and infos, (n_envs, ...)."""
    normalize = unwrap_vec_normalize(env)
    if normalize is None:
        env = normalize = VecNormalize(env, training=False, norm_obs=False, norm_reward=False)
    observations = env.reset()
    memory: dict[str, Any] = {}
    while True:
        before = normalize.get_original_obs()
        actions, state = act(observations, **memory)
        observations, _, dones, infos = env.step(actions)
        after = normalize.get_original_obs()
        for i in np.flatnonzero(dones).tolist():
            last = normalize.unnormalize_obs(infos[i]["terminal_observation"])
            map_arrays(_write, select(after, np.s_[i : i + 1]), last)
        truncations = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        ends = dones & ~truncations, truncations
        rewards = normalize.get_original_reward()
        yield before, np.array(actions), rewards, after, *ends, info_values(infos, info_keys)
        memory = {} if state is None else {"state": state, "episode_start": dones}


def _write(target: NDArray[Any], values: NDArray[Any]) -> None:
    # `VecNormalize` has rounded them to float32 in between, so whole numbers are whole no more.
    target[...] = np.rint(values) if target.dtype.kind in "iu" else values


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
        found: Transitions = joined([_of_episode(episode) for episode in source.iterate_episodes()])
        return found
    if isinstance(source, Mapping):
        return dict(source)
    raise ValueError(
        "demonstrations must be a dict of arrays, a ReplayBuffer or the path of its pickle, or a "
        f"Minari dataset, got {type(source).__name__}"
    )


def _of_buffer(buffer: ReplayBuffer) -> Transitions:
    """Return the transitions of SB3's buffer, one environment after the other."""
    rows, next_observations, next_rows = rows_in_order(buffer)
    ends = buffer.timeouts[rows] > 0
    is_done = buffer.dones[rows] > 0
    ends[-1:] |= ~is_done[-1:]
    transitions = {
        "observations": select(buffer.observations, rows),
        "actions": buffer.actions[rows],
        "rewards": buffer.rewards[rows],
        "next_observations": select(next_observations, next_rows),
        "terminations": is_done & ~ends,
        "truncations": ends,
    }
    found: Transitions = map_arrays(_by_env, transitions)
    return found


def _of_episode(episode: Any) -> Transitions:
    observations = map_arrays(np.asarray, episode.observations)
    return {
        "observations": select(observations, np.s_[:-1]),
        "actions": np.asarray(episode.actions),
        "rewards": np.asarray(episode.rewards),
        "next_observations": select(observations, np.s_[1:]),
        "terminations": np.asarray(episode.terminations),
        "truncations": np.asarray(episode.truncations),
    }


def as_stored(source: Transitions, buffer: SlotReplayBuffer) -> Transitions:
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


def has_shape(observations: Any, space: spaces.Space[Any]) -> bool:
    """Return whether arrays (n, ...), or dicts of them, have the shape of a space."""
    if isinstance(space, spaces.Dict):
        return all(has_shape(observations[key], part) for key, part in space.items())
    return bool(np.shape(observations)[1:] == space.shape)


def _by_env(array: NDArray[Any]) -> NDArray[Any]:
    """Return rows (n, n_envs, ...) as (n * n_envs, ...), one environment after the other."""
    return np.concatenate([*np.moveaxis(array, 1, 0)])


def _stacked(values: Sequence[Any]) -> Any:
    """Return single values, or dicts of them, as arrays."""
    return map_arrays(lambda *parts: np.stack(parts), *values)


def joined(parts: Sequence[Any]) -> Any:
    """Return the concatenation of arrays, or of dicts of arrays."""
    return map_arrays(lambda *arrays: np.concatenate(arrays), *parts)
