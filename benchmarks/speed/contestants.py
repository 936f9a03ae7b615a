"""The contestants: our buffers and SB3's."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per import PERDQN
from sb3_per.buffers.prioritized import PrioritizedReplayBuffer

ALPHA, BETA = 0.6, 0.4
ACTIONS = spaces.Discrete(4)


class Contestant(Protocol):
    """A full buffer."""

    def sample(self, batch_size: int) -> Any:
        """Sample a batch; return what ``update`` needs to know about it."""

    def update(self, drawn: Any, td_errors: NDArray[np.float32]) -> None:
        """Give the sampled transitions new TD errors, shape (B,)."""

    def add(self) -> None:
        """Replace the oldest transition with a new one."""


class Workload(NamedTuple):
    """The transitions that a contestant stores."""

    name: str
    observations: spaces.Box
    capacity: int

    @property
    def one(self) -> NDArray[Any]:
        """Return an observation, in a batch of one."""
        return np.ones((1, *self.observations.shape), dtype=self.observations.dtype)


def flat(capacity: int) -> Workload:
    """Return a workload with transitions of 8 floats."""
    return Workload("8 floats", spaces.Box(-1, 1, (8,), np.float32), capacity)


def images(capacity: int) -> Workload:
    """Return a workload with transitions of four stacked frames, as in Atari games."""
    return Workload("84 x 84 x 4 images", spaces.Box(0, 255, (84, 84, 4), np.uint8), capacity)


class OfSB3:
    """SB3's ``ReplayBuffer`` or one of ours."""

    def __init__(self, buffer: ReplayBuffer, one: NDArray[Any]) -> None:
        self.buffer, self._one = buffer, one
        self._zero = np.zeros(1)
        self._infos: list[dict[str, Any]] = [{}]
        for _ in range(buffer.buffer_size):
            self.add()

    def sample(self, batch_size: int) -> Any:
        return self.buffer.sample(batch_size)

    def update(self, drawn: Any, td_errors: NDArray[np.float32]) -> None:
        if isinstance(self.buffer, PrioritizedReplayBuffer):
            self.buffer.update_priorities(drawn.slots, td_errors)

    def add(self) -> None:
        self.buffer.add(self._one, self._one, self._zero, self._zero, self._zero, self._infos)


def buffers(workload: Workload) -> Iterator[tuple[str, Callable[[], Contestant]]]:
    """Return whole buffers by name: SB3's first, and SB3's again, which shows the noise."""
    arguments = (workload.capacity, workload.observations, ACTIONS, "cpu")

    def ours(**options: Any) -> Contestant:
        options = {"alpha": ALPHA, **options}
        return OfSB3(PrioritizedReplayBuffer(*arguments, **options), workload.one)

    yield "SB3 uniform", lambda: OfSB3(ReplayBuffer(*arguments), workload.one)
    yield "SB3 uniform again", lambda: OfSB3(ReplayBuffer(*arguments), workload.one)
    yield "sb3-per proportional", ours
    yield "sb3-per rank-based", lambda: ours(prioritization="rank")
    yield "PERDQN's defaults", lambda: ours(**defaults_of_perdqn())
    if workload.observations.dtype == np.uint8:
        yield "sb3-per n_stack=4", lambda: ours(n_stack=4)


def defaults_of_perdqn() -> dict[str, Any]:
    """Return the options of a buffer that PERDQN makes."""
    options = dict(PERDQN.default_options)
    if options["td_error_clip"] == "loss":
        options["td_error_clip"] = PERDQN.huber_threshold
    return options
