"""The engine for this machine."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from sb3_per.experiments.common.processes import ONE_THREAD, SPAWN
from sb3_per.experiments.compare import run_folder, worker
from sb3_per.experiments.compare.engine import EndedCell, Event, StartedCell
from sb3_per.experiments.compare.suite import Cell

_LINES = 20  # of the output of a cell that ended without a traceback


class LocalEngine:
    """
    A process of one thread on this machine for each cell.

    :param folder: The run folder.
    :param device: torch's, for all cells.
    :param work: What a process calls, with the cell, the folder and the device.
    """

    def __init__(
        self, folder: Path, device: str, work: Callable[[Cell, Path, str], None] = worker.main
    ) -> None:
        self._folder, self._device, self._work = folder, device, work
        self._running: list[tuple[SpawnProcess, Cell]] = []
        self._started: deque[StartedCell] = deque()

    def submit(self, cell: Cell) -> None:
        run_folder.claim(self._folder, cell)
        process = SPAWN.Process(target=self._work, args=(cell, self._folder, self._device))
        with _environment(ONE_THREAD):
            process.start()
        self._running.append((process, cell))
        self._started.append(StartedCell(cell))

    def collect(self) -> Event:
        if self._started:
            return self._started.popleft()
        ended = wait([process.sentinel for process, _ in self._running])
        index = [process.sentinel in ended for process, _ in self._running].index(True)
        process, cell = self._running.pop(index)
        process.join()
        return EndedCell(cell, self._error(cell, process.exitcode))

    def close(self) -> None:
        for process, _ in self._running:
            process.kill()
        for process, _ in self._running:
            process.join()
        self._running.clear()

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
