"""Results: a JSON file in the folder of each run."""

from __future__ import annotations

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
    """Return steps and mean returns of the evaluations, both of shape (E,)."""
    steps, returns = np.array(result["steps"]), np.array(result["returns"]).mean(axis=1)
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
    """Read a run folder."""
    if not (path / SUITE).is_file():
        raise ValueError(f"report needs a run folder, got {path}")
    suite = load(path / SUITE)
    found = [(run, read_result(path, run)) for run in runs_of(suite)]
    finished = [(run, result) for run, result in found if result is not None]
    return Results(suite, finished, [run for run, result in found if result is None])
