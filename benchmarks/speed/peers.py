"""Buffers and trees of other libraries, each imported only when it is measured."""

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


class TianshouTree:
    """Tianshou's segment tree in numba, with the exponent that its buffer takes."""

    def __init__(self, workload: Workload) -> None:
        from tianshou.data.utils.segtree import SegmentTree

        self._tree = SegmentTree(workload.capacity)
        self._capacity, self._next = workload.capacity, 0
        self._generator = np.random.default_rng(0)
        self._tree[np.arange(workload.capacity)] = np.ones(workload.capacity)

    def sample(self, batch_size: int) -> Any:
        masses = self._generator.random(batch_size) * self._tree.reduce()
        drawn = self._tree.get_prefix_sum_idx(masses)
        self._tree[drawn]  # the weights need them
        return drawn

    def update(self, drawn: Any, td_errors: NDArray[np.float32]) -> None:
        self._tree[drawn] = np.abs(td_errors) ** ALPHA

    def add(self) -> None:
        self._tree[self._next] = 1.0
        self._next = (self._next + 1) % self._capacity


class TorchRLTrees:
    """torchrl's C++ trees as its sampler uses them: one of sums, one of minima."""

    def __init__(self, workload: Workload) -> None:
        from torchrl._torchrl import MinSegmentTreeFp32, SumSegmentTreeFp32

        self._trees = SumSegmentTreeFp32(workload.capacity), MinSegmentTreeFp32(workload.capacity)
        self._capacity, self._next = workload.capacity, 0
        self._generator = np.random.default_rng(0)
        for tree in self._trees:
            tree.update(np.arange(workload.capacity), np.ones(workload.capacity, dtype=np.float32))

    def sample(self, batch_size: int) -> Any:
        sums, minima = self._trees
        total = sums.query(0, self._capacity)
        minima.query(0, self._capacity)
        masses = self._generator.random(batch_size, dtype=np.float32) * np.float32(total)
        drawn = sums.scan_lower_bound(masses)
        sums[drawn]  # the weights need them
        return drawn

    def update(self, drawn: Any, td_errors: NDArray[np.float32]) -> None:
        weights = np.abs(td_errors) ** np.float32(ALPHA)
        for tree in self._trees:
            tree.update(drawn, weights)

    def add(self) -> None:
        for tree in self._trees:
            tree.update(self._next, 1.0)
        self._next = (self._next + 1) % self._capacity


def peers(workload: Workload) -> Iterator[tuple[str, Callable[[], Contestant]]]:
    """Yield the makers of other libraries' buffers, by name."""
    yield "cpprb", lambda: Cpprb(workload)
    yield "Tianshou", lambda: Tianshou(workload)
    yield "torchrl's trees, bare", lambda: TorchRLTrees(workload)
    yield "Tianshou's tree, bare", lambda: TianshouTree(workload)
