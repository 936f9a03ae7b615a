"""How a run goes: a live display in a terminal, a line for each cell elsewhere."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from sb3_per.experiments.compare.engine import EndedCell
from sb3_per.experiments.compare.suite import Cell


class Forecast:
    """
    Predicts how long the rest will take.

    Each cell takes as long as those before it in its environment and variant; if there are none, in
    its environment; if there are none, in any, step for step.

    :param clock: Seconds, from any start.
    :param jobs: How many cells run at a time.
    """

    def __init__(self, cells: Sequence[Cell], jobs: int, clock: Callable[[], float]) -> None:
        self._waiting = list(cells)
        self._jobs, self._clock = jobs, clock
        self._since: dict[str, tuple[Cell, float]] = {}
        self._pace: dict[tuple[str, ...], list[float]] = {}  # seconds a step

    def started(self, cell: Cell) -> None:
        self._waiting.remove(cell)
        self._since[str(cell)] = cell, self._clock()

    def ended(self, cell: Cell, *, well: bool) -> float:
        """Return a cell's seconds; nothing is learned from them unless it ended well."""
        seconds = self._clock() - self._since.pop(str(cell))[1]
        if well:
            for kind in _kinds(cell):
                self._pace.setdefault(kind, []).append(seconds / cell.settings["steps"])
        return seconds

    def seconds_left(self) -> float | None:
        """Return the forecast; None while no cell has ended."""
        if not self._pace:
            return None
        now = self._clock()
        left = [self._expected(cell) for cell in self._waiting]
        for cell, since in self._since.values():
            left.append(max(self._expected(cell) - (now - since), 0.0))
        # The longest one takes its time, however many others there may be beside it.
        return max(sum(left) / self._jobs, *left, 0.0)

    def _expected(self, cell: Cell) -> float:
        kind = next(kind for kind in _kinds(cell) if kind in self._pace)
        paces = self._pace[kind]
        return sum(paces) / len(paces) * float(cell.settings["steps"])


def _kinds(cell: Cell) -> list[tuple[str, ...]]:
    return [(cell.environment, cell.variant), (cell.environment,), ()]


class _TimeLeft(ProgressColumn):
    def __init__(self, forecast: Forecast) -> None:
        super().__init__()
        self._forecast = forecast

    def render(self, task: Task) -> Text:
        is_all = task.total is not None
        return Text(f"{_readable(self._forecast.seconds_left())} left" if is_all else "")


class RunDisplay:
    """
    Shows how a run goes: live in a terminal, by plain lines elsewhere. A context manager.

    :param cells: Those that will be run.
    :param n_done: How many were finished before.
    :param jobs: How many run at a time.
    :param console: Where to.
    """

    def __init__(self, cells: Sequence[Cell], n_done: int, jobs: int, console: Console) -> None:
        self._console = console
        self._n_cells = n_done + len(cells)
        self._n_done, self._n_failed, self._n_running = n_done, 0, 0
        self._forecast = Forecast(cells, jobs, time.monotonic)
        self._live = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            _TimeLeft(self._forecast),
            console=console,
            disable=not console.is_terminal,
        )
        self._all = self._live.add_task(self._counts(), total=self._n_cells, completed=n_done)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "RunDisplay":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def started(self, cell: Cell) -> None:
        self._forecast.started(cell)
        self._n_running += 1
        self._tasks[str(cell)] = self._live.add_task(f"  {cell}", total=None)
        self._live.update(self._all, description=self._counts())

    def ended(self, ended: EndedCell) -> None:
        well = ended.error is None
        seconds = self._forecast.ended(ended.cell, well=well)
        self._n_running -= 1
        self._n_done += well
        self._n_failed += not well
        self._live.remove_task(self._tasks.pop(str(ended.cell)))
        self._live.update(self._all, description=self._counts(), advance=1)
        if not self._console.is_terminal:
            left = _readable(self._forecast.seconds_left())
            word = _readable(seconds) if well else "failed"
            self._say(f"{self._n_done}/{self._n_cells}, {left} left | {ended.cell}: {word}")
        elif not well:
            self._say(f"{ended.cell}: failed")

    def _say(self, text: str) -> None:
        # One line for grep, whatever the width; and names are no markup.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _counts(self) -> str:
        done = f"{self._n_done} of {self._n_cells} done"
        return f"{done}, {self._n_running} running, {self._n_failed} failed"


def _readable(seconds: float | None) -> str:
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))
