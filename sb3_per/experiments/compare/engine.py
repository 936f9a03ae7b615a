"""The interface between a grid of cells and the machines that train them, and the main loop."""

import traceback
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sb3_per.experiments.compare.suite import Cell


class StartedCell(NamedTuple):
    """
    A cell that is being trained now.

    :param host: The machine; empty for this one.
    """

    cell: Cell
    host: str = ""


class LostCell(NamedTuple):
    """A cell whose process or machine was lost; it is trained again."""

    cell: Cell
    reason: str


class Remark(NamedTuple):
    """A message about the machines for the user."""

    text: str


class EndedCell(NamedTuple):
    """
    A cell whose training is over.

    :param error: None if its result is written; else the traceback and the path of the output.
    """

    cell: Cell
    error: str | None


Event = StartedCell | LostCell | Remark | EndedCell


class Engine(Protocol):
    """Trains cells. When a cell ends without an error, its result is in the run folder."""

    def submit(self, cell: Cell) -> None:
        """
        Start a cell, or queue it for a machine; the caller limits the number of cells.

        :raises OSError: if this cell cannot be started; other cells may still start.
        """

    def collect(self) -> Event:
        """Wait for the next event of the submitted cells; each of them ends once."""

    def close(self) -> None:
        """Stop the cells that still run; they leave no result."""


class Display(Protocol):
    """Shows the progress of a run."""

    def show(self, event: Event) -> None: ...


def run(cells: Sequence[Cell], engine: Engine, jobs: int, display: Display) -> list[EndedCell]:
    """
    Train every cell. A cell that fails does not stop the others.

    :param cells: The cells, in the order in which they start.
    :param engine: The engine; it is closed at the end, and after an interruption.
    :param jobs: How many cells may run at a time.
    :return: The cells that failed.
    """
    waiting = deque(cells)
    n_submitted = 0  # and not ended
    failed = []
    try:
        while waiting or n_submitted:
            event: Event
            if waiting and n_submitted < jobs:
                cell = waiting.popleft()
                try:
                    engine.submit(cell)
                    n_submitted += 1
                    continue
                except OSError:
                    event = EndedCell(cell, traceback.format_exc().rstrip())
            else:
                event = engine.collect()
                n_submitted -= isinstance(event, EndedCell)
            display.show(event)
            if isinstance(event, EndedCell) and event.error is not None:
                failed.append(event)
    finally:
        engine.close()
    return failed
