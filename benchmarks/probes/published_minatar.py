"""
Compare others' published returns of DQN with and without prioritized replay on MinAtar.

The file is ``MinAtar/results/baseline_avg_return.jsonl`` of
https://github.com/shivakanthsujit/reducible-loss (Sujit et al. 2022): a JSON list of runs with
``task``, ``method``, ``xs`` (steps) and ``ys``.

    python -m benchmarks.probes.published_minatar baseline_avg_return.jsonl
"""

import json
import sys
from pathlib import Path

import numpy as np

from sb3_per.compare.report import as_text
from sb3_per.compare.statistics import FloatArray, improvement

METHODS = ("dqn_baseline", "per_dqn_baseline")
N_FINAL = 5  # points of a curve, 50,000 steps apart


def main(path: str) -> None:
    """Print the comparison after a million steps and after all steps."""
    runs = json.loads(Path(path).read_text())
    games = sorted({run["task"] for run in runs})
    for n_steps in (1_000_000, np.inf):
        curves: dict[tuple[str, str], list[list[float]]] = {}
        for run in runs:
            points = [y for x, y in zip(run["xs"], run["ys"], strict=True) if 0 < x <= n_steps]
            curves.setdefault((run["task"], run["method"]), []).append(points)
        print(f"{n_steps:,.0f} steps\n\n| | DQN | PER | P | P by the area |")
        print("|---|---|---|---|---|")
        for name, chosen in {"all": games, **{game: [game] for game in games}}.items():
            finals, areas = [], []
            for method in METHODS:
                of_method = [curves[game, method] for game in chosen]
                finals.append([means_of_last(N_FINAL, returns) for returns in of_method])
                areas.append([means_of_last(0, returns) for returns in of_method])
            dqn, per = (f"{np.mean(np.concatenate(returns)):.1f}" for returns in finals)
            final, area = improvement(finals[1], finals[0]), improvement(areas[1], areas[0])
            print(f"| {name} | {dqn} | {per} | {as_text(final, 2)} | {as_text(area, 2)} |")
        print()


def means_of_last(n: int, curves: list[list[float]]) -> FloatArray:
    """Return the mean of the last ``n`` points of each curve; 0 for all points."""
    return np.array([np.mean(points[-n:]) for points in curves])


if __name__ == "__main__":
    main(*sys.argv[1:])
