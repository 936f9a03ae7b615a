"""Measurements in a CSV file that grows run by run."""

import csv
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from sb3_per.experiments.cliffwalk.trials import NAMES, Trial, UpdatesNeeded
from sb3_per.experiments.common.tables import write_csv

RESULTS = "results.csv"
SUMMARY = "summary.csv"


Measurements = dict[Trial, UpdatesNeeded]


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


def read(folder: pathlib.Path) -> Measurements:
    """Return the measurements in a folder; none if there is no file yet."""
    path = folder / RESULTS
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {
            Trial(row["learner"], row["method"], int(row["n"]), int(row["seed"])): UpdatesNeeded(
                int(row["updates"]), row["solved"] == "True"
            )
            for row in csv.DictReader(file)
        }


def write(folder: pathlib.Path, measured: Measurements) -> None:
    """Write all measurements into the folder's file, whole or not at all."""
    rows = [(*trial, *needed) for trial, needed in sorted(measured.items())]
    write_csv(folder / RESULTS, (*Trial._fields, *UpdatesNeeded._fields), rows)


def write_summary(folder: pathlib.Path, measured: Measurements) -> None:
    """Write the spread over the seeds of each learner, method and n."""
    columns = ("learner", "method", "n", "transitions", "median_updates", "min", "max", "seeds")
    rows = [
        (learner, method, n, n_transitions(n), *spread)
        for (learner, method, n), spread in spreads(measured).items()
    ]
    write_csv(folder / SUMMARY, columns, rows)


def spreads(measured: Measurements) -> Spreads:
    """Return the spread over the seeds, in the order of learner, method and n."""
    updates: dict[tuple[str, str, int], list[float]] = {}
    for trial, needed in sorted(measured.items()):
        key = trial.learner, trial.method, trial.n
        updates.setdefault(key, []).append(needed.updates if needed.solved else np.inf)
    return {
        key: Spread(float(np.median(all_)), min(all_), max(all_), len(all_))
        for key, all_ in updates.items()
    }


def learners_of(spreads: Spreads) -> list[str]:
    """Return the learners, in the order of ``NAMES``."""
    return _ordered(learner for learner, _, _ in spreads)


def methods_of(spreads: Spreads, learner: str) -> list[str]:
    """Return the methods of a learner, in the order of ``NAMES``."""
    return _ordered(method for key, method, _ in spreads if key == learner)


def n_transitions(n: int) -> int:
    """Return how many transitions the replay memory of n states holds."""
    return int(2 ** (n + 1) - 2)


def _ordered(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=[*NAMES].index)
