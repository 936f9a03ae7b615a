"""
Pack the finished runs of a run folder into a file for ``benchmarks/results``, or unpack one.

    python -m benchmarks.pack runs/classic benchmarks/results/classic.jsonl.gz
    python -m benchmarks.pack benchmarks/results/classic.jsonl.gz runs/classic

``sb3-per compare report`` reads an unpacked suite, and ``run --out`` makes the runs that it lacks.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from sb3_per.compare.results import RESULT, SUITE, Results, read, run_folder, write_file
from sb3_per.compare.suite import Suite, as_yaml, runs_of

PACKED = ".jsonl.gz"


def pack(results: Results, path: Path) -> None:
    """Write a suite and its finished runs as compressed JSON lines: the suite, then each run."""
    lines: list[Any] = [{"suite": results.suite.model_dump(mode="json", exclude_defaults=True)}]
    for run, result in results.finished:
        key = {"variant": run.variant, "environment": run.environment, "seed": run.seed}
        lines.append(key | {name: value for name, value in result.items() if name != "settings"})
    text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
    # Without a time, so that equal results give equal files.
    write_file(path, gzip.compress(text.encode(), compresslevel=9, mtime=0))


def unpack(results: Results, folder: Path) -> None:
    """Write a suite and its finished runs into a run folder."""
    folder.mkdir(parents=True)
    write_file(folder / SUITE, as_yaml(results.suite).encode())
    for run, result in results.finished:
        place = run_folder(folder, run)
        place.mkdir(parents=True)
        write_file(place / RESULT, json.dumps({"settings": run.settings} | result).encode())
    print(f"Next: sb3-per compare report {folder}")


def read_packed(path: Path) -> Results:
    """Read a file of ``pack``, or a run folder."""
    if not path.name.endswith(PACKED):
        return read(path)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header, *results = map(json.loads, file)
    suite = Suite.model_validate(header["suite"])
    runs = {(run.variant, run.environment, run.seed): run for run in runs_of(suite)}
    keys = [(row["variant"], row["environment"], row["seed"]) for row in results]
    finished = [(runs.pop(key), result) for key, result in zip(keys, results, strict=True)]
    return Results(suite, finished, [*runs.values()])


def main(source: str, target: str) -> None:
    """Pack a run folder, or unpack into a new one."""
    write = pack if target.endswith(PACKED) else unpack
    write(read_packed(Path(source)), Path(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
