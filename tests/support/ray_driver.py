"""
A process that makes what a run folder lacks, on a Ray of its own.

    python ray_driver.py RUN_FOLDER FOLDER_FOR_NOTES
"""

import sys
from pathlib import Path

import grids
import ray_work

from sb3_per.experiments.common.ray_connection import RayOptions, connected
from sb3_per.experiments.compare import run_folder
from sb3_per.experiments.compare.engine import run
from sb3_per.experiments.compare.ray_engine import RayEngine
from sb3_per.experiments.compare.suite import cells


class Lines:
    def show(self, event):
        print(type(event).__name__, event.cell.seed, flush=True)  # noqa: T201


if __name__ == "__main__":
    folder, notes = map(Path, sys.argv[1:])
    options = RayOptions(dashboard=False)
    todo = run_folder.unfinished(folder, cells(grids.suite(variants=("dqn",), seeds=3)))
    with connected(options):
        engine = RayEngine(folder, str(notes), options, ray_work.wait_at_seed_1)
        run(todo, engine, 1, Lines())
