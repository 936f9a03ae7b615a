"""Storage for observations of stacked frames that stores each frame once."""

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_per.buffers.frame_kernels import (
    N_ADDED,
    N_USED,
    choose_free,
    copy_frames,
    find_frames,
    find_free,
    store_row,
)
from sb3_per.buffers.frame_layout import HOW_TO_TURN_OFF, Frames, layouts_of
from sb3_per.prioritization.sum_tree import IntArray
from sb3_per.rules import require

try:
    import psutil  # type: ignore[import-untyped]  # it has no types
except ImportError:  # SB3 does not require it either
    psutil = None


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
    :raises ValueError: for a space without such stacks.
    """

    def __init__(self, n_rows: int, n_envs: int, space: spaces.Space[Any], n_stack: int) -> None:
        self.n_stack = n_stack
        self._layouts = layouts_of(space, n_stack, n_envs)
        self.layout = self._layouts[0]
        self.n_bytes = self.layout.n_bytes  # of a frame
        self._one_each = np.ones(n_envs, dtype=np.int64)
        latest: list[bytes] = []
        self._latest = 0, latest  # rows added so far, next observations of the last one
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
        return np.zeros((n_frames, self.n_bytes), dtype=np.uint8)

    @property
    def nbytes(self) -> int:
        """Return the memory of a full store in bytes, if few episodes are shorter than 64 steps."""
        per_frame = self.n_bytes + self.previous.itemsize
        return len(self.chunks[0]) * per_frame + self.newest.nbytes + self.following.nbytes

    @property
    def n_frames(self) -> int:
        """Return how many frames, counted from the first one, are in use or were in use."""
        return int(self.counters[N_USED])

    def storage(self, n_rows: int) -> dict[str, NDArray[Any]]:
        """Return views of everything that belongs to the first rows, by name."""
        views: dict[str, NDArray[Any]] = {}
        first = 0
        for i, chunk in enumerate(self.chunks):
            if i == 0 or first < self.n_frames:
                views[f"frames/{i}"] = chunk[: self.n_frames - first]
            first += len(chunk)
        return {
            **views,
            "frames/previous": self.previous[: self.n_frames],
            "frames/newest": self.newest[:n_rows],
            "frames/following": self.following[:n_rows],
        }

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` needs in addition to the arrays: values that JSON can hold."""
        return {"n_frames": self.n_frames, "channels_first": self.layout.channels_first}

    def restore(self, state: dict[str, Any]) -> None:
        """
        Reserve memory for stored frames; the views of ``storage`` then include them.

        :raises ValueError: if a store of this size cannot hold so many frames, or not on that axis.
        """
        n_frames: Any = state.get("n_frames")
        is_number = isinstance(n_frames, int) and 0 <= n_frames <= self.max_frames
        require(is_number, f"n_frames must lie in [0, {self.max_frames}]", n_frames)
        axis = state.get("channels_first", self.layout.channels_first)  # it may be missing
        layouts = {layout.channels_first: layout for layout in self._layouts}
        require(axis in list(layouts), f"channels_first must be one of {list(layouts)}", axis)
        self.layout = layouts[axis]
        self._reserve(n_frames)
        # No row count is -1, so the next `add` notices and finds out which frames are free.
        self.counters[:] = -1, n_frames, -1

    def check(self, n_rows: int) -> None:
        """
        Check the frames that were filled in for the first rows.

        :raises ValueError: if a row or a link names a frame that does not exist.
        """
        parts = {
            "newest": (0, self.newest[:n_rows]),
            "following": (0, self.following[:n_rows]),
            "previous": (-1, self.previous[: self.n_frames]),
        }
        for name, (lowest, frames) in parts.items():
            fits = frames.size == 0 or lowest <= frames.min() <= frames.max() < self.n_frames
            require(fits, f"{name} frames must lie in [{lowest}, {self.n_frames})", frames)

    def observations(self, slots: IntArray) -> NDArray[Any]:
        """Return the observations in slots, shape (B, ...)."""
        return self._stacks(self.newest.take(slots))

    def next_observations(self, slots: IntArray) -> NDArray[Any]:
        """Return the next observations in slots, shape (B, ...)."""
        return self._stacks(self.following.take(slots))

    def add(self, n_added: int, observations: Any, next_observations: Any) -> None:
        """
        Store the observations of one row.

        :param n_added: How many rows were added before this one, since the buffer was empty.
        :param observations: Shape (n_envs, ...).
        :param next_observations: Shape (n_envs, ...).
        :raises ValueError: if they are not stacks of frames; nothing has changed then.
        """
        # Unequal after `reset`, after loading, and after an exception in the buffer's `add`.
        is_known = bool(self.counters[N_ADDED] == n_added)
        stacks, next_stacks = self._as_stacks(n_added, observations, next_observations)
        continues = self._continues(n_added, is_known, stacks)
        if not is_known:
            links = (self.previous, self.newest, self.following)
            find_free(self.counters, *links, self.n_stack, n_added)
        self._store(n_added, is_known, continues, (stacks, next_stacks))
        self._latest = n_added + 1, [stack.tobytes() for stack in next_stacks]

    def _continues(self, n_added: int, is_known: bool, stacks: Frames) -> NDArray[np.bool_]:
        """Return which observations equal the next observations of the row before, by bytes."""
        n_rows, n_envs = self.newest.shape
        if n_added == 0 or (n_rows == 1 and not is_known):
            return np.zeros(n_envs, dtype=bool)
        n_latest, latest = self._latest
        if n_latest != n_added:  # after loading, or after an exception in an `add`
            stored = self.layout.as_stored(self._stacks(self.following[(n_added - 1) % n_rows]))
            latest = [stack.tobytes() for stack in stored]
        pairs = zip(stacks, latest, strict=True)  # three times as fast as comparing arrays
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

    def _as_stacks(
        self, n_added: int, observations: Any, next_observations: Any
    ) -> tuple[Frames, Frames]:
        """Return observations and next observations as bytes; raise ValueError if not stacked."""
        # The space alone does not always tell the axis, but the first row does.
        possible = self._layouts if n_added == 0 else [self.layout]
        row = observations, next_observations
        for layout in possible:
            stacks, next_stacks = map(layout.as_stored, row)
            if layout.fits(stacks, next_stacks):
                self.layout = layout
                return stacks, next_stacks
        stacks, next_stacks = map(self.layout.as_stored, row)
        differs = (next_stacks[:, :, :-1] != stacks[:, :, 1:]).reshape(len(stacks), -1)
        axes = " or ".join("first" if each.channels_first else "last" for each in possible)
        raise ValueError(
            f"n_stack={self.n_stack} needs observations of {self.n_stack} frames, stacked on the "
            f"{axes} axis as by VecFrameStack: a next observation must be its observation without "
            f"the oldest frame, followed by a new one ({HOW_TO_TURN_OFF}; if you have stepped or "
            "reset the model's environments yourself, call model.set_env), "
            f"got others from environment {int(differs.any(axis=1).argmax())}"
        )

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


def warn_if_too_large(n_bytes: int) -> None:
    """Warn, as SB3's buffers do, if a buffer needs more memory than is free."""
    if psutil is None:
        return
    free = psutil.virtual_memory().available
    if n_bytes > free:
        warnings.warn(
            f"this system does not seem to have enough memory for the replay buffer: it needs "
            f"{n_bytes / 1e9:.2f} GB when it is full, and {free / 1e9:.2f} GB are free",
            stacklevel=5,
        )
