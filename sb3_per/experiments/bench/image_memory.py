"""Memory of Atari's transitions in full buffers, as the operating system counts it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from tqdm import tqdm

from sb3_per.buffers.prioritized import PrioritizedReplayBuffer
from sb3_per.experiments.bench.contestants import ACTIONS, images
from sb3_per.experiments.common.command_line import NO_FIGURE
from sb3_per.experiments.common.drawing import COLOURS, save_figure
from sb3_per.experiments.common.processes import SPAWN
from sb3_per.experiments.common.tables import markdown

N_STACK = 4
EPISODE = 500  # steps
_WARM_UP = 100  # transitions, after which nothing more is compiled or imported

Add = Callable[[NDArray[np.uint8], NDArray[np.uint8], bool], None]


class Filled(NamedTuple):
    """The memory of a buffer of images, including its priorities."""

    buffer: str
    n_stored: int
    bytes_per_transition: float | None  # None: it was not measured
    note: str = ""  # why not


def measure(n_stored: int) -> list[Filled]:
    """
    Fill buffers with transitions of 84 x 84 x 4 images, each in a process of its own, and return
    by how much the process grew.

    :param n_stored: Transitions, which is also the size of each buffer.
    """
    found = []
    for name in tqdm(BUFFERS, "filling buffers", leave=False):
        # A process for each buffer, since memory that it leaves behind would affect the next one.
        with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
            found.append(pool.submit(_measure_one, name, n_stored).result())
    return found


def _measure_one(name: str, n_stored: int) -> Filled:
    import psutil  # type: ignore[import-untyped]  # it has no types

    try:
        reserved = _fill(name, _WARM_UP)[1]
    except ImportError as problem:
        return Filled(name, n_stored, None, str(problem).splitlines()[0])
    need, free = n_stored * reserved, psutil.virtual_memory().available
    if need > 0.9 * free:
        note = f"needs {need / 1e9:.0f} GB, {free / 1e9:.0f} GB are free"
        return Filled(name, n_stored, None, note)
    before = psutil.Process().memory_info().rss
    kept = _fill(name, n_stored)
    grown = psutil.Process().memory_info().rss - before
    del kept
    return Filled(name, n_stored, grown / n_stored)


def _fill(name: str, n_stored: int) -> tuple[Any, float]:
    """Return a full buffer, and about how many bytes it takes for each transition."""
    buffer, add, n_bytes = BUFFERS[name](n_stored)
    for transition in _play(n_stored):
        add(*transition)
    return buffer, n_bytes


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


_FRAME = 84 * 84.0


def _sb3(n: int) -> tuple[Any, Add, float]:
    return _with_add(ReplayBuffer(n, images(1).observations, ACTIONS, "cpu"), 2 * N_STACK)


def _sb3_shared(n: int) -> tuple[Any, Add, float]:
    buffer = ReplayBuffer(
        n,
        images(1).observations,
        ACTIONS,
        "cpu",
        optimize_memory_usage=True,
        handle_timeout_termination=False,
    )
    return _with_add(buffer, N_STACK)


def _ours(n: int) -> tuple[Any, Add, float]:
    buffer = PrioritizedReplayBuffer(n, images(1).observations, ACTIONS, "cpu")
    return _with_add(buffer, 2 * N_STACK)


def _ours_stacked(n: int) -> tuple[Any, Add, float]:
    buffer = PrioritizedReplayBuffer(n, images(1).observations, ACTIONS, "cpu", n_stack=N_STACK)
    return _with_add(buffer, 1)


def _with_add(buffer: ReplayBuffer, n_frames: int) -> tuple[Any, Add, float]:
    zero = np.zeros(1)

    def add(observation: NDArray[np.uint8], following: NDArray[np.uint8], is_last: bool) -> None:
        buffer.add(observation, following, zero, zero, np.array([is_last]), [{}])

    return buffer, add, n_frames * _FRAME


def _cpprb(n: int) -> tuple[Any, Add, float]:
    from cpprb import PrioritizedReplayBuffer as OfCpprb

    fields: dict[str, Any] = {"act": {}, "rew": {}, "done": {}}
    fields["obs"] = {"shape": images(1).observations.shape, "dtype": np.uint8}
    buffer = OfCpprb(n, fields, next_of="obs", stack_compress="obs")

    def add(observation: NDArray[np.uint8], following: NDArray[np.uint8], is_last: bool) -> None:
        buffer.add(obs=observation, next_obs=following, act=0, rew=0, done=is_last)
        if is_last:
            buffer.on_episode_end()

    return buffer, add, _FRAME


BUFFERS: dict[str, Callable[[int], tuple[Any, Add, float]]] = {
    "SB3": _sb3,
    "SB3, optimize_memory_usage": _sb3_shared,
    "cpprb, next_of and stack_compress": _cpprb,
    "sb3-per": _ours,
    "sb3-per, n_stack=4": _ours_stacked,
}


def summary(found: list[Filled]) -> str:
    """Return all buffers as a table."""
    rows = [
        (one.buffer, one.note)
        if one.bytes_per_transition is None
        else (one.buffer, f"{one.bytes_per_transition:.0f}")
        for one in found
    ]
    return markdown(
        (f"{found[0].n_stored:,} images 84 x 84 x 4", "bytes a transition"), rows, is_aligned=True
    )


def draw(found: list[Filled], file: Path) -> str:
    """
    Draw a bar for each buffer that was measured.

    :param file: Path without an ending.
    :return: The path of the figure, or why there is none.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return NO_FIGURE
    measured = [one for one in reversed(found) if one.bytes_per_transition is not None]
    if not measured:
        return "No figure: no buffer was measured"
    names = [one.buffer for one in measured]
    gigabytes = [(one.bytes_per_transition or 0) / 1e3 for one in measured]  # for a million
    figure = Figure(figsize=(7, 0.55 * len(measured) + 1), layout="constrained")
    panel = figure.subplots()
    colours = [COLOURS[5] if name.startswith("sb3-per") else "0.7" for name in names]
    bars = panel.barh(names, gigabytes, color=colours)
    panel.bar_label(bars, fmt="%.1f", padding=3)
    panel.set_xlabel("GB for a million transitions of four stacked frames, 84 x 84")
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(x=0.1)
    save_figure(figure, file)
    return f"Figure: {file.with_suffix('.png')}"
