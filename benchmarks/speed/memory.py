"""Memory of full buffers: bytes a slot beyond SB3's buffer, and whole buffers of Atari's images."""

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from tqdm import tqdm

from benchmarks.rows import Row
from benchmarks.speed.contestants import ACTIONS, OfSB3, flat, images
from sb3_per import PrioritizedReplayBuffer

BATCH = 32
N_STACK = 4
EPISODE = 500  # steps

Add = Callable[[NDArray[np.uint8], NDArray[np.uint8], bool], None]


def measure_slots(prioritization: Any, capacity: int, n_steps: int) -> Row:
    """
    Return the bytes of a slot beyond SB3's buffer, and by how many MB a buffer in use grows.

    :param capacity: Slots, all of them filled.
    :param n_steps: How often a batch of 32 is sampled and updated, and four transitions added.
    """
    arguments = (capacity, flat(1).observations, ACTIONS, "cpu")

    def make() -> PrioritizedReplayBuffer:
        buffer = PrioritizedReplayBuffer(*arguments, prioritization=prioritization)
        _ = buffer.observations  # arrays are made when they are first used
        return buffer

    plain, ours = _bytes_of(lambda: ReplayBuffer(*arguments)), _bytes_of(make)
    full = OfSB3(make(), flat(1).one)
    td_errors = np.random.default_rng(0).exponential(size=(1000, BATCH)).astype(np.float32)
    before = 0.0
    for step in tqdm(range(n_steps), prioritization, leave=False, miniters=1000):
        if step == n_steps // 10:
            before = _resident_kilobytes()
        full.update(full.sample(BATCH), td_errors[step % 1000])
        for _ in range(4):
            full.add()
    grown = (_resident_kilobytes() - before) / 1000
    bytes_per_slot = (ours - plain) / capacity
    return {"name": prioritization, "bytes a slot": bytes_per_slot, "grown by, MB": grown}


def _bytes_of(make: Callable[[], Any]) -> int:
    make()  # what is made once for all, as compiled kernels, does not count
    tracemalloc.start()
    made = make()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del made
    return size


def _resident_kilobytes() -> float:
    import resource  # Windows has none

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / 1000 if sys.platform == "darwin" else largest  # there it counts bytes


def measure_images(n_stored: int) -> list[Row]:
    """
    Fill buffers with transitions of 84 x 84 x 4 images, and return by how much a process grew.

    Each buffer has a process of its own: memory that it leaves behind would affect the next one.
    """
    rows = []
    for name in tqdm(BUFFERS, "filling buffers", leave=False):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            try:
                grown = pool.submit(_grown_by, name, n_stored).result()
            except (ImportError, MemoryError) as error:
                print(f"{name} is left out: {error}")
                continue
        rows.append({"buffer": name, "stored": n_stored, "bytes a transition": grown / n_stored})
    return rows


def _grown_by(name: str, n_stored: int) -> float:
    import psutil  # type: ignore[import-untyped]  # it has no types

    n_frames = _fill(name, 100)[1]  # after which nothing more is compiled or imported
    need, free = n_stored * n_frames * 84 * 84, psutil.virtual_memory().available
    if need > 0.9 * free:
        raise MemoryError(f"it needs {need / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
    before = psutil.Process().memory_info().rss
    kept = _fill(name, n_stored)
    grown = psutil.Process().memory_info().rss - before
    del kept
    return float(grown)


def _fill(name: str, n_stored: int) -> tuple[Any, int]:
    """Return a full buffer, and how many frames it stores for each transition."""
    make, n_frames = BUFFERS[name]
    buffer, add = make(n_stored)
    for transition in _play(n_stored):
        add(*transition)
    return buffer, n_frames


def _play(n_steps: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], bool]]:
    """Return transitions as ``VecFrameStack`` makes them: zeros before an episode's first frame."""
    observation = np.zeros((1, 84, 84, N_STACK), dtype=np.uint8)
    observation[..., -1] = 1
    for step in range(n_steps):
        following = np.roll(observation, -1, axis=-1)
        following[..., -1] = step % 255 + 1
        is_last = step % EPISODE == EPISODE - 1
        yield observation, following, is_last
        observation = following.copy()
        if is_last:
            observation[..., :-1] = 0


def _of_sb3(kind: type[ReplayBuffer], **options: Any) -> Callable[[int], tuple[Any, Add]]:
    def make(n: int) -> tuple[Any, Add]:
        buffer, zero = kind(n, images(1).observations, ACTIONS, "cpu", **options), np.zeros(1)

        def add(seen: NDArray[np.uint8], following: NDArray[np.uint8], is_last: bool) -> None:
            buffer.add(seen, following, zero, zero, np.array([is_last]), [{}])

        return buffer, add

    return make


def _cpprb(n: int) -> tuple[Any, Add]:
    from cpprb import PrioritizedReplayBuffer as OfCpprb

    fields: dict[str, Any] = {"act": {}, "rew": {}, "done": {}}
    fields["obs"] = {"shape": images(1).observations.shape, "dtype": np.uint8}
    buffer = OfCpprb(n, fields, next_of="obs", stack_compress="obs")

    def add(seen: NDArray[np.uint8], following: NDArray[np.uint8], is_last: bool) -> None:
        buffer.add(obs=seen, next_obs=following, act=0, rew=0, done=is_last)
        if is_last:
            buffer.on_episode_end()

    return buffer, add


# How each is made, and how many frames it stores for a transition.
BUFFERS: dict[str, tuple[Callable[[int], tuple[Any, Add]], int]] = {
    "SB3": (_of_sb3(ReplayBuffer), 2 * N_STACK),
    "SB3, optimize_memory_usage": (
        _of_sb3(ReplayBuffer, optimize_memory_usage=True, handle_timeout_termination=False),
        N_STACK,
    ),
    "cpprb, next_of and stack_compress": (_cpprb, 1),
    "sb3-per": (_of_sb3(PrioritizedReplayBuffer), 2 * N_STACK),
    "sb3-per, n_stack=4": (_of_sb3(PrioritizedReplayBuffer, n_stack=N_STACK), 1),
}
