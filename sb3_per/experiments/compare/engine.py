"""The seam between a grid of cells and the machines that train them, and the loop above it."""

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
    """A cell whose process or machine is gone; it is tried again."""

    cell: Cell
    reason: str


class Remark(NamedTuple):
    """Something that a person should know of the machines."""

    text: str


class EndedCell(NamedTuple):
    """
    A cell whose training is over.

    :param error: None if its result is written; else the traceback, and where the whole output is.
    """

    cell: Cell
    error: str | None


Event = StartedCell | LostCell | Remark | EndedCell


class Engine(Protocol):
    """Trains cells. The result of a cell that ended well is in the run folder by then."""

    def submit(self, cell: Cell) -> None:
        """
        Start a cell, or queue it for a machine; the caller knows how many there may be at a time.

        :raises OSError: if it cannot be started; others may be.
        """

    def collect(self) -> Event:
        """Wait for the next event of the submitted cells; each of them ends once."""

    def close(self) -> None:
        """Stop the cells that still run; they leave no result."""


class Display(Protocol):
    """Shows how a run goes."""

    def show(self, event: Event) -> None: ...


def run(cells: Sequence[Cell], engine: Engine, jobs: int, display: Display) -> list[EndedCell]:
    """
    Train every cell. A cell that fails does not stop the others.

    :param cells: In the order in which they start.
    :param engine: Closed at the end, and when this is interrupted.
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
