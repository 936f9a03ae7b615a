"""Storage for observations of stacked frames that stores each frame once."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space

from sb3_per._utils import kernel
from sb3_per.prioritization.sum_tree import IntArray

Frames = NDArray[np.uint8]

# Indices of the counters: the first free frame or -1 (`previous` links each free frame to the next
# one); how many frames were ever used; how many rows were added.
FREE, N_USED, N_ADDED = range(3)


class FrameStore:
    """
    Observations and next observations of a replay buffer, by slot.

    An observation is ``n_stack`` frames, as ``VecFrameStack`` stacks them. Each frame is stored
    once, with a link to the frame before it. A slot names the newest frame of its observation and
    of its next observation; the links lead to the others, and zeros stand for frames before the
    first one of an episode. An episode takes a frame for each step and one for its last
    observation.

    Invariants: gathered observations equal the added ones byte for byte, since ``add`` compares all
    bytes. The frames of stored transitions are never overwritten by other transitions.

    Rare cases: if episodes are so short that the frames need more memory than was reserved, more is
    reserved, so no transition is lost. An observation that does not continue from the transition
    before it begins a new chain of frames.

    :param n_rows: Rows of the buffer.
    :param n_envs: Environments; a slot is ``row * n_envs + env``.
    :param space: Space of the stacked observations.
    :param n_stack: Frames in an observation, at least 2.
    :param frames_first: Whether they are stacked on the first axis; None to decide by the space.
    :param zeros: Makes the arrays of frames: ``np.zeros``, or one whose arrays lie in files.
    :raises ValueError: for a space without such stacks.
    """

    def __init__(
        self,
        n_rows: int,
        n_envs: int,
        space: spaces.Space[Any],
        n_stack: int,
        frames_first: bool | None = None,
        zeros: Callable[..., NDArray[Any]] = np.zeros,
    ) -> None:
        self.n_stack = n_stack
        self._zeros = zeros
        self.layout = StackLayout(space, n_stack, n_envs, frames_first)
        self.n_bytes = self.layout.n_bytes  # of a frame
        self._one_each = np.ones(n_envs, dtype=np.int64)
        self._latest: list[bytes] = []  # the next observations that were added last
        # Linux reserves memory for zeros when they are first written, here and in SB3's buffers.
        self.newest = np.zeros((n_rows, n_envs), dtype=np.int64)  # frames of observations
        self.following = np.zeros((n_rows, n_envs), dtype=np.int64)  # of next observations
        n_slots = n_rows * n_envs
        # The most frames: episodes of one step that do not start with a reset, and one more row.
        self.max_frames = (n_stack + 1) * (n_slots + n_envs)
        self.previous = np.zeros(self.max_frames, dtype=np.int64)
        self.chunks = [self._new_chunk(n_slots + n_slots // 64 + (n_stack + 1) * n_envs)]
        self._n_more = max(n_slots // 16, (n_stack + 1) * n_envs)
        self.counters = np.array([-1, 0, 0], dtype=np.int64)

    def _new_chunk(self, n_frames: int) -> Frames:
        return self._zeros((n_frames, self.n_bytes), dtype=np.uint8)

    @property
    def n_frames(self) -> int:
        """Return how many frames, counted from the first one, are in use or were in use."""
        return int(self.counters[N_USED])

    def state_dict(self, n_rows: int) -> dict[str, Any]:
        """Return views of everything that belongs to the first rows."""
        starts = np.cumsum([0, *map(len, self.chunks)]).tolist()
        chunks = [
            chunk[: max(self.n_frames - start, 0)]
            for chunk, start in zip(self.chunks, starts, strict=False)
        ]
        return {
            "n_frames": self.n_frames,
            "chunks": chunks,
            "previous": self.previous[: self.n_frames],
            "newest": self.newest[:n_rows],
            "following": self.following[:n_rows],
        }

    def load_state_dict(self, state: dict[str, Any], n_rows: int) -> None:
        """Continue from a state with so many rows; raise ValueError if it does not fit."""
        n_frames = state["n_frames"]
        if not 0 <= n_frames <= self.max_frames:
            raise ValueError(f"n_frames must lie in [0, {self.max_frames}], got {n_frames}")
        self._reserve(n_frames)
        # No row count is -1, so the next `add` notices and finds out which frames are free.
        self.counters[:] = -1, n_frames, -1
        targets = self.state_dict(n_rows)
        for name in ("previous", "newest", "following"):
            targets[name][:] = np.asarray(state[name])
        for target, stored in zip(targets["chunks"], state["chunks"], strict=False):
            target[:] = np.asarray(stored)
        for lowest, frames in (
            (0, self.newest[:n_rows]),
            (0, self.following[:n_rows]),
            (-1, self.previous[:n_frames]),
        ):
            if not ((frames >= lowest) & (frames < n_frames)).all():
                raise ValueError(f"frames must lie in [{lowest}, {n_frames}), got {frames}")

    def observations(self, slots: IntArray) -> NDArray[Any]:
        """Return the observations in slots, shape (B, ...)."""
        return self._stacks(self.newest.take(slots))

    def next_observations(self, slots: IntArray) -> NDArray[Any]:
        """Return the next observations in slots, shape (B, ...)."""
        return self._stacks(self.following.take(slots))

    def add(self, row: int, is_full: bool, observations: Any, next_observations: Any) -> None:
        """
        Store the observations of one row, (n_envs, ...) each.

        :param row: The row that is written: SB3's ``pos``.
        :param is_full: Whether all rows hold transitions: SB3's ``full``.
        :raises ValueError: if they are not stacks of frames; nothing has changed then.
        """
        n_rows = len(self.newest)
        # A number of rows that were added: the row, and one round if the buffer is full.
        n_added = row + n_rows if is_full else row
        stacks, next_stacks = self._as_stacks(observations, next_observations)
        # Unequal after `reset`, after loading, and after an exception in the buffer's `add`.
        is_known = bool(self.counters[N_ADDED] == n_added)
        continues = self._continues(n_added, is_known, stacks)
        if not is_known:
            links = (self.previous, self.newest, self.following)
            find_free(self.counters, *links, self.n_stack, n_added)
        self._store(n_added, is_known, continues, (stacks, next_stacks))
        if n_added + 1 == 2 * n_rows:  # the next row is row 0 of a full buffer
            self.counters[N_ADDED] = n_rows
        self._latest = [stack.tobytes() for stack in next_stacks]

    def _continues(self, n_added: int, is_known: bool, stacks: Frames) -> NDArray[np.bool_]:
        """Return which observations equal the next observations of the row before, by bytes."""
        n_rows, n_envs = self.newest.shape
        if n_added == 0 or (n_rows == 1 and not is_known):
            return np.zeros(n_envs, dtype=bool)
        if not is_known:
            stored = self.layout.as_stored(self._stacks(self.following[(n_added - 1) % n_rows]))
            self._latest = [stack.tobytes() for stack in stored]
        pairs = zip(stacks, self._latest, strict=True)  # three times as fast as comparing arrays
        return np.array([stack.tobytes() == before for stack, before in pairs])

    def _store(
        self,
        n_added: int,
        is_known: bool,
        continues: NDArray[np.bool_],
        stacks: tuple[Frames, Frames],
    ) -> None:
        n_new = self._one_each
        if not continues.all():
            n_new = n_new.copy()
            for env in np.flatnonzero(~continues).tolist():
                n_new[env] += _n_kept(stacks[0][env])
        chosen = np.empty(int(n_new.sum()), dtype=np.int64)
        choose_free(self.counters, self.previous, chosen)
        self._reserve(int(chosen.max()) + 1)
        # Frames are written first. They count as free until `store_row`, which nothing interrupts.
        end = 0
        for env, n in enumerate(n_new.tolist()):
            end += n
            for k in range(1, n):
                self._write(int(chosen[end - 1 - k]), stacks[0][env, :, self.n_stack - k])
            self._write(int(chosen[end - 1]), stacks[1][env, :, -1])
        links = (self.previous, self.newest, self.following)
        store_row(self.counters, links, self.n_stack, n_added, is_known, (n_new, chosen, continues))

    def _as_stacks(self, observations: Any, next_observations: Any) -> tuple[Frames, Frames]:
        """Return observations and next observations as bytes; raise ValueError if not stacked."""
        stacks, next_stacks = map(self.layout.as_stored, (observations, next_observations))
        if not self.layout.fits(stacks, next_stacks):
            is_first = self.layout.frames_first
            raise ValueError(
                f"n_stack={self.n_stack} needs observations of {self.n_stack} frames, stacked on "
                f"the {'first' if is_first else 'last'} axis as by VecFrameStack (for the other "
                f"axis, set frames_first={not is_first}): a next observation must be its "
                "observation without the oldest frame, followed by a new one (leave n_stack out "
                "to store whole observations; if you have stepped or reset the model's "
                "environments yourself, call model.set_env)"
            )
        return stacks, next_stacks

    def _stacks(self, newest: IntArray) -> NDArray[Any]:
        """Return the observations whose newest frames are ``newest``."""
        return self.layout.as_observations(self._gather(newest))

    def _gather(self, newest: IntArray) -> Frames:
        """Return the frames up to the newest, as bytes, shape (B, n_stack, n_bytes)."""
        numbers = np.empty((len(newest), self.n_stack), dtype=np.int64)
        find_frames(newest, self.previous, numbers)
        gathered = np.empty((*numbers.shape, self.n_bytes), dtype=np.uint8)
        first = 0
        for chunk in self.chunks:
            copy_frames(chunk, first, numbers, gathered)
            first += len(chunk)
        return gathered

    def _write(self, frame: int, values: Frames) -> None:
        """Copy a frame, of shape (n_outer, n_inner), to its place."""
        for chunk in self.chunks:
            if frame < len(chunk):
                chunk[frame].reshape(values.shape)[...] = values
                return
            frame -= len(chunk)

    def _reserve(self, n_frames: int) -> None:
        # Chunks are not moved when more are needed: another thread may be reading them.
        while sum(map(len, self.chunks)) < n_frames:
            self.chunks.append(self._new_chunk(self._n_more))


def _n_kept(stack: Frames) -> int:
    """Return how many frames of a stack follow the zeros at its beginning, at least 1."""
    is_frame = stack[:, :-1].any(axis=(0, 2))  # (n_stack - 1,)
    return int(stack.shape[1] - is_frame.argmax()) if is_frame.any() else 1


class StackLayout:
    """
    The shape of stacked observations, and the axis on which ``VecFrameStack`` has stacked them.

    :param space: Space of the stacked observations.
    :param n_stack: Frames in an observation.
    :param n_envs: Environments in a row.
    :param frames_first: Whether frames are stacked on the first axis; None to decide by the space.
    :raises ValueError: for a space that stacked observations cannot have.
    """

    def __init__(
        self, space: spaces.Space[Any], n_stack: int, n_envs: int, frames_first: bool | None
    ) -> None:
        if not isinstance(space, spaces.Box):
            raise ValueError(f"n_stack={n_stack} needs Box observations, got {space}")
        shape = space.shape
        if frames_first is None:
            fits_first, fits_last = (shape[axis] % n_stack == 0 for axis in (0, -1))
            # As SB3 recognizes images with channels first, and as gymnasium stacks other arrays.
            is_likely = shape[0] == (min(shape) if is_image_space(space) else n_stack)
            frames_first = fits_first and (is_likely or not fits_last)
        if shape[0 if frames_first else -1] % n_stack != 0:
            raise ValueError(f"n_stack={n_stack} must divide the number of channels, got {shape}")
        self.shape, self.n_stack, self.frames_first = shape, n_stack, frames_first
        self.dtype = np.dtype(space.dtype)
        self.n_bytes = math.prod(shape) * self.dtype.itemsize // n_stack  # of a frame
        n_outer = 1 if frames_first else math.prod(shape[:-1])
        self._stored_row = (n_envs, n_outer, n_stack, self.n_bytes // n_outer)
        is_shifted = np.full(self._stored_row, 0xFF, dtype=np.uint8)
        is_shifted[:, :, -1] = 0  # where a next observation has its newest frame
        self._is_shifted = is_shifted.ravel()[: -self._stored_row[-1]]

    def as_stored(self, observations: Any) -> Frames:
        """
        Return observations as bytes, shape (n_envs, n_outer, n_stack, n_inner), oldest frame first.

        A frame has one outer part if channels come first, and one for each pixel if they come last.
        """
        stacks = np.ascontiguousarray(observations, self.dtype)
        return stacks.view(np.uint8).reshape(self._stored_row)

    def as_observations(self, frames: Frames) -> NDArray[Any]:
        """Return observations from the bytes of their frames, shape (B, n_stack, n_bytes)."""
        values = frames.view(self.dtype)
        if self.frames_first:
            return values.reshape(-1, *self.shape)
        n_channels = self.shape[-1] // self.n_stack
        values = values.reshape(-1, self.n_stack, *self.shape[:-1], n_channels)
        return np.moveaxis(values, 1, -2).reshape(-1, *self.shape)

    def fits(self, stacks: Frames, next_stacks: Frames) -> bool:
        """Return whether next observations hold the newer frames of their observations."""
        return is_shifted_by_a_frame(stacks.ravel(), next_stacks.ravel(), self._is_shifted)


@kernel
def find_frames(newest: IntArray, previous: IntArray, numbers: IntArray) -> None:
    """Write the frames of each stack to ``numbers``, the oldest first; -1 for missing frames."""
    for i in range(len(newest)):
        frame = newest[i]
        for k in range(numbers.shape[1] - 1, -1, -1):
            numbers[i, k] = frame
            if frame >= 0:
                frame = previous[frame]


@kernel
def copy_frames(
    chunk: NDArray[np.uint8], first: int, numbers: IntArray, gathered: NDArray[np.uint8]
) -> None:
    """Copy the frames of a chunk, which begins with frame ``first``; write zeros for -1."""
    for i in range(numbers.shape[0]):
        for k in range(numbers.shape[1]):
            position = numbers[i, k] - first
            target = gathered[i, k]
            if numbers[i, k] < 0:
                target[:] = 0
            elif 0 <= position < len(chunk):
                source = chunk[position]
                for byte in range(len(source)):
                    target[byte] = source[byte]


@kernel
def is_shifted_by_a_frame(
    stacks: NDArray[np.uint8], next_stacks: NDArray[np.uint8], mask: NDArray[np.uint8]
) -> bool:
    """
    Return whether next observations hold the newer frames of their observations.

    :param stacks: All bytes of the observations, channels last or first.
    :param next_stacks: All bytes of the next observations.
    :param mask: 0 for bytes of the newest frame of a next observation, 255 for others. The mask is
        shorter than the stacks by the distance from one frame to the next.
    """
    newer = stacks[len(stacks) - len(mask) :]
    found = np.uint8(0)
    for i in range(len(mask)):  # without a branch, so that processors do many bytes at once
        found |= (next_stacks[i] ^ newer[i]) & mask[i]
    return bool(found == 0)


@kernel
def choose_free(counters: IntArray, previous: IntArray, chosen: IntArray) -> None:
    """Write free frames to ``chosen``, first the ones used before; nothing else changes."""
    frame, unused = counters[FREE], counters[N_USED]
    for i in range(len(chosen)):
        if frame >= 0:
            chosen[i] = frame
            frame = previous[frame]
        else:
            chosen[i] = unused
            unused += 1


@kernel
def store_row(
    counters: IntArray,
    links: tuple[IntArray, IntArray, IntArray],
    n_stack: int,
    n_added: int,
    frees_row: bool,
    new: tuple[IntArray, IntArray, NDArray[np.bool_]],
) -> None:
    """
    Link the frames that ``choose_free`` has chosen, and free those that only the overwritten row
    used.

    Everything happens in one call of a kernel, so signals are handled before or after it.

    :param links: ``previous``, ``newest`` and ``following`` of ``FrameStore``.
    :param frees_row: Whether the overwritten row, if any, still has its frames.
    :param new: The number of new frames for each environment; these frames; and for each
        environment whether its frames continue the row before.
    """
    previous, newest, following = links
    n_new, chosen, continues = new
    n_rows, n_envs = newest.shape
    row = n_added % n_rows
    for _ in range(len(chosen)):
        if counters[FREE] >= 0:
            counters[FREE] = previous[counters[FREE]]
        else:
            counters[N_USED] += 1
    position = 0
    for env in range(n_envs):
        frame = following[row - 1, env] if continues[env] else -1
        if frees_row and n_added >= n_rows:
            _free_row(counters, links, n_stack, (row, env), continues[env])
        for _ in range(n_new[env]):
            previous[chosen[position]] = frame
            frame = chosen[position]
            position += 1
        newest[row, env] = previous[frame]
        following[row, env] = frame
    counters[N_ADDED] = n_added + 1


@kernel
def _free_row(
    counters: IntArray,
    links: tuple[IntArray, IntArray, IntArray],
    n_stack: int,
    place: tuple[int, int],
    only_row_continues: bool,
) -> None:
    """
    Free the frames of the oldest transition that the next transition does not use: the oldest frame
    within an episode, all frames at its end.
    """
    previous, newest, following = links
    row, env = place
    row_after = (row + 1) % len(newest)
    frame, is_continued = newest[row, env], only_row_continues
    if row_after != row:
        is_continued = newest[row_after, env] == following[row, env]
    if not is_continued:
        _free(counters, previous, following[row, env])
    for k in range(n_stack):
        if frame < 0:
            break
        frame_before = previous[frame]
        if not is_continued or k == n_stack - 1:
            _free(counters, previous, frame)
        frame = frame_before


@kernel
def _free(counters: IntArray, previous: IntArray, frame: int) -> None:
    previous[frame] = counters[FREE]
    counters[FREE] = frame


@kernel
def find_free(
    counters: IntArray,
    previous: IntArray,
    newest: IntArray,
    following: IntArray,
    n_stack: int,
    n_added: int,
) -> None:
    """List the frames that no stored row uses, except for the row that is overwritten next."""
    n_rows = len(newest)
    is_used = np.zeros(counters[N_USED], dtype=np.bool_)
    for row in range(min(n_added, n_rows)):
        if row != n_added % n_rows:
            for env in range(newest.shape[1]):
                is_used[following[row, env]] = True
                _mark(is_used, previous, newest[row, env], n_stack)
    while counters[N_USED] > 0 and not is_used[counters[N_USED] - 1]:
        counters[N_USED] -= 1
    counters[FREE] = -1
    for frame in range(counters[N_USED] - 1, -1, -1):
        if not is_used[frame]:
            _free(counters, previous, frame)
    counters[N_ADDED] = n_added


@kernel
def _mark(is_used: NDArray[np.bool_], previous: IntArray, frame: int, n_stack: int) -> None:
    for _ in range(n_stack):
        if frame < 0:
            break
        is_used[frame] = True
        frame = previous[frame]
