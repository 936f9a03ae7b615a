"""SB3's replay storage, read by slot: ``row * n_envs + env`` names one transition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per._utils import fill, map_arrays, require_number, require_whole, select
from sb3_per.buffers.frames import FrameStore, StackedRows, StackLayout
from sb3_per.prioritization.sum_tree import IntArray

CPU = th.device("cpu")
# The arrays in which SB3 keeps transitions.
STORAGE = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class SlotReplayBuffer(ReplayBuffer):
    """
    A ``ReplayBuffer`` whose transitions can be gathered by slot, for Dict observations, too.

    SB3's ``_get_samples`` picks environments at random, so it cannot read one transition. Here it
    gets slots, which equal rows with one environment. Override it to change the transitions of a
    batch: other rewards, for example.

    ``PrioritizedReplayBuffer`` explains the arguments.
    """

    frames: FrameStore | None  # None for whole observations

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        n_stack: int | None = None,
        info_keys: Sequence[str] = (),
    ) -> None:
        require_whole("buffer_size", buffer_size)
        n_stack = 1 if n_stack is None else n_stack  # an algorithm decides by its environments
        for name, value in {"n_steps": n_steps, "n_stack": n_stack}.items():
            require_whole(name, value)
            if value > 1 and optimize_memory_usage:
                raise ValueError(f"{name} must be 1 with optimize_memory_usage, got {value}")
        require_number("gamma", gamma, 0, 1)
        if isinstance(info_keys, str):
            raise ValueError(f"info_keys must be a list of keys, got {info_keys!r}")
        has_dict = isinstance(observation_space, spaces.Dict)
        if has_dict and not isinstance(self, DictReplayBuffer):
            raise ValueError(
                "Dict observations need a buffer such as PrioritizedDictReplayBuffer, got "
                f"{type(self).__name__}"
            )
        # SB3 allocates whole observations; frames are stored elsewhere, so its space is empty then.
        space = observation_space
        if n_stack > 1 and not has_dict:
            space = spaces.Box(0, 0, (0,), np.uint8)
        super().__init__(
            int(buffer_size),
            space,
            action_space,
            device,
            n_envs=int(n_envs),
            optimize_memory_usage=bool(optimize_memory_usage),
            handle_timeout_termination=handle_timeout_termination,
        )
        self.n_steps = int(n_steps)
        self.gamma = float(gamma)  # NumPy's would make float64 of rewards
        self.n_stack = int(n_stack)
        self.info_keys = tuple(info_keys)
        self.info_arrays: dict[str, NDArray[Any]] = {}  # made by the first transition
        self.frames = None
        if n_stack > 1:
            self.observation_space = observation_space
            self.obs_shape = get_obs_shape(observation_space)  # type: ignore[assignment]  # of SB3
            layout = StackLayout(observation_space, self.n_stack, self.n_envs)
            self.frames = frames = FrameStore(self.buffer_size, layout)
            rows: Any = StackedRows  # SB3 declares arrays
            self.observations = rows(frames.observations, self.buffer_size, layout)
            self.next_observations = rows(frames.next_observations, self.buffer_size, layout)

    @property
    def nbytes(self) -> int:
        """Return how many bytes the transitions of a full buffer take."""
        sizes = [] if self.frames is None else [self.frames.nbytes]
        map_arrays(lambda array: sizes.append(array.nbytes), self._arrays())
        return sum(sizes)

    def _arrays(self) -> dict[str, Any]:
        """Return the arrays of transitions by name, except frames; dicts for Dict observations."""
        names = [name for name in STORAGE if hasattr(self, name)]
        if self.frames is not None:
            names = names[2:]
        return {**{name: getattr(self, name) for name in names}, "infos": self.info_arrays}

    @property
    def n_slots(self) -> int:
        """Return how many transitions fit in, of all environments together."""
        return self.buffer_size * self.n_envs

    def __len__(self) -> int:
        """Return how many slots hold a transition: the first ones."""
        return self.size() * self.n_envs

    def __bool__(self) -> bool:
        """Return True, also for an empty buffer."""
        return True

    def _state_dict(self) -> dict[str, Any]:
        """Return everything that is stored: views of arrays, and values that JSON can hold."""
        state = {
            "fits": self._fits(),
            "pos": int(self.pos),
            "full": bool(self.full),
            "arrays": self._views(),
        }
        return state if self.frames is None else {**state, "frames": self.frames.state_dict()}

    def _fits(self) -> dict[str, Any]:
        """Return what two buffers must have in common for a file of one to fill the other."""
        return {
            "buffer_size": self.buffer_size,
            "observation_space": described(self.observation_space),
            "action_space": described(self.action_space),
            "n_envs": self.n_envs,
            "optimize_memory_usage": self.optimize_memory_usage,
            "n_stack": self.n_stack,
            "info_keys": [*self.info_keys],
            "hindsight replay": False,
        }

    def _views(self) -> Any:
        """Return views of the rows that are used, by name; in dicts for Dict observations."""
        # Memory-optimised storage holds the last next observation in the row at the write head.
        n_rows = min(self.size() + self.optimize_memory_usage, self.buffer_size)
        return select(self._arrays(), np.s_[:n_rows])

    def _require_fitting(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless ``_fill`` can fill this buffer."""
        stored, own = state["fits"], self._fits()
        if names := [name for name in own if own[name] != stored.get(name)]:
            differences = ", ".join(f"{name} {stored.get(name)}, got {own[name]}" for name in names)
            raise ValueError(f"the buffer must be like the stored one, with {differences}")
        if not 0 <= state["pos"] < self.buffer_size:
            raise ValueError(f"pos must lie in [0, {self.buffer_size}), got {state['pos']}")

    def _fill(self, state: Mapping[str, Any]) -> None:
        """Fill an empty buffer from a state of ``_state_dict``."""
        arrays = state["arrays"]
        self.info_arrays = {
            key: np.zeros((self.buffer_size, self.n_envs, *values.shape[2:]), values.dtype)
            for key, values in arrays["infos"].items()
        }
        self.pos, self.full = state["pos"], state["full"]
        fill(self._views(), arrays)
        if self.frames is not None:
            self.frames.load_state_dict(state["frames"], self.size())

    def _slots_of(self, row: int) -> IntArray:
        """Return the slots of a row, shape (n_envs,)."""
        return np.arange(row * self.n_envs, (row + 1) * self.n_envs)

    @property
    def _newest_row(self) -> int:
        """Return the row that was written last."""
        return (self.pos - 1) % self.buffer_size

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Store one transition of every environment, as ``ReplayBuffer.add`` does."""
        action = action.reshape(self.n_envs, self.action_dim)  # raises before anything is written
        row = self.pos
        values = {}
        if self.info_keys:
            values = info_values(infos, self.info_keys)
            self._make_info_arrays(values)
        if self.frames is not None:
            self.frames.add(row, self.full, obs, next_obs)
        else:
            self._put(self.observations, row, obs)
            if self.optimize_memory_usage:
                self._put(self.observations, (row + 1) % self.buffer_size, next_obs)
            else:
                self._put(self.next_observations, row, next_obs)
        self.actions[row] = action
        self.rewards[row] = reward
        self.dones[row] = done
        if self.handle_timeout_termination:
            # As an array, like SB3: then a flag may also be an array with one element.
            self.timeouts[row] = np.array(
                [info.get("TimeLimit.truncated", False) for info in infos]
            )
        else:
            self.timeouts[row] = 0  # clears the mark of `end_episodes` on the overwritten row
        for key, value in values.items():
            self.info_arrays[key][row] = value
        # First `full`, so that another thread never sees an empty buffer.
        self.full = self.full or row + 1 == self.buffer_size
        self.pos = (row + 1) % self.buffer_size
        self._insert_row(row)

    def _insert_row(self, row: int) -> None:
        """Do what a subclass has to do with a row that was stored."""

    def _refill_from(self, buffer: ReplayBuffer) -> None:
        """
        Replace everything by the newest transitions of a buffer with the same spaces, in order.

        :raises ValueError: before anything has changed, for a buffer of SB3 if infos are stored.
        """
        ours: Any = buffer if isinstance(buffer, SlotReplayBuffer) else None
        if self.info_keys and ours is None:
            raise ValueError(f"SB3's buffers have no infos, so info_keys={[*self.info_keys]} fail")
        arrays = {} if ours is None else ours.info_arrays
        rows, next_observations, next_rows = rows_in_order(buffer)
        self.reset()
        stored: Any = getattr(buffer, "infos", [[{}] * self.n_envs] * buffer.buffer_size)  # of HER
        for row, next_row in [*zip(rows, next_rows, strict=True)][-self.buffer_size :]:
            both = select(buffer.observations, row), select(next_observations, next_row)
            infos = [
                {**stored[row][env], **{key: array[row, env] for key, array in arrays.items()}}
                for env in range(self.n_envs)
            ]
            for info, timeout in zip(infos, buffer.timeouts[row], strict=True):
                info["TimeLimit.truncated"] = timeout > 0
            # An `add` of the user's has changed what is in our buffers, but not what is in SB3's.
            kind: Any = type(self) if ours is None else library_class(self)
            part = buffer.actions[row], buffer.rewards[row], buffer.dones[row], infos
            kind.add(self, *both, *part)
            # Marks of `end_episodes`, which `add` would take for steps within an episode.
            self._truncate(np.flatnonzero(buffer.timeouts[row] > buffer.dones[row]))

    def _put(self, store: Any, row: int, observations: Any) -> None:
        if isinstance(store, dict):
            for key, part in store.items():
                self._put(part, row, observations[key])
        elif store.shape[1:] == (self.n_envs, 1):  # Discrete ones come without the last axis
            store[row] = np.reshape(observations, (self.n_envs, 1))
        else:
            store[row] = observations

    def _make_info_arrays(self, values: Mapping[str, NDArray[Any]]) -> None:
        """
        Make the arrays of ``info_keys``; if they are there, check that the values fit.

        :param values: The values of some transitions by key, (n, ...) each.
        :raises ValueError: for values that are not numbers, or of another shape than before;
            nothing has changed then.
        """
        arrays = {}
        for key, value in values.items():
            shape = self.buffer_size, self.n_envs, *value.shape[1:]
            array = self.info_arrays.get(key)
            if array is None:
                array = np.zeros(shape, np.float32)
            if value.dtype.kind not in "biuf" or array.shape != shape:
                raise ValueError(
                    f"info_keys: infos[{key!r}] must be numbers of shape {array.shape[2:]}, got "
                    f"{value.dtype} of shape {shape[2:]}"
                )
            arrays[key] = array
        self.info_arrays = arrays

    def _infos_of(self, slots: IntArray) -> dict[str, th.Tensor]:
        """Return the values of ``info_keys`` in slots, (B, ...) each; numbers as (B, 1)."""
        return {
            key: self._tensor(_take(array, slots).reshape(len(slots), *(array.shape[2:] or (1,))))
            for key, array in self.info_arrays.items()
        }

    def end_episodes(self) -> None:
        """
        Treat the running episodes as truncated, so that no n-step return crosses into the next one.

        Memory-optimised storage loses the last observation of these episodes. There they are
        treated as done, as in SB3.
        """
        if self.size() > 0:
            self._truncate(np.arange(self.n_envs))

    def _truncate(self, envs: IntArray) -> None:
        """Treat the episodes of these environments as truncated, unless they are over."""
        last = self._newest_row, envs
        if self.optimize_memory_usage:
            self.dones[last] = 1
        else:
            self.timeouts[last] = np.maximum(self.timeouts[last], 1 - self.dones[last])

    def _get_samples(
        self, batch_inds: IntArray, env: VecNormalize | None = None
    ) -> ReplayBufferSamples:
        """
        Return the transitions in slots, as ``ReplayBuffer`` or ``NStepReplayBuffer`` samples them.

        :param batch_inds: Slots that hold transitions, shape (B,).
        :param env: Normalizes observations and rewards, if given.
        """
        slots = np.asarray(batch_inds)
        if self.n_steps == 1:
            last_slots, discounts = slots, None
            rewards = self._normalize_reward(self.rewards.take(slots[:, None]), env)
        else:
            last_slots, rewards, discounts = self._n_step_returns(slots, env)
        last_column = last_slots[:, None]
        dones = self.dones.take(last_column)  # (B, 1)
        if self.handle_timeout_termination:
            dones *= 1 - self.timeouts.take(last_column)
        if self.frames is not None:
            observations = self.frames.observations(slots)
            next_observations = self.frames.next_observations(last_slots)
        else:
            observations = _take(self.observations, slots)
            if self.optimize_memory_usage:
                next_slots = (last_slots + self.n_envs) % self.n_slots
                next_observations = _take(self.observations, next_slots)
            else:
                next_observations = _take(self.next_observations, last_slots)
        return ReplayBufferSamples(
            observations=self._tensor(self._normalize_obs(observations, env)),
            actions=self._tensor(_take(self.actions, slots)),
            next_observations=self._tensor(self._normalize_obs(next_observations, env)),
            dones=self._tensor(dones),
            rewards=self._tensor(rewards),
            discounts=None if discounts is None else self._tensor(discounts),
        )

    def _n_step_returns(
        self, slots: IntArray, env: VecNormalize | None
    ) -> tuple[IntArray, NDArray[np.float32], NDArray[np.float32]]:
        """
        Return last slots (B,), n-step returns (B, 1) and discounts of the bootstrap (B, 1).

        A return ends with its episode, or at the newest row: later rows are older, or not written.
        """
        rows, envs = np.divmod(slots[:, None], self.n_envs)
        rows = (rows + np.arange(self.n_steps)) % self.buffer_size  # (B, n)
        is_end = (self.dones[rows, envs] > 0) | (self.timeouts[rows, envs] > 0)
        is_end |= rows == self._newest_row
        n_more = np.where(is_end.any(axis=1), is_end.argmax(axis=1), self.n_steps - 1)[:, None]
        steps = rows * self.n_envs + envs  # slots, in order of time
        rewards = self._normalize_reward(self.rewards.take(steps), env)
        discounts = self.gamma ** np.arange(self.n_steps, dtype=np.float32)
        is_within = np.arange(self.n_steps) <= n_more
        returns = (rewards * discounts * is_within).sum(axis=1, keepdims=True)
        last_slots = np.take_along_axis(steps, n_more, axis=1)[:, 0]
        return last_slots, returns, self.gamma ** (n_more + 1).astype(np.float32)

    def _tensor(self, array: Any) -> Any:
        """Return an array as a tensor, or a dict of arrays as a dict of tensors."""
        # Gathering has copied the rows already, so no copy as in SB3; as_tensor would be slower.
        is_plain = self.device == CPU and type(self).to_torch is ReplayBuffer.to_torch
        return map_arrays(th.from_numpy if is_plain else self.to_torch, array)


def rows_in_order(buffer: ReplayBuffer) -> tuple[IntArray, Any, IntArray]:
    """
    Return the rows of a buffer that hold transitions, the oldest first.

    :return: Rows; the arrays with their next observations; the rows of these arrays.
    """
    rows = np.arange(buffer.size())
    if buffer.full:
        rows = np.roll(rows, -buffer.pos)
    if not buffer.optimize_memory_usage:
        return rows, buffer.next_observations, rows
    if buffer.full:
        rows = rows[1:]  # the row at the write head is no transition
    return rows, buffer.observations, (rows + 1) % buffer.buffer_size


def library_class(instance: Any) -> Any:
    """Return the class of this library of which an object is, or from which its class derives."""
    return next(kind for kind in type(instance).__mro__ if kind.__module__.startswith("sb3_per."))


def described(space: spaces.Space[Any]) -> Any:
    """Return what decides about the arrays of a space, as JSON can hold it."""
    if isinstance(space, spaces.Dict):
        return {key: described(part) for key, part in space.items()}
    n = getattr(space, "nvec", getattr(space, "n", None))
    choices = "" if n is None else f", n={np.asarray(n).tolist()}"
    if np.any(start := getattr(space, "start", 0)):
        choices += f", start={np.asarray(start).tolist()}"
    return f"{type(space).__name__}{space.shape} {space.dtype}{choices}"


def info_values(infos: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """
    Return the values of some keys of the infos of all environments, (n_envs, ...) each.

    :raises ValueError: if an info has no such key.
    """
    for env, info in enumerate(infos):
        if missing := [key for key in keys if key not in info]:
            raise ValueError(
                f"with info_keys={[*keys]}, the infos of every step must have {missing[0]!r}, got "
                f"{[*info]} from environment {env}"
            )
    return {key: np.array([info[key] for info in infos]) for key in keys}


def _take(store: Any, slots: IntArray) -> Any:
    """Return rows by slot of an array (n_rows, n_envs, ...), or of each array in a dict."""
    if isinstance(store, dict):
        return {key: _take(part, slots) for key, part in store.items()}
    n_rows, n_envs, *shape = store.shape
    return store.reshape(n_rows * n_envs, *shape).take(slots, axis=0)  # two indices are slower
