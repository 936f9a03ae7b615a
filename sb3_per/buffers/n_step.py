"""Windows of n steps in a ring of rows, cut where an episode or the ring's history ends."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_per.prioritization.sum_tree import IntArray


class Windows(NamedTuple):
    """The steps that belong to each of B n-step returns."""

    slots: IntArray  # (B, n), the slot of every step, in order of time
    within: NDArray[np.bool_]  # (B, n), False after the last step of the window
    last_slots: IntArray  # (B,), the slot whose next observation and end the window inherits


def n_step_windows(
    slots: IntArray, n_steps: int, ends: tuple[NDArray[Any], NDArray[Any]], newest_row: int
) -> Windows:
    """
    Return the steps from each slot onwards, up to n, within one episode of one environment.

    :param slots: First step of each window, shape (B,).
    :param n_steps: n, the longest window.
    :param ends: Two arrays of shape (n_rows, n_envs): above 0 where an episode is done, and above 0
        where it is truncated.
    :param newest_row: The row written last; rows after it in the ring are older, or not written.
    """
    dones, timeouts = ends
    n_rows, n_envs = dones.shape
    rows, envs = np.divmod(slots[:, None], n_envs)
    rows = (rows + np.arange(n_steps)) % n_rows  # (B, n)
    stops = (dones[rows, envs] > 0) | (timeouts[rows, envs] > 0) | (rows == newest_row)
    n_more = np.where(stops.any(axis=1), stops.argmax(axis=1), n_steps - 1)  # (B,)
    window_slots = rows * n_envs + envs
    return Windows(
        slots=window_slots,
        within=np.arange(n_steps) <= n_more[:, None],
        last_slots=window_slots[np.arange(len(slots)), n_more],
    )
