"""
Print returns of a suite's variants from as much CPU time as its baseline takes.

    python -m benchmarks.probes.equal_time benchmarks/results/minatar_rainbow.jsonl.gz
"""

import sys
from pathlib import Path

import pandas as pd

from sb3_per.compare.report import markdown, table_of_runs
from sb3_per.compare.results import Results, curve, read
from sb3_per.compare.suite import FINAL_EVALUATIONS


def finals(results: Results) -> pd.DataFrame:
    """Return a row for each finished run: its last step and its final return within the time."""
    baseline = results.suite.baseline
    runs = table_of_runs(results)
    budget = runs[runs["variant"] == baseline].groupby("environment")["cpu_seconds"].mean()
    rows = []
    for run, result in results.finished:
        steps, returns = curve(run, result)
        share = budget[run.environment] / result["seconds"]["cpu"]
        n = sum(steps <= share * steps[-1]) if run.variant != baseline else len(steps)
        final = returns[:n][-FINAL_EVALUATIONS:].mean()
        rows.append((run.environment, run.variant, steps[n - 1], final))
    return pd.DataFrame(rows, columns=["environment", "variant", "steps", "final"])


def main(path: str) -> None:
    """Print means over the seeds, and the steps that the time suffices for, with evaluations."""
    groups = finals(read(Path(path))).groupby(["environment", "variant"], sort=False)
    table = groups.agg(fewest=("steps", "min"), most=("steps", "max"), final=("final", "mean"))
    print(markdown(table.reset_index().round(2)))


if __name__ == "__main__":
    main(*sys.argv[1:])
