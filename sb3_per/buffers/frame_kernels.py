"""Compiled loops of ``FrameStore``: chains of frames, and the list of free frames."""

import numpy as np
from numpy.typing import NDArray

from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.sum_tree import IntArray

# Indices of the counters: the first free frame or -1 (`previous` links each free frame to the next
# one); how many frames were ever used; how many rows were added.
FREE, N_USED, N_ADDED = range(3)


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
