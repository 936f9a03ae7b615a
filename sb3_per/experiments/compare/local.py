"""The engine for this machine."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

from sb3_per.experiments.common.processes import ONE_THREAD, SPAWN
from sb3_per.experiments.compare import run_folder, worker
from sb3_per.experiments.compare.engine import EndedCell, Event, StartedCell
from sb3_per.experiments.compare.suite import Cell

_LINES = 20  # of the output of a cell that ended without a traceback


class _Worker(NamedTuple):
    process: SpawnProcess
    connection: "Connection[Cell, None]"


class LocalEngine:
    """
    Trains cells in processes of one thread on this machine.

    A process whose cell ended well trains another one, because its imports take longer than a short
    training. A process whose cell failed ends.

    :param folder: The run folder.
    :param device: torch's device, for all cells.
    :param work: The function that a process calls with each cell, the folder and the device.
    """

    def __init__(
        self, folder: Path, device: str, work: Callable[[Cell, Path, str], None] = worker.train
    ) -> None:
        self._folder, self._device, self._work = folder, device, work
        self._busy: list[tuple[_Worker, Cell]] = []
        self._idle: list[_Worker] = []
        self._started: deque[StartedCell] = deque()

    def submit(self, cell: Cell) -> None:
        run_folder.claim(self._folder, cell)
        self._idle = [each for each in self._idle if each.process.is_alive()]
        chosen = self._idle.pop() if self._idle else self._start()
        chosen.connection.send(cell)
        self._busy.append((chosen, cell))
        self._started.append(StartedCell(cell))

    def collect(self) -> Event:
        if self._started:
            return self._started.popleft()
        ready = wait([each.connection for each, _ in self._busy])
        index = [each.connection in ready for each, _ in self._busy].index(True)
        ended, cell = self._busy.pop(index)
        try:
            ended.connection.recv()
        except (EOFError, OSError):  # the process is gone
            ended.process.join()
            return EndedCell(cell, self._error(cell, ended.process.exitcode))
        self._idle.append(ended)
        return EndedCell(cell, self._error(cell, 0))

    def close(self) -> None:
        processes = [each.process for each in (*self._idle, *(each for each, _ in self._busy))]
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        self._busy.clear()
        self._idle.clear()

    def _start(self) -> _Worker:
        ours, theirs = SPAWN.Pipe()
        arguments = (theirs, self._folder, self._device, self._work)
        process = SPAWN.Process(target=worker.serve, args=arguments)
        with _environment(ONE_THREAD):
            process.start()
        theirs.close()  # or the end of the process would not be seen here
        return _Worker(process, ours)

    def _error(self, cell: Cell, status: int | None) -> str | None:
        try:
            if status == 0 and run_folder.read(self._folder, cell) is not None:
                return None
        except (run_folder.DamagedResult, run_folder.MixedResults) as error:
            return str(error)
        path = run_folder.cell_folder(self._folder, cell) / run_folder.OUTPUT
        try:
            output = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            output = f"it cannot be read: {error}"
        _, traceback, last = output.rpartition("Traceback (most recent call last)")
        end = traceback + last if traceback else "\n".join(output.splitlines()[-_LINES:])
        return f"exit status {status}, all output in {path}\n{end.rstrip()}"


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
