"""Results: a JSON file in the folder of each run, or all runs of a suite in one compressed file."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_per.compare.suite import Run, Suite, gym_id, load, runs_of

SUITE = "suite.yml"
OUTPUT = "output.txt"
RESULT = "result.json"
PACKED = ".jsonl.gz"

Result = dict[str, Any]


class Results(NamedTuple):
    """What is known of a suite."""

    suite: Suite
    finished: list[tuple[Run, Result]]
    missing: list[Run]  # they failed or were not made yet


def run_folder(folder: Path, run: Run) -> Path:
    """
    Return a run's own folder: in RL-Zoo's layout, below one folder for each variant.

    RL-Zoo's ``all_plots``, ``plot_train`` and ``enjoy`` find it; their ``--exp-id`` is seed + 1.
    """
    name = f"{gym_id(run.environment).replace('/', '-')}_{run.seed + 1}"
    return Path(folder, run.variant, run.settings["algorithm"], name)


def read_result(folder: Path, run: Run) -> Result | None:
    """
    Read the result of a run; None if the run is not finished.

    :raises ValueError: if it was made with other settings.
    """
    path = run_folder(folder, run) / RESULT
    if not path.is_file():
        return None
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    changed = _changed(result["settings"], run.settings)
    if changed:
        raise ValueError(
            f"{path} was made with other settings: {'; '.join(changed)}. Choose another --out, or "
            f"delete {folder}"
        )
    return result


def curve(run: Run, result: Result) -> tuple[Any, Any]:
    """
    Return steps (CPU seconds, if the run had a budget) and mean returns of the evaluations.

    Both have shape (E,).
    """
    steps, returns = np.array(result["steps"]), np.array(result["returns"]).mean(axis=1)
    if budget := run.settings.get("budget"):
        return np.linspace(0, budget, len(steps) + 1)[1:], returns
    is_within = steps <= run.settings["steps"]  # training ends after a whole rollout
    return steps[is_within], returns[is_within]


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    changed = []
    for key in {**old, **new}:
        before, now = old.get(key, "not set"), new.get(key, "not set")
        if isinstance(before, dict) and isinstance(now, dict):
            changed += _changed(before, now)
        elif before != now:
            changed.append(f"{key} was {before!r} and is {now!r}")
    return changed


def write_file(path: Path, content: bytes) -> None:
    """Write a file that exists as a whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)


def read(path: Path) -> Results:
    """Read a run folder, or a packed file of ``benchmarks/results``."""
    if path.name.endswith(PACKED):
        return _unpacked(path)
    if not (path / SUITE).is_file():
        raise ValueError(f"report needs a run folder or packed results, got {path}")
    suite = load(path / SUITE)
    found = [(run, read_result(path, run)) for run in runs_of(suite)]
    finished = [(run, result) for run, result in found if result is not None]
    return Results(suite, finished, [run for run, result in found if result is None])


def _unpacked(path: Path) -> Results:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header, *results = map(json.loads, file)
    suite = Suite.model_validate(header["suite"])
    runs = {(run.variant, run.environment, run.seed): run for run in runs_of(suite)}
    keys = [(row["variant"], row["environment"], row["seed"]) for row in results]
    finished = [(runs.pop(key), result) for key, result in zip(keys, results, strict=True)]
    return Results(suite, finished, [*runs.values()])
