"""Buffers of other libraries, each imported only when it is measured."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.contestants import ALPHA, BETA, Contestant, Workload

# From this capacity on, peers are left out: some need minutes to be filled.
LARGEST = 1_000_000


class Cpprb:
    """cpprb's ``PrioritizedReplayBuffer``."""

    def __init__(self, workload: Workload) -> None:
        from cpprb import PrioritizedReplayBuffer

        shape = {"shape": workload.observations.shape, "dtype": workload.observations.dtype}
        fields = {"obs": shape, "next_obs": shape, "act": {}, "rew": {}, "done": {}}
        self._buffer = PrioritizedReplayBuffer(workload.capacity, fields, alpha=ALPHA)
        self._one = {"obs": workload.one, "next_obs": workload.one, "act": 0, "rew": 0, "done": 0}
        for _ in range(workload.capacity):
            self.add()

    def sample(self, batch_size: int) -> Any:
        return self._buffer.sample(batch_size, beta=BETA)["indexes"]

    def update(self, drawn: Any, td_errors: NDArray[np.float32]) -> None:
        self._buffer.update_priorities(drawn, np.abs(td_errors))

    def add(self) -> None:
        self._buffer.add(**self._one)


class Tianshou:
    """Tianshou's ``PrioritizedReplayBuffer``."""

    def __init__(self, workload: Workload) -> None:
        from tianshou.data import Batch, PrioritizedReplayBuffer

        self._buffer = PrioritizedReplayBuffer(workload.capacity, alpha=ALPHA, beta=BETA)
        observation = workload.one[0]
        self._one = Batch(
            obs=observation,
            obs_next=observation,
            act=0,
            rew=0.0,
            terminated=False,
            truncated=False,
            info={},
        )
        for _ in range(workload.capacity):
            self.add()

    def sample(self, batch_size: int) -> Any:
        return self._buffer.sample(batch_size)[1]

    def update(self, drawn: Any, td_errors: NDArray[np.float32]) -> None:
        self._buffer.update_weight(drawn, td_errors)

    def add(self) -> None:
        self._buffer.add(self._one)


def peers(workload: Workload) -> Iterator[tuple[str, Callable[[], Contestant]]]:
    """Yield the makers of other libraries' buffers, by name."""
    yield "cpprb", lambda: Cpprb(workload)
    yield "Tianshou", lambda: Tianshou(workload)
