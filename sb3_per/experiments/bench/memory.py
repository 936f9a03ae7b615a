"""Memory of prioritization: bytes a slot, and whether it grows while a buffer is in use."""

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from tqdm import tqdm

from sb3_per.buffers.prioritized import PrioritizedReplayBuffer
from sb3_per.experiments.bench.contestants import ACTIONS, OfSB3, flat, images
from sb3_per.experiments.bench.quartiles import table

BATCH = 32


class Memory(NamedTuple):
    """What a prioritization takes."""

    prioritization: str
    bytes_per_slot: float  # beyond what SB3's buffer of the same size takes
    grown_megabytes: (
        float  # the largest resident size, from the first tenth of the steps to the end
    )


def measure(prioritization: str, capacity: int, n_steps: int) -> Memory:
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
    return Memory(prioritization, (ours - plain) / capacity, grown)


class Stored(NamedTuple):
    """What a buffer of images takes, its priorities included."""

    buffer: str
    bytes_per_transition: float


def measure_images(capacity: int) -> list[Stored]:
    """
    Return what transitions of 84 x 84 x 4 images take in SB3's buffer and ours.

    :param capacity: Slots, whose memory is reserved but not written.
    """
    arguments = (capacity, images(1).observations, ACTIONS, "cpu")
    shared: Any = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    makers: dict[str, Callable[[], Any]] = {
        "SB3": lambda: ReplayBuffer(*arguments),
        "SB3, optimize_memory_usage": lambda: ReplayBuffer(*arguments, **shared),
        "sb3-per": lambda: PrioritizedReplayBuffer(*arguments),
        "sb3-per, n_stack=4": lambda: PrioritizedReplayBuffer(*arguments, n_stack=4),
    }
    return [Stored(name, _bytes_of(make) / capacity) for name, make in makers.items()]


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


def summary(found: list[Memory]) -> str:
    """All prioritizations as a table."""
    rows = [
        (one.prioritization, f"{one.bytes_per_slot:.1f}", f"{one.grown_megabytes:.1f}")
        for one in found
    ]
    return table(("prioritization", "bytes a slot", "grown by, MB"), rows)


def summary_of_images(found: list[Stored]) -> str:
    """All buffers of images as a table."""
    rows = [(one.buffer, f"{one.bytes_per_transition:.0f}") for one in found]
    return table(("84 x 84 x 4 images", "bytes a transition"), rows)
