"""
Pack the finished runs of a run folder into a file for ``benchmarks/results``.

    python -m benchmarks.pack runs/classic benchmarks/results/classic.jsonl.gz
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from sb3_per.compare.results import Results, read, write_file


def pack(results: Results, path: Path) -> None:
    """Write a suite and its finished runs as compressed JSON lines: the suite, then each run."""
    lines: list[Any] = [{"suite": results.suite.model_dump(mode="json", exclude_defaults=True)}]
    for run, result in results.finished:
        key = {"variant": run.variant, "environment": run.environment, "seed": run.seed}
        lines.append(key | {name: value for name, value in result.items() if name != "settings"})
    text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
    # Without a time, so that equal results give equal files.
    write_file(path, gzip.compress(text.encode(), compresslevel=9, mtime=0))


if __name__ == "__main__":
    pack(read(Path(sys.argv[1])), Path(sys.argv[2]))
