"""Processes that end when their command does, whatever ends it."""

import multiprocessing
import os
import threading

# Not forked: a forked process may inherit locks that nobody will ever release.
SPAWN = multiprocessing.get_context("spawn")
# For processes that share a machine: networks this small gain nothing from more threads.
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}


def end_with_parent() -> None:
    """
    Let this process, started by ``SPAWN``, end when its parent process does.

    A killed command cannot stop its processes; they would continue to train, or wait forever.
    """

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
