"""Storage for observations of stacked frames that stores each frame once, in a ring."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space

from sb3_per._utils import fill, kernel
from sb3_per.prioritization.sum_tree import IntArray

Frames = NDArray[np.uint8]


class StackLayout:
    """
    The shape of stacked observations, and the axis on which ``VecFrameStack`` has stacked them.

    The space decides about the axis. On the other one, frames would not be found again from step to
    step: then observations are right, and take more memory.

    :raises ValueError: for a space that stacked observations cannot have.
    """

    def __init__(self, space: spaces.Space[Any], n_stack: int, n_envs: int) -> None:
        if not isinstance(space, spaces.Box):
            raise ValueError(f"n_stack={n_stack} needs Box observations, got {space}")
        shape = space.shape
        fits_first, fits_last = (shape[axis] % n_stack == 0 for axis in (0, -1))
        # As SB3 recognizes images with channels first, and as gymnasium stacks other arrays.
        is_likely = shape[0] == (min(shape) if is_image_space(space) else n_stack)
        frames_first = fits_first and (is_likely or not fits_last)
        if shape[0 if frames_first else -1] % n_stack != 0:
            raise ValueError(f"n_stack={n_stack} must divide the number of channels, got {shape}")
        self.shape, self.n_stack, self.n_envs = shape, n_stack, n_envs
        self.frames_first = frames_first
        self.dtype = np.dtype(space.dtype)
        self.n_bytes = math.prod(shape) * self.dtype.itemsize // n_stack  # of a frame
        n_outer = 1 if frames_first else math.prod(shape[:-1])
        self._stored_row = (n_envs, n_outer, n_stack, self.n_bytes // n_outer)
        is_shifted = np.full(self._stored_row[1:], 0xFF, dtype=np.uint8)
        is_shifted[:, -1] = 0  # where a next observation has its newest frame
        # Of the bytes of an observation, except those of one frame.
        self.is_shifted = is_shifted.ravel()[: -self._stored_row[-1]]

    def as_bytes(self, observations: Any) -> Frames:
        """
        Return observations as bytes, shape (n_envs, n_outer, n_stack, n_inner), oldest frame first.

        A frame has one outer part if channels come first, and one for each pixel if they come last.

        :raises ValueError: for observations of another shape.
        """
        stacks = np.ascontiguousarray(observations, self.dtype)
        if stacks.shape[-len(self.shape) :] != self.shape:  # `reshape` would take other axes
            raise ValueError(
                f"the shape of observations must end with {self.shape}, got {stacks.shape}"
            )
        return stacks.view(np.uint8).reshape(self._stored_row)

    def as_observations(self, frames: Frames) -> NDArray[Any]:
        """Return observations from the bytes of their frames, shape (B, n_stack, n_bytes)."""
        values = frames.view(self.dtype)
        if self.frames_first:
            return values.reshape(-1, *self.shape)
        n_channels = self.shape[-1] // self.n_stack
        values = values.reshape(-1, self.n_stack, *self.shape[:-1], n_channels)
        return np.moveaxis(values, 1, -2).reshape(-1, *self.shape)


class FrameStore:
    """
    Observations and next observations of a replay buffer, by slot.

    Each step stores one frame, the newest of its next observation, in place ``step % n_ring`` of a
    ring. The frames of an observation are those of the ``n_stack`` steps before it, so the ring has
    ``n_stack`` rows more than the buffer.

    An observation that does not continue from the step before, as the first one of an episode, is a
    start: it is kept whole in ``starts``, without the zeros at its front. ``ages`` says how many
    frames of each observation are in the ring; the older ones come from the start before it. A next
    observation that is not its observation, moved by one frame, is a start, too. So whatever was
    added comes back byte for byte. Observations that are not stacked take more memory.
    """

    def __init__(self, n_rows: int, layout: StackLayout) -> None:
        self.n_rows, self.n_stack, self.layout = n_rows, layout.n_stack, layout
        n_ring, n_envs = n_rows + layout.n_stack, layout.n_envs
        self.frames = np.zeros((n_ring, n_envs, layout.n_bytes), dtype=np.uint8)
        # Of observations, and of next observations; at most n_stack.
        self.ages = np.zeros((n_ring, 2, n_envs), dtype=np.uint16)
        # By the place of their step; by 0 or 1 (observation or next observation) and environment.
        self.starts: dict[int, dict[tuple[int, int], Frames]] = {}
        self.n_added = 0  # steps
        self._latest: Frames | None = None  # the next observations of the last step

    @property
    def nbytes(self) -> int:
        """Return how much memory frames take, in bytes."""
        starts = [frames.nbytes for start in self.starts.values() for frames in start.values()]
        return self.frames.nbytes + self.ages.nbytes + sum(starts)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is stored: views of arrays, and copies of starts."""
        n_used = min(self.n_added, len(self.frames))
        starts = [(i, *key, f) for i, start in self.starts.items() for key, f in start.items()]
        table = [(*key, len(frames)) for *key, frames in starts]
        return {
            "n_added": self.n_added,
            "ring": self.frames[:n_used],
            "ages": self.ages[:n_used],
            # Place, 0 or 1, environment, number of frames.
            "starts": np.array(table, dtype=np.int64).reshape(-1, 4),
            "frames_of_starts": np.concatenate([self.frames[:0, 0], *(f for *_, f in starts)]),
        }

    def load_state_dict(self, state: dict[str, Any], n_rows: int) -> None:
        """Continue from a state with so many rows; raise ValueError if it does not fit."""
        n_added = state["n_added"]
        if not n_rows <= n_added < 2**62:
            raise ValueError(
                f"n_added must be at least {n_rows}, the number of rows, got {n_added}"
            )
        starts, frames = np.asarray(state["starts"]), np.asarray(state["frames_of_starts"])
        ends = starts[:, 3].cumsum()
        if not ((starts >= 0).all() and ends[-1:].sum() == len(frames)):
            raise ValueError(f"starts must have {len(frames)} frames together, got {starts}")
        self.n_added, self._latest, self.starts = n_added, None, {}
        targets = self.state_dict()
        fill({name: targets[name] for name in ("ring", "ages")}, state)
        for (place, later, env, n), end in zip(starts.tolist(), ends.tolist(), strict=True):
            self.starts.setdefault(place, {})[later, env] = frames[end - n : end].copy()

    def observations(self, slots: IntArray) -> NDArray[Any]:
        """Return the observations in slots, shape (B, ...)."""
        return self.layout.as_observations(self._stacks(slots, 0))

    def next_observations(self, slots: IntArray) -> NDArray[Any]:
        """Return the next observations in slots, shape (B, ...)."""
        return self.layout.as_observations(self._stacks(slots, 1))

    def _stacks(self, slots: IntArray, later: int) -> Frames:
        """Return the bytes of observations, or of next observations, (B, n_stack, n_bytes)."""
        stacks = np.empty((len(slots), self.n_stack, self.layout.n_bytes), dtype=np.uint8)
        missing = np.empty((len(slots), 3), dtype=np.int64)
        steps_and_rows = self.n_added, self.n_rows
        copy_frames(self.frames, self.ages, slots, steps_and_rows, later, stacks, missing)
        for i in np.flatnonzero(missing[:, 0]).tolist():
            # How many frames are missing, the place of the step where they start, environment.
            n_old, place, env = missing[i].tolist()
            # Nothing is there if another thread has overwritten the transition meanwhile.
            start = self.starts.get(place, {})
            frames = start.get((0, env), stacks[i, :0])
            if n_old < self.n_stack:  # else it is the observation that starts there
                frames = start.get((1, env), frames)
            frames = frames[-n_old:]
            stacks[i, : n_old - len(frames)] = 0
            stacks[i, n_old - len(frames) : n_old] = frames
        return stacks

    def add(self, row: int, is_full: bool, observations: Any, next_observations: Any) -> None:
        """
        Store the observations of one row, (n_envs, ...) each.

        Until ``n_added`` changes, this affects no transition except the one that is overwritten.

        :param row: The row that is written: SB3's ``pos``.
        :param is_full: SB3's ``full``.
        :raises ValueError: for another shape, and for a row in which frames of other transitions
            would change; nothing has changed then.
        """
        self._require_next(row, is_full)
        stacks, next_stacks = map(self.layout.as_bytes, (observations, next_observations))
        # Another one than n_added after `reset`, after an exception in the buffer's `add`, and if
        # somebody has dropped the newest rows.
        step = self.n_added - (self.n_added - row) % self.n_rows
        latest = self._latest
        if latest is None or step != self.n_added:
            latest = self._before(step)
        n_ring, n_envs, n_bytes = self.frames.shape
        place, is_linked = step % n_ring, np.zeros((2, n_envs), dtype=np.bool_)
        flat, next_flat, known = (
            part.reshape(n_envs, -1) for part in (stacks, next_stacks, latest)
        )
        is_shifted = self.layout.is_shifted
        link(flat, next_flat, known, is_shifted, step, self.n_stack, self.ages, is_linked)
        if step == 0:
            self.starts.clear()
        self.starts.pop(place, None)
        if not is_linked.all():
            whole = stacks, next_stacks[:, :, :-1]
            pairs = np.argwhere(~is_linked).tolist()
            self.starts[place] = {(i, env): _without_zeros(whole[i][env]) for i, env in pairs}
        self.frames[place] = next_stacks[:, :, -1].reshape(n_envs, n_bytes)
        self.n_added = step + 1
        self._latest = next_stacks.copy()

    def _require_next(self, row: int, is_full: bool) -> None:
        """Raise ValueError unless a row follows another one; somebody may have set ``pos``."""
        newest = (self.n_added - 1) % self.n_rows if self.n_added > 0 else -1
        following = (newest + 1) % self.n_rows
        is_earlier = not is_full and row <= newest
        # The newest one is written again after an exception.
        if not is_earlier and row not in (newest, following):
            raise ValueError(
                f"with n_stack, call reset() instead of setting pos: the next row is {following} "
                f"(the newest rows may be dropped, with full=False), got {row}"
            )

    def _before(self, step: int) -> Frames:
        """Return the next observations of the step before."""
        n_envs = self.frames.shape[1]
        first = (step - 1) % self.n_rows * n_envs
        return self.layout.as_bytes(self.next_observations(np.arange(first, first + n_envs)))


class StackedRows:
    """Observations of a buffer, to read as if they were an array (n_rows, n_envs, ...)."""

    def __init__(
        self, gather: Callable[[IntArray], NDArray[Any]], n_rows: int, layout: StackLayout
    ) -> None:
        self._gather, self.shape = gather, (n_rows, layout.n_envs, *layout.shape)
        self.dtype, self.ndim = layout.dtype, len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NDArray[Any]:
        n_rows, n_envs, *shape = self.shape
        keys = key if isinstance(key, tuple) else (key,)
        for i in [i for i, part in enumerate(keys) if part is Ellipsis]:
            axes = (slice(None),) * (self.ndim + 1 - len(keys))
            keys = keys[:i] + axes + keys[i + 1 :]
        rows_and_envs, rest = keys[:2], keys[2:]
        slots = np.arange(n_rows * n_envs).reshape(n_rows, n_envs)[rows_and_envs]
        found = self._gather(slots.ravel()).reshape(*slots.shape, *shape)
        return found[(slice(None),) * slots.ndim + rest]


def _without_zeros(stack: Frames) -> Frames:
    """Return the frames of a stack (n_outer, n, n_inner) after the zeros at its front, as bytes."""
    frames = stack.swapaxes(0, 1).reshape(stack.shape[1], -1)
    is_frame = frames.any(axis=1)
    return frames[is_frame.argmax() if is_frame.any() else len(frames) :].copy()


@kernel
def link(
    stacks: Frames,
    next_stacks: Frames,
    latest: Frames,
    is_shifted: Frames,
    step: int,
    n_stack: int,
    ages: NDArray[np.uint16],
    is_linked: NDArray[np.bool_],
) -> None:
    """
    Find out, from all bytes, which frames of a step are in the ring, and write the step's ages.

    :param stacks: Observations, shape (n_envs, n).
    :param latest: Next observations of the step before.
    :param is_shifted: 0 for bytes of the newest frame of a next observation, 255 for others, up to
        n minus the distance from one frame to the next.
    :param step: Number of the step; step 0 follows no other.
    :param ages: Of all steps in the ring, shape (n_ring, 2, n_envs).
    :param is_linked: Set to whether observations equal the latest ones, and whether next
        observations hold the newer frames of their observations, shape (2, n_envs).
    """
    shift, n_ring = stacks.shape[1] - len(is_shifted), len(ages)
    for env in range(len(stacks)):
        before, after, known = stacks[env], next_stacks[env], latest[env]
        newer = before[shift:]
        # Without branches, so that processors do many bytes at once.
        difference, next_difference = np.uint8(0), np.uint8(0)
        for i in range(len(before)):
            difference |= before[i] ^ known[i]
        for i in range(len(is_shifted)):
            next_difference |= (after[i] ^ newer[i]) & is_shifted[i]
        is_linked[0, env] = step > 0 and difference == 0
        is_linked[1, env] = next_difference == 0
        age = ages[(step - 1) % n_ring, 1, env] if is_linked[0, env] else 0
        next_age = min(age + 1, n_stack)
        ages[step % n_ring, 0, env] = age
        ages[step % n_ring, 1, env] = next_age if is_linked[1, env] else 1


@kernel
def copy_frames(
    frames: Frames,
    ages: NDArray[np.uint16],
    slots: IntArray,
    steps_and_rows: tuple[int, int],
    later: int,
    stacks: Frames,
    missing: IntArray,
) -> None:
    """
    Copy the frames of stacks that are in the ring, and say where the older ones are.

    :param frames: The ring, shape (n_ring, n_envs, n_bytes).
    :param ages: How many frames of each stack are in the ring, shape (n_ring, 2, n_envs).
    :param steps_and_rows: How many steps were added, and how many rows the buffer has.
    :param later: 1 for next observations, 0 for observations.
    :param stacks: Filled from the newest frame on, shape (B, n_stack, n_bytes).
    :param missing: Set to the number of older frames, and to the place in the ring and the
        environment of the start that has them, shape (B, 3).
    """
    n_ring, n_envs, n_bytes = frames.shape
    n_added, n_rows = steps_and_rows
    n_stack = stacks.shape[1]
    for i in range(len(slots)):
        row, env = slots[i] // n_envs, slots[i] % n_envs
        # The step after that of the newest frame.
        after = n_added - (n_added - 1 - row) % n_rows - 1 + later
        age = min(ages[(after - later) % n_ring, later, env], n_stack)
        place = (after - age) % n_ring
        missing[i, 0], missing[i, 1], missing[i, 2] = n_stack - age, place, env
        for k in range(n_stack - age, n_stack):
            source, target = frames[place, env], stacks[i, k]
            for byte in range(n_bytes):
                target[byte] = source[byte]
            place = place + 1 if place + 1 < n_ring else 0
