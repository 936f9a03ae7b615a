"""Where stacked observations have their frames: on the first axis or on the last."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space

from sb3_per.buffers.frame_kernels import is_shifted_by_a_frame
from sb3_per.rules import require

Frames = NDArray[np.uint8]

HOW_TO_TURN_OFF = "leave n_stack out to store whole observations"


class StackLayout:
    """
    The shape of stacked observations, and the axis on which ``VecFrameStack`` has stacked them.

    :param space: Space of the stacked observations.
    :param n_stack: Frames in an observation.
    :param n_envs: Environments in a row.
    :param channels_first: Whether frames are stacked on the first axis.
    """

    def __init__(
        self, space: spaces.Box, n_stack: int, n_envs: int, *, channels_first: bool
    ) -> None:
        self.shape, self.n_stack, self.channels_first = space.shape, n_stack, channels_first
        self.dtype = np.dtype(space.dtype)
        self.n_bytes = math.prod(self.shape) * self.dtype.itemsize // n_stack  # of a frame
        self._row = (n_envs, *self.shape)
        n_outer = 1 if channels_first else math.prod(self.shape[:-1])
        self._stored_row = (n_envs, n_outer, n_stack, self.n_bytes // n_outer)
        is_shifted = np.full(self._stored_row, 0xFF, dtype=np.uint8)
        is_shifted[:, :, -1] = 0  # where a next observation has its newest frame
        self._is_shifted = is_shifted.ravel()[: -self._stored_row[-1]]

    def as_stored(self, observations: Any) -> Frames:
        """
        Return observations as bytes, shape (n_envs, n_outer, n_stack, n_inner), oldest frame first.

        A frame has one outer part if channels come first, and one for each pixel if they come last.
        """
        stacks = np.asarray(observations, self.dtype)
        if stacks.shape != self._row:
            stacks = np.broadcast_to(stacks, self._row)
        return np.ascontiguousarray(stacks).view(np.uint8).reshape(self._stored_row)

    def as_observations(self, frames: Frames) -> NDArray[Any]:
        """Return observations from the bytes of their frames, shape (B, n_stack, n_bytes)."""
        values = frames.view(self.dtype)
        if self.channels_first:
            return values.reshape(-1, *self.shape)
        n_channels = self.shape[-1] // self.n_stack
        values = values.reshape(-1, self.n_stack, *self.shape[:-1], n_channels)
        return np.moveaxis(values, 1, -2).reshape(-1, *self.shape)

    def fits(self, stacks: Frames, next_stacks: Frames) -> bool:
        """Return whether next observations hold the newer frames of their observations."""
        return is_shifted_by_a_frame(stacks.ravel(), next_stacks.ravel(), self._is_shifted)


def layouts_of(space: spaces.Space[Any], n_stack: int, n_envs: int = 1) -> list[StackLayout]:
    """
    Return the layouts that stacked observations can have, the likelier one first.

    :raises ValueError: for a space that stacked observations cannot have.
    """
    rule = f"n_stack={n_stack} needs Box observations ({HOW_TO_TURN_OFF})"
    if not isinstance(space, spaces.Box) or not space.shape:
        raise ValueError(f"{rule}, got {space}")
    shape = space.shape
    # SB3 decides in the same way whether to transpose an image.
    likelier = is_image_space(space) and shape[0] == min(shape)
    axes = [likelier] if len(shape) == 1 else [likelier, not likelier]
    possible = [first for first in axes if shape[0 if first else -1] % n_stack == 0]
    rule = f"n_stack={n_stack} must divide the number of channels ({HOW_TO_TURN_OFF})"
    require(bool(possible), rule, shape)
    return [StackLayout(space, n_stack, n_envs, channels_first=first) for first in possible]
