"""Wall time of a grid of runs, on this machine's processes and on Ray."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sb3_per.experiments.common.command_line import NO_FIGURE
from sb3_per.experiments.common.drawing import COLOURS, save_figure
from sb3_per.experiments.common.ray_connection import RayOptions, connected
from sb3_per.experiments.common.ray_pool import RayPool, Returned
from sb3_per.experiments.common.tables import markdown
from sb3_per.experiments.compare import run_folder, suite_file
from sb3_per.experiments.compare.engine import Engine, Event, run
from sb3_per.experiments.compare.environment import Evaluation
from sb3_per.experiments.compare.local import LocalEngine
from sb3_per.experiments.compare.ray_engine import RayEngine
from sb3_per.experiments.compare.suite import Cell, cells

STEPS = 500  # of a short run


class Grid(NamedTuple):
    """The time that a grid of runs took on one engine."""

    engine: str
    n_workers: int
    n_runs: int
    seconds: float


class Empty(NamedTuple):
    """
    The time of runs that do nothing, one after the other: this is what Ray adds to each run.

    :param n_runs: Number of runs after the first one.
    :param start: Seconds until Ray had started.
    :param first: Milliseconds of the first run, for which Ray starts a process.
    :param further: Median milliseconds of the runs after it.
    :param fastest: Milliseconds of the fastest run, which other programs delayed least.
    """

    n_runs: int
    start: float
    first: float
    further: float
    fastest: float


def nothing() -> None:
    """Return at once."""


def measure_empty(n_runs: int) -> Empty:
    """
    Time runs that do nothing, with Ray on this machine.

    :param n_runs: Number of runs after the first one.
    """
    options, begin = RayOptions(dashboard=False), time.perf_counter()
    with connected(options):
        start = time.perf_counter() - begin
        pool = RayPool(nothing, options)
        times = []
        for number in range(n_runs + 1):
            begin = time.perf_counter()
            pool.submit(number)
            while not isinstance(pool.collect(), Returned):
                pass
            times.append(1e3 * (time.perf_counter() - begin))
    return Empty(n_runs, start, times[0], median(times[1:]), min(times[1:]))


def measure_grid(engine: str, n_workers: int, n_runs: int) -> Grid:
    """
    Time a grid of short runs; processes and imports count, the start of Ray does not.

    :param engine: ``local`` or ``ray``, which starts for this grid: no process of it has imported
        anything yet.
    :param n_workers: How many runs at a time.
    """
    grid = short_runs(n_runs)
    with TemporaryDirectory() as folder, ENGINES[engine](Path(folder)) as made:
        return Grid(engine, n_workers, n_runs, _seconds(grid, made, n_workers, folder))


@contextmanager
def _local_engine(folder: Path) -> Iterator[LocalEngine]:
    yield LocalEngine(folder, "cpu")


@contextmanager
def _ray_engine(folder: Path) -> Iterator[RayEngine]:
    options = RayOptions(dashboard=False)
    with connected(options):
        yield RayEngine(folder, "cpu", options)


ENGINES: dict[str, Callable[[Path], AbstractContextManager[Engine]]] = {
    "local": _local_engine,
    "ray": _ray_engine,
}


def short_runs(n_runs: int) -> list[Cell]:
    """Return that many seeds of ``DQN`` on the suite ``smoke``'s task, with ``STEPS`` steps."""
    suite = suite_file.load("smoke")
    name, environment = next(iter(suite.environments.items()))
    evaluation = Evaluation(every=STEPS // 4, episodes=1)
    short = environment.model_copy(update={"steps": STEPS, "evaluation": evaluation})
    changes = {"seeds": n_runs, "environments": {name: short}}
    return [cell for cell in cells(suite.model_copy(update=changes)) if cell.variant == "dqn"]


def _seconds(grid: list[Cell], engine: Engine, n_workers: int, folder: str) -> float:
    begin = time.perf_counter()
    failed = run(grid, engine, n_workers, _Silence())
    if failed or run_folder.unfinished(Path(folder), grid):
        raise RuntimeError(f"all runs must finish, got {failed}")
    return time.perf_counter() - begin


class _Silence:
    def show(self, event: Event) -> None: ...


def summary(empty: Empty, grids: list[Grid]) -> str:
    """Return both measurements as tables."""
    of_empty = markdown(
        ("runs that do nothing, on Ray", "ms"),
        [
            ("the first, with its process", f"{empty.first:.0f}"),
            (f"the median of {empty.n_runs} further ones", f"{empty.further:.1f}"),
            ("the fastest of them", f"{empty.fastest:.1f}"),
            ("the start of Ray", f"{1e3 * empty.start:.0f}"),
        ],
        is_aligned=True,
    )
    of_grids = markdown(
        ("engine", "at a time", "runs", "seconds", "seconds a run"),
        [
            (
                g.engine,
                str(g.n_workers),
                str(g.n_runs),
                f"{g.seconds:.0f}",
                f"{g.seconds / g.n_runs:.2f}",
            )
            for g in grids
        ],
        is_aligned=True,
    )
    return f"{of_empty}\n\n{of_grids}"


def draw(grids: list[Grid], file: Path) -> str:
    """
    Draw wall time against the number of workers, and the line of perfect scaling.

    :param file: Path without an ending.
    :return: The path of the figure, or why there is none.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return NO_FIGURE
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    panel = figure.subplots()
    for engine, colour, marker in (("local", COLOURS[0], "o"), ("ray", COLOURS[5], "s")):
        own = [grid for grid in grids if grid.engine == engine]
        if not own:
            continue
        workers = [grid.n_workers for grid in own]
        panel.plot(
            workers,
            [grid.seconds for grid in own],
            color=colour,
            marker=marker,
            label=f"--engine {engine}",
        )
        ideal = [own[0].seconds * workers[0] / n for n in workers]
        panel.plot(workers, ideal, color=colour, linestyle=":", linewidth=1)
    panel.set_xticks(sorted({grid.n_workers for grid in grids}))
    panel.set_ylim(bottom=0)
    panel.set_xlabel("runs at a time (dotted: in proportion)")
    panel.set_ylabel(f"seconds for {grids[0].n_runs} runs")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    save_figure(figure, file)
    return f"Figure: {file.with_suffix('.png')}"
