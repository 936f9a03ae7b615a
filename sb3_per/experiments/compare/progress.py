"""The progress of a run: a live display in a terminal, a line for each cell elsewhere."""

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Task as Line
from rich.text import Text

from sb3_per.experiments.compare.engine import (
    EndedCell,
    Event,
    LostCell,
    Remark,
    StartedCell,
)
from sb3_per.experiments.compare.suite import Cell


class _TimeLeft(ProgressColumn):
    def render(self, task: Line) -> Text:
        return Text("" if task.total is None else f"{_readable(task.time_remaining)} left")


class RunDisplay:
    """
    Shows the progress of a run: live in a terminal, in plain lines elsewhere. A context manager.

    The time left is rich's estimate, from the training steps of all cells that ended well.

    :param cells: The cells that will be run.
    :param n_done: How many cells were finished before.
    :param console: The console to write to.
    :param clock: Returns seconds, from any start.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        n_done: int,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._clock = console, clock
        self._n_cells = n_done + len(cells)
        self._n_done, self._n_failed = n_done, 0
        self._live = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            _TimeLeft(),
            console=console,
            disable=not console.is_terminal,
            get_time=clock,
            speed_estimate_period=math.inf,
        )
        self._started: dict[str, tuple[float, Line]] = {}
        self._all = self._add_line("", sum(map(_steps, cells)))
        self._live.update(self._all.id, description=self._counts())

    def __enter__(self) -> "RunDisplay":
        self._live.start()
        self._live.advance(self._all.id, 0)  # where rich's estimate of the speed begins
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        if isinstance(event, StartedCell):
            where = f" on {event.host}" if event.host else ""
            line = self._add_line(f"  {event.cell}{where}", None)
            self._started[str(event.cell)] = self._clock(), line
        elif isinstance(event, LostCell):
            self._remove(event.cell)
            self._say(f"{event.cell}: lost, tried again ({event.reason})")
        elif isinstance(event, Remark):
            self._say(event.text)
        else:
            self._end(event)
        self._live.update(self._all.id, description=self._counts())

    def _end(self, ended: EndedCell) -> None:
        since = self._remove(ended.cell)
        if ended.error is None:
            self._n_done += 1
            self._live.advance(self._all.id, _steps(ended.cell))
            said = _readable(self._clock() - since)
        else:
            self._n_failed += 1
            self._all.total = (self._all.total or 0) - _steps(ended.cell)  # update() forgets speeds
            said = "failed"
        if not self._console.is_terminal:
            left = _readable(self._all.time_remaining)
            self._say(f"{self._counts()}, {left} left | {ended.cell}: {said}")
        elif ended.error is not None:
            self._say(f"{ended.cell}: {said}")

    def _remove(self, cell: Cell) -> float:
        """Forget that a cell runs, and return its start time; now, if it never started."""
        since, line = self._started.pop(str(cell), (self._clock(), None))
        if line is not None:
            self._live.remove_task(line.id)
        return since

    def _add_line(self, text: str, total: int | None) -> Line:
        self._live.add_task(text, total=total)
        return self._live.tasks[-1]

    def _say(self, text: str) -> None:
        # One line for grep, whatever the width; and names are no markup.
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _counts(self) -> str:
        speed = self._all.speed  # rich's, of the cells that ended well
        return (
            f"{self._n_done} of {self._n_cells} done, {len(self._started)} running, "
            f"{self._n_failed} failed, {'?' if speed is None else round(speed)} steps/s"
        )


def _steps(cell: Cell) -> int:
    return int(cell.settings["steps"])


def _readable(seconds: float | None) -> str:
    return "?" if seconds is None else str(timedelta(seconds=round(seconds)))
