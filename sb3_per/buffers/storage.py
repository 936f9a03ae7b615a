"""SB3's replay storage, read by slot: ``row * n_envs + env`` names one transition."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers.frame_layout import layouts_of
from sb3_per.buffers.frames import FrameStore, warn_if_too_large
from sb3_per.buffers.n_step import n_step_windows
from sb3_per.buffers.ring import Ring
from sb3_per.prioritization.sum_tree import IntArray
from sb3_per.rules import require, require_bool, require_fraction, require_whole

# Observations without numbers, for which SB3 reserves no memory.
EMPTY_SPACE = spaces.Box(0, 0, (0,), np.uint8)

# How many steps of an n-step return may lie beyond what is stored.
MAX_PADDED_STEPS = 1000
# The arrays in which SB3 keeps transitions.
STORAGE = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class SlotReplayBuffer(Ring, ReplayBuffer):
    """
    A ``ReplayBuffer`` whose transitions can be gathered by slot.

    SB3's buffer cannot do this, because it picks environments at random. ``gather`` replaces SB3's
    ``_get_samples``, which is never called. For batches on the CPU, ``to_torch`` is not called
    either.

    The arguments of ``ReplayBuffer`` come first, in its order, and mean the same.

    :param n_steps: Steps in the return, as in ``NStepReplayBuffer``; not with
        ``optimize_memory_usage``.
    :param gamma: Discount factor of the n-step return, in [0, 1].
    :param n_stack: Frames in an observation; each frame is stored once, see ``FrameStore``. 1
        stores whole observations; not with ``optimize_memory_usage``.
    """

    # For buffers that were pickled before the library stored frames.
    n_stack = 1
    frames: FrameStore | None = None

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
        n_stack: int = 1,
    ) -> None:
        require_whole("buffer_size", buffer_size)
        require_whole("n_envs", n_envs)
        require_whole("n_steps", n_steps)
        require_whole("n_stack", n_stack)
        require_fraction("gamma", gamma)
        optimize_memory_usage = optimize_memory_usage or False  # SB3 also takes None
        require_bool("optimize_memory_usage", optimize_memory_usage)
        is_for_dict = isinstance(self, DictReplayBuffer) or not isinstance(
            observation_space, spaces.Dict
        )
        rule = "Dict observations need a buffer such as PrioritizedDictReplayBuffer"
        require(is_for_dict, rule, type(self).__name__)
        rule = "n_steps must be 1 with optimize_memory_usage"
        require(n_steps == 1 or not optimize_memory_usage, rule, n_steps)
        rule = "n_stack must be 1 with optimize_memory_usage (both store observations once)"
        require(n_stack == 1 or not optimize_memory_usage, rule, n_stack)
        if n_stack > 1:
            layouts_of(observation_space, n_stack)
        super().__init__(
            int(buffer_size),  # NumPy's may be unsigned, and wrap around below 0
            observation_space if n_stack == 1 else EMPTY_SPACE,
            action_space,
            device,
            n_envs=int(n_envs),
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
        )
        self.n_steps = int(n_steps)
        self.gamma = float(gamma)  # NumPy's would make float64 of rewards
        self.n_stack = int(n_stack)
        if self.n_stack > 1:
            self._store_frames(observation_space)

    def _store_frames(self, observation_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.obs_shape = get_obs_shape(observation_space)  # type: ignore[assignment]  # of SB3
        self.frames = FrameStore(self.buffer_size, self.n_envs, observation_space, self.n_stack)
        del self.observations, self.next_observations
        n_bytes = sum(getattr(self, name).nbytes for name in STORAGE[2:])
        warn_if_too_large(self.frames.nbytes + n_bytes)

    @property
    def n_slots(self) -> int:
        """Return how many transitions fit in, of all environments together."""
        return self.buffer_size * self.n_envs

    @property
    def n_stored(self) -> int:
        """Return how many slots hold a transition: the first ``n_stored`` ones."""
        return self.size() * self.n_envs

    @property
    def n_sampleable(self) -> int:
        """Return how many slots hold a transition that can be sampled: N in the weights."""
        return self.n_stored - (0 if self.excluded_row is None else self.n_envs)

    @property
    def excluded_row(self) -> int | None:
        """Return the row of full memory-optimised storage that cannot be sampled; else None."""
        # The observation at the write head is the newest transition's next observation.
        return self.pos if self.optimize_memory_usage and self.full else None

    @property
    def device(self) -> th.device:
        """Return the device of batches; it can be set to text such as ``"cpu"``."""
        return self._device

    @device.setter
    def device(self, device: th.device | str) -> None:
        self._device = th.device(device)

    def storage(self) -> dict[str, NDArray[Any]]:
        """Return views of the rows written so far, by name, or by name/key for Dict spaces."""
        # Memory-optimised storage holds the last next observation in the row at the write head.
        n_rows = min(self.size() + self.optimize_memory_usage, self.buffer_size)
        views: dict[str, NDArray[Any]] = {}
        for name in STORAGE:
            store = getattr(self, name, None)  # SB3 makes no next_observations when they are shared
            if isinstance(store, dict):
                views |= {f"{name}/{key}": part[:n_rows] for key, part in store.items()}
            elif store is not None:
                views[name] = store[:n_rows]
        return views if self.frames is None else {**views, **self.frames.storage(n_rows)}

    def slots_of(self, row: int) -> IntArray:
        """Return the slots of a row, shape (n_envs,)."""
        return np.arange(row * self.n_envs, (row + 1) * self.n_envs)

    def _sampleable_slots(self) -> IntArray:
        """Return the slots that can be sampled, in order."""
        slots = np.arange(self.n_stored)
        if self.excluded_row is None:
            return slots
        return np.delete(slots, self.slots_of(self.excluded_row))

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """
        Store one transition of every environment, as ``ReplayBuffer.add`` does, with fewer copies.
        """
        row = self.pos
        if self.frames is not None:
            self.frames.add(self._n_added, obs, next_obs)
        else:
            self._put_observations(row, obs, next_obs)
        self.actions[row] = action.reshape(self.n_envs, self.action_dim)
        self.rewards[row] = reward
        self.dones[row] = done
        if self.handle_timeout_termination:
            # As an array, like SB3: then a flag may also be an array with one element.
            self.timeouts[row] = np.array(
                [info.get("TimeLimit.truncated", False) for info in infos]
            )
        else:
            self.timeouts[row] = 0  # clears the mark of `end_episodes` on the overwritten row
        self._n_added += 1

    def _put_observations(self, row: int, obs: Any, next_obs: Any) -> None:
        self._put(self.observations, row, obs)
        if self.optimize_memory_usage:
            self._put(self.observations, (row + 1) % self.buffer_size, next_obs)
        else:
            self._put(self.next_observations, row, next_obs)

    def _put(self, store: Any, row: int, observations: Any) -> None:
        # Discrete observations come without the last axis.
        if isinstance(self.observation_space, spaces.Discrete):
            observations = observations.reshape(self.n_envs, *self.obs_shape)
        store[row] = observations

    def end_episodes(self) -> None:
        """
        Treat the running episodes as truncated, so that no n-step return crosses into the next one.

        Memory-optimised storage loses the last observation of these episodes. There they are
        treated as done, as in SB3.
        """
        if self.size() == 0:
            return
        last = (self.pos - 1) % self.buffer_size
        if self.optimize_memory_usage:
            self.dones[last] = 1
        else:
            running = 1 - self.dones[last]
            self.timeouts[last] = np.maximum(self.timeouts[last], running)

    def gather(self, slots: IntArray, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """
        Return the transitions in slots, as ``ReplayBuffer`` or ``NStepReplayBuffer`` samples them.

        :param slots: Slots that hold transitions, shape (B,).
        :param env: Normalizes observations and rewards, if given.
        """
        if self.n_steps == 1:
            last_slots, discounts = slots, None
            rewards = self._normalize_reward(self.rewards.take(slots[:, None]), env)
        else:
            last_slots, rewards, discounts = self._n_step_returns(slots, env)
        last_column = last_slots[:, None]
        dones = self.dones.take(last_column)  # (B, 1)
        if self.handle_timeout_termination:
            dones *= 1 - self.timeouts.take(last_column)
        return ReplayBufferSamples(
            observations=self._observations_of(slots, env),
            actions=self._tensor(_take(self.actions, slots)),
            next_observations=self._next_observations_at(last_slots, env),
            dones=self._tensor(dones),
            rewards=self._tensor(rewards),
            discounts=None if discounts is None else self._tensor(discounts),
        )

    def _n_step_returns(
        self, slots: IntArray, env: VecNormalize | None
    ) -> tuple[IntArray, NDArray[np.float32], NDArray[np.float32]]:
        """Return last slots (B,), n-step returns (B, 1) and discounts of the bootstrap (B, 1)."""
        newest_row = (self.pos - 1) % self.buffer_size
        # A window ends at the newest row, so more steps than rows only add zeros. A few of these
        # zeros stay, since a sum of fewer numbers may be rounded differently from SB3's.
        n_steps = min(self.n_steps, max(self.size(), MAX_PADDED_STEPS))
        windows = n_step_windows(slots, n_steps, (self.dones, self.timeouts), newest_row)
        rewards = self._normalize_reward(self.rewards.take(windows.slots), env)  # (B, n)
        discounts = self.gamma ** np.arange(n_steps, dtype=np.float32)
        returns = (rewards * discounts * windows.within).sum(axis=1, keepdims=True)
        n_taken = windows.within.sum(axis=1, keepdims=True).astype(np.float32)
        return windows.last_slots, returns, self.gamma**n_taken

    def _observations_of(self, slots: IntArray, env: VecNormalize | None) -> Any:
        if self.frames is not None:
            return self._tensor(self._normalize_obs(self.frames.observations(slots), env))
        return self._observations_at(self.observations, slots, env)

    def _next_observations_at(self, slots: IntArray, env: VecNormalize | None) -> Any:
        if self.frames is not None:
            return self._tensor(self._normalize_obs(self.frames.next_observations(slots), env))
        if self.optimize_memory_usage:
            return self._observations_at(
                self.observations, (slots + self.n_envs) % self.n_slots, env
            )
        return self._observations_at(self.next_observations, slots, env)

    def _observations_at(self, store: Any, slots: IntArray, env: VecNormalize | None) -> Any:
        """Return observations as a tensor, or as a dict of tensors for Dict spaces."""
        return self._tensor(self._normalize_obs(_take(store, slots), env))

    def _tensor(self, array: Any) -> th.Tensor:
        # Gathering has copied the rows already, so no copy as in SB3; as_tensor would be slower.
        return th.from_numpy(array) if self.device.type == "cpu" else self.to_torch(array)


class SlotDictReplayBuffer(SlotReplayBuffer, DictReplayBuffer):
    """A ``SlotReplayBuffer`` for Dict observations, n-step returns included."""

    def _put(self, store: Any, row: int, observations: Any) -> None:
        for key, part in store.items():
            if isinstance(self.observation_space.spaces[key], spaces.Discrete):
                part[row] = observations[key].reshape(self.n_envs, *self.obs_shape[key])
            else:
                part[row] = observations[key]

    def _observations_at(self, store: Any, slots: IntArray, env: VecNormalize | None) -> Any:
        observations: Any = self._normalize_obs(
            {key: _take(part, slots) for key, part in store.items()}, env
        )
        return {key: self._tensor(part) for key, part in observations.items()}


def _take(store: NDArray[Any], slots: IntArray) -> NDArray[Any]:
    """Return rows by slot of an array (n_rows, n_envs, ...); two indices would be slower."""
    return store.reshape(-1, *store.shape[2:]).take(slots, axis=0)
