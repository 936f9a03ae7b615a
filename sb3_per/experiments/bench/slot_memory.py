"""Memory of prioritization: bytes a slot, and whether it grows while a buffer is in use."""

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from tqdm import tqdm

from sb3_per.buffers.prioritized import PrioritizedReplayBuffer
from sb3_per.experiments.bench.contestants import ACTIONS, OfSB3, flat
from sb3_per.experiments.common.tables import markdown

BATCH = 32


class SlotMemory(NamedTuple):
    """The memory of a prioritization."""

    prioritization: str
    bytes_per_slot: float  # beyond what SB3's buffer of the same size takes
    grown_megabytes: (
        float  # the largest resident size, from the first tenth of the steps to the end
    )


def measure(prioritization: str, capacity: int, n_steps: int) -> SlotMemory:
    """
    Return the bytes that a slot takes, and what an operation allocates.

    :param capacity: Slots, all of them filled.
    :param n_steps: How often a batch of 32 is sampled and updated, and four transitions added.
    """
    arguments = (capacity, flat(1).observations, ACTIONS, "cpu")
    plain = _bytes_of(lambda: ReplayBuffer(*arguments))
    ours = _bytes_of(lambda: PrioritizedReplayBuffer(*arguments, prioritization=prioritization))
    buffer = PrioritizedReplayBuffer(*arguments, prioritization=prioritization)
    full = OfSB3(buffer, flat(1).one)
    td_errors = np.random.default_rng(0).exponential(size=(1000, BATCH)).astype(np.float32)
    before = 0.0
    for step in tqdm(range(n_steps), prioritization, leave=False, miniters=1000):
        if step == n_steps // 10:
            before = _resident_kilobytes()
        full.update(full.sample(BATCH), td_errors[step % 1000])
        for _ in range(4):
            full.add()
    grown = (_resident_kilobytes() - before) / 1000
    return SlotMemory(prioritization, (ours - plain) / capacity, grown)


def _bytes_of(make: Callable[[], Any]) -> int:
    make()  # what is made once for all, as compiled kernels, is none of the buffer's
    tracemalloc.start()
    made = make()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del made
    return size


def _resident_kilobytes() -> float:
    import resource  # Windows has none, and this command is all that needs it

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / 1000 if sys.platform == "darwin" else largest  # there it counts bytes


def summary(found: list[SlotMemory]) -> str:
    """Return all prioritizations as a table."""
    rows = [
        (one.prioritization, f"{one.bytes_per_slot:.1f}", f"{one.grown_megabytes:.1f}")
        for one in found
    ]
    return markdown(("prioritization", "bytes a slot", "grown by, MB"), rows, is_aligned=True)
