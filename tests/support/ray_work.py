"""What nodes of a Ray cluster run in place of a training, and what such runs have left behind."""

import os
import signal
import time
from pathlib import Path

import grids

from sb3_per.experiments.compare import run_folder


def write_a_result(cell, folder, device):
    print(f"seed {cell.seed}")  # noqa: T201
    run_folder.write(folder, cell, grids.measured([1.0, 2.0, 3.0, 4.0]))


def break_at_seed_1(cell, folder, device):
    write_a_result(cell, folder, device)
    if cell.seed == 1:
        os.write(2, b"from below Python\n")
        raise MemoryError("unable to allocate 9 TiB")


def die_at_seed_1(cell, folder, device):
    if cell.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    write_a_result(cell, folder, device)


def die_once(cell, folder, device):
    """``device`` is a folder that all nodes see."""
    note = Path(device, f"{cell.seed}")
    if not note.exists():
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    write_a_result(cell, folder, device)


def leave_100_megabytes(cell, folder, device):
    write_a_result(cell, folder, device)
    (run_folder.cell_folder(folder, cell) / "agent.zip").write_bytes(bytes(100 * 2**20))


def wait_for_a_file(cell, folder, device):
    """``device`` is a folder that all nodes see; a run notes in it its node and its process."""
    import ray

    note = Path(device, f"{cell.seed} waits")
    node = ray.get_runtime_context().get_node_id()
    note.with_suffix(".part").write_text(f"{node} {os.getpid()}")
    note.with_suffix(".part").rename(note)
    while not Path(device, "go on").exists():
        time.sleep(0.05)
    write_a_result(cell, folder, device)


def wait_at_seed_1(cell, folder, device):
    (wait_for_a_file if cell.seed == 1 else write_a_result)(cell, folder, device)


def raise_once(error, note):
    if not Path(note).exists():
        Path(note).touch()
        raise error
    return "second try"
