"""
Make the missing runs, then print all results: ``python -m benchmarks.cliffwalk --help``.

Results are JSON lines, one for each run, in a file that grows run by run.
"""

import argparse
import importlib
import itertools
import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from benchmarks.cliffwalk import report
from sb3_per.compare.report import markdown

KEY = ["learner", "method", "n", "seed"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; None for the arguments of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cliffwalk", description=__doc__)
    parser.add_argument("--networks", action="store_true", help="DQN and PERDQN instead of tables")
    parser.add_argument("--n", type=int, nargs="+", help="numbers of states")
    parser.add_argument("--seeds", type=int, help="how many seeds")
    parser.add_argument("--learners", nargs="+", help="which of them (default: all)")
    parser.add_argument("--methods", nargs="+", help="which of them (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--out", type=Path, help="file of the results (default: runs/NAME.jsonl)")
    parser.add_argument("--results", type=Path, help="print this file, and make no runs")
    parser.add_argument("--figure", type=Path, help="file of a figure")
    asked = parser.parse_args(arguments)
    path = asked.results or _make(asked)
    runs = pd.read_json(path, lines=True)
    for learner in report.in_order(runs["learner"]):
        table = markdown(report.table(runs, learner))
        sys.stdout.write(f"{report.NAMES[learner]}, updates:\n\n{table}\n\n")
    if asked.figure:
        report.draw(runs, asked.figure)


def _make(asked: argparse.Namespace) -> Path:
    """Make the runs that the file does not hold yet; each is written when it is done."""
    # Imported here: torch takes seconds, and tables do not need it.
    kinds, name = ("networks", "cliffwalk_networks") if asked.networks else ("methods", "cliffwalk")
    family = importlib.import_module(f"benchmarks.cliffwalk.{kinds}")
    path: Path = asked.out or Path("runs", f"{name}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if path.exists() and path.stat().st_size > 0:
        done = {*pd.read_json(path, lines=True)[KEY].itertuples(index=False, name=None)}
    trials = [
        trial
        for n, seed in itertools.product(
            asked.n or family.SIZES, range(asked.seeds or family.N_SEEDS)
        )
        for trial in itertools.product(
            asked.learners or family.LEARNERS, asked.methods or family.METHODS, [n], [seed]
        )
        if trial not in done
    ]
    # Not forked: torch and numba may hold locks.
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool, path.open("a") as file:
        futures = {pool.submit(family.updates_needed, *trial): trial for trial in trials}
        for future in tqdm(as_completed(futures), total=len(futures), unit="run", leave=False):
            updates, solved = future.result()
            row = dict(zip(KEY, futures[future], strict=True), updates=updates, solved=solved)
            file.write(f"{json.dumps(row)}\n")
            file.flush()
    return path


if __name__ == "__main__":
    main()
