"""The seam between a grid of cells and the machines that train them, and the loop above it."""

import traceback
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sb3_per.experiments.compare.suite import Cell


class EndedCell(NamedTuple):
    """
    A cell whose training is over.

    :param error: None if its result is written; else the traceback, and where the whole output is.
    """

    cell: Cell
    error: str | None


class Engine(Protocol):
    """Trains cells. Their results are in the run folder when ``collect`` returns them."""

    def submit(self, cell: Cell) -> None:
        """
        Start a cell; the caller knows how many there may be at a time.

        :raises OSError: if it cannot be started; others may be.
        """

    def collect(self) -> EndedCell:
        """Wait until one of the started cells has ended."""

    def close(self) -> None:
        """Stop the cells that still run; they leave no result."""


class Display(Protocol):
    """Shows how a run goes."""

    def started(self, cell: Cell) -> None: ...

    def ended(self, ended: EndedCell) -> None: ...


def run(cells: Sequence[Cell], engine: Engine, jobs: int, display: Display) -> list[EndedCell]:
    """
    Train every cell. A cell that fails does not stop the others.

    :param cells: In the order in which they start.
    :param engine: Closed at the end, and when this is interrupted.
    :param jobs: How many cells may run at a time.
    :return: The cells that failed.
    """
    waiting = deque(cells)
    n_running = 0
    failed = []
    try:
        while waiting or n_running:
            ended = None
            if waiting and n_running < jobs:
                cell = waiting.popleft()
                display.started(cell)
                try:
                    engine.submit(cell)
                    n_running += 1
                except OSError:
                    ended = EndedCell(cell, traceback.format_exc().rstrip())
            else:
                ended = engine.collect()
                n_running -= 1
            if ended is not None:
                display.ended(ended)
                failed += [ended] if ended.error is not None else []
    finally:
        engine.close()
    return failed
