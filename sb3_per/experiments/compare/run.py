"""A grid of cells, some at a time, until each is finished or has failed."""

import traceback
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from sb3_per.experiments.compare.engine import Engine, Outcome
from sb3_per.experiments.compare.suite import Cell


class Display(Protocol):
    """Who wants to know how it goes."""

    def started(self, cell: Cell) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


def run(cells: Sequence[Cell], engine: Engine, jobs: int, display: Display) -> list[Outcome]:
    """
    Train every cell. One that fails does not stop the others.

    :param cells: In the order in which they start.
    :param engine: Closed at the end, and when this is interrupted.
    :param jobs: How many cells may run at a time.
    :param display: Told of each start and end.
    :return: The cells that failed.
    """
    waiting = deque(cells)
    n_running = 0
    failed = []
    try:
        while waiting or n_running:
            while waiting and n_running < jobs:
                cell = waiting.popleft()
                display.started(cell)
                try:
                    engine.submit(cell)
                    n_running += 1
                except OSError:
                    failed.append(Outcome(cell, traceback.format_exc().rstrip()))
                    display.ended(failed[-1])
            if n_running:
                outcome = engine.collect()
                n_running -= 1
                display.ended(outcome)
                if outcome.error is not None:
                    failed.append(outcome)
    finally:
        engine.close()
    return failed
