"""The seam between a grid of cells and machines that train them; the engine for this machine."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Protocol

from sb3_per.experiments.compare import results
from sb3_per.experiments.compare.suite import Cell

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
_LINES = 20  # of the output of a cell that ended without a traceback
_PATIENCE = 0.1  # seconds between two looks at the running processes


class Outcome(NamedTuple):
    """
    A cell that has ended.

    :param error: None if its result is written; else the traceback, and where the whole output is.
    """

    cell: Cell
    error: str | None


class Engine(Protocol):
    """Where cells are trained. Their results are in the run folder when ``collect`` names them."""

    def submit(self, cell: Cell) -> None:
        """
        Start a cell; how many there may be at a time is the caller's to know.

        :raises OSError: if it cannot be started; others may be.
        """

    def collect(self) -> Outcome:
        """Wait until one of the started cells has ended."""

    def close(self) -> None:
        """Stop the cells that still run; they leave no result."""


class LocalEngine:
    """
    A process on this machine for each cell, of one thread.

    Invariant: a process ends at the latest when its standard input does, and so with this one,
    whatever ends it.

    :param folder: The run folder.
    :param device: torch's, for all cells.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._device = folder, device
        self._running: dict[subprocess.Popen[str], Cell] = {}

    def submit(self, cell: Cell) -> None:
        place = results.claim(self._folder, cell)
        with (place / results.OUTPUT).open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _worker()],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | ONE_THREAD,
                text=True,
            )
        self._running[process] = cell
        request = {"cell": cell, "folder": str(self._folder), "device": self._device}
        # A process that has ended already is noticed when its outcome is collected.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")  # type: ignore[union-attr]  # a pipe
            process.stdin.flush()  # type: ignore[union-attr]  # a pipe

    def collect(self) -> Outcome:
        while True:
            for process, cell in self._running.items():
                if process.poll() is not None:
                    del self._running[process]
                    process.communicate()
                    return Outcome(cell, self._error(cell, process.returncode))
            time.sleep(_PATIENCE)

    def close(self) -> None:
        for process in self._running:
            process.kill()
        for process in self._running:
            process.communicate()
        self._running.clear()

    def _error(self, cell: Cell, status: int) -> str | None:
        try:
            if status == 0 and results.read(self._folder, cell) is not None:
                return None
        except (results.DamagedResult, results.MixedResults) as error:
            return str(error)
        path = results.cell_folder(self._folder, cell) / results.OUTPUT
        try:
            output = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            output = f"it cannot be read: {error}"
        _, traceback, last = output.rpartition("Traceback (most recent call last)")
        end = traceback + last if traceback else "\n".join(output.splitlines()[-_LINES:])
        return f"exit status {status}, all output in {path}\n{end.rstrip()}"


def _worker() -> str:
    """:return: What a process runs: the code of this one, whatever lies in the current folder."""
    path, module = [*map(str, sys.path)], "sb3_per.experiments.compare.worker"
    return f"import sys; sys.path[:] = {path}; from {module} import main; main()"
