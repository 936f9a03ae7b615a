"""What was measured, in a CSV file that grows run by run."""

import csv
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from sb3_per.experiments.cliffwalk.cells import NAMES, Cell, Outcome
from sb3_per.experiments.common.tables import write_csv

RESULTS = "results.csv"
SUMMARY = "summary.csv"


Results = dict[Cell, Outcome]


class Spread(NamedTuple):
    """
    Median, smallest and largest number of updates over the seeds. A run that was given up counts
    as infinitely long.
    """

    median: float
    smallest: float
    largest: float
    n_seeds: int


Spreads = dict[tuple[str, str, int], Spread]  # by learner, method and n


def read(folder: pathlib.Path) -> Results:
    """Return what the folder holds; nothing, if there is no file yet."""
    path = folder / RESULTS
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {
            Cell(row["learner"], row["method"], int(row["n"]), int(row["seed"])): Outcome(
                int(row["updates"]), row["solved"] == "True"
            )
            for row in csv.DictReader(file)
        }


def write(folder: pathlib.Path, results: Results) -> None:
    """Put all results into the folder's file, whole or not at all."""
    rows = [(*cell, *outcome) for cell, outcome in sorted(results.items())]
    write_csv(folder / RESULTS, (*Cell._fields, *Outcome._fields), rows)


def write_summary(folder: pathlib.Path, results: Results) -> None:
    """The spread over the seeds of each learner, method and n."""
    columns = ("learner", "method", "n", "transitions", "median_updates", "min", "max", "seeds")
    rows = [
        (learner, method, n, n_transitions(n), *spread)
        for (learner, method, n), spread in spreads(results).items()
    ]
    write_csv(folder / SUMMARY, columns, rows)


def spreads(results: Results) -> Spreads:
    """Return the spread over the seeds, in the order of learner, method and n."""
    updates: dict[tuple[str, str, int], list[float]] = {}
    for cell, outcome in sorted(results.items()):
        needed = outcome.updates if outcome.solved else np.inf
        updates.setdefault((cell.learner, cell.method, cell.n), []).append(needed)
    return {
        key: Spread(float(np.median(all_)), min(all_), max(all_), len(all_))
        for key, all_ in updates.items()
    }


def learners_of(spreads: Spreads) -> list[str]:
    """Return who learned, in the order of ``NAMES``."""
    return _ordered(learner for learner, _, _ in spreads)


def methods_of(spreads: Spreads, learner: str) -> list[str]:
    """Return what a learner learned with, in the order of ``NAMES``."""
    return _ordered(method for key, method, _ in spreads if key == learner)


def n_transitions(n: int) -> int:
    """Return how many transitions the memory of n states holds."""
    return int(2 ** (n + 1) - 2)


def _ordered(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=[*NAMES].index)
