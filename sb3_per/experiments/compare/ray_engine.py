"""The engine for a Ray cluster: its nodes train cells, the driver writes their results."""

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sb3_per.experiments.common.ray_connection import RayOptions
from sb3_per.experiments.common.ray_pool import (
    Failed,
    Lost,
    RayPool,
    Refused,
    Returned,
    Started,
    Waiting,
)
from sb3_per.experiments.compare import run_folder
from sb3_per.experiments.compare.engine import EndedCell, Event, LostCell, Remark, StartedCell
from sb3_per.experiments.compare.suite import Cell

Work = Callable[[Cell, Path, str], None]


def train(cell: Cell, folder: Path, device: str) -> None:
    """Train a cell. Only nodes import the modules for this, which takes seconds."""
    from sb3_per.experiments.compare import worker

    worker.train(cell, folder, device)


class RayEngine:
    """
    Trains cells on the cluster that this process is connected to.

    A node trains into a folder of its own. The driver writes the files into the run folder, so the
    nodes need no file system in common.

    :param folder: The run folder.
    :param device: torch's device, for all cells.
    :param options: The resources to request from Ray.
    :param work: The function that a node calls with the cell, a run folder there, and the device.
    """

    def __init__(self, folder: Path, device: str, options: RayOptions, work: Work = train) -> None:
        self._folder, self._device, self._work = folder, device, work
        self._pool = RayPool(train_away, options)
        self._cells: dict[str, Cell] = {}

    def submit(self, cell: Cell) -> None:
        self._cells[str(cell)] = cell
        self._pool.submit(str(cell), cell, self._device, self._work)

    def collect(self) -> Event:
        event = self._pool.collect()
        if isinstance(event, Refused):
            return Remark(f"node {event.node} is refused: {event.reason}")
        if isinstance(event, Waiting):
            return Remark(event.reason)
        cell = self._cells[str(event.key)]
        if isinstance(event, Started):
            return StartedCell(cell, event.node)
        if isinstance(event, Lost):
            return LostCell(cell, event.reason)
        del self._cells[str(cell)]
        if isinstance(event, Failed):
            return EndedCell(cell, event.error)
        return self._ended(cell, event)

    def close(self) -> None:
        """Do nothing: Ray stops what still runs when the driver leaves it."""

    def _ended(self, cell: Cell, event: Returned) -> EndedCell:
        trained: Trained = event.value
        try:
            run_folder.put(self._folder, cell, trained.files)
            if trained.error is None and run_folder.read(self._folder, cell) is None:
                return EndedCell(cell, "it ended without a result")
        except (OSError, run_folder.DamagedResult, run_folder.MixedResults) as error:
            return EndedCell(cell, str(error))
        if trained.error is None:
            return EndedCell(cell, None)
        output = run_folder.cell_folder(self._folder, cell) / run_folder.OUTPUT
        return EndedCell(cell, f"all output in {output}\n{trained.error}")


class Trained(NamedTuple):
    """
    The files of a cell that was trained on a node.

    :param error: The traceback, if the training has raised an error.
    :param files: The contents of the cell's folder, by path.
    """

    error: str | None
    files: dict[str, bytes]


def train_away(cell: Cell, device: str, work: Work) -> Trained:
    """Train a cell in a temporary folder, and return its files."""
    with TemporaryDirectory(prefix="sb3-per-run-") as name:
        place = run_folder.claim(Path(name), cell)
        error = None
        with _output_into(place / run_folder.OUTPUT):
            try:
                work(cell, Path(name), device)
            except (Exception, SystemExit):
                error = traceback.format_exc().rstrip()
                sys.stderr.write(error)
        gc.collect()  # models refer to themselves; the next cell in this process needs their memory
        return Trained(error, run_folder.taken(place))


@contextmanager
def _output_into(path: Path) -> Iterator[None]:
    """Redirect the output of this process into a file, including the output of C++ code."""
    kept = [os.dup(number) for number in (1, 2)]
    try:
        with path.open("w", buffering=1, encoding="utf-8", errors="replace") as output:
            for number in (1, 2):
                os.dup2(output.fileno(), number)
            with redirect_stdout(output), redirect_stderr(output):
                yield
    finally:
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)
