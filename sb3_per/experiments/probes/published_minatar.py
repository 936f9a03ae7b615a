"""
Compare others' published returns of DQN with and without prioritized replay on MinAtar.

The file is ``MinAtar/results/baseline_avg_return.jsonl`` of
https://github.com/shivakanthsujit/reducible-loss (Sujit et al. 2022).

    python -m sb3_per.experiments.probes.published_minatar baseline_avg_return.jsonl
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_per.experiments.compare.scores import FloatArray
from sb3_per.experiments.compare.statistics import Estimate, improvement

METHODS = ("dqn_baseline", "per_dqn_baseline")
N_FINAL = 5  # points of a curve, 50,000 steps apart


class Returns(NamedTuple):
    """One number for each run of a method in a game, each of shape (n_runs,)."""

    final: FloatArray  # mean of the last points
    area: FloatArray  # mean of all points


def read(content: str, n_steps: float) -> dict[tuple[str, str], Returns]:
    """
    Return the returns of all runs, by game and method.

    :param content: A JSON list of runs with ``task``, ``method``, ``xs`` (steps) and ``ys``.
    :param n_steps: Ignore points after so many steps.
    """
    curves: dict[tuple[str, str], list[Any]] = {}
    for run in json.loads(content):
        points = [y for x, y in zip(run["xs"], run["ys"], strict=True) if 0 < x <= n_steps]
        curves.setdefault((run["task"], run["method"]), []).append(points)
    return {
        key: Returns(
            np.array([np.mean(points[-N_FINAL:]) for points in runs]),
            np.array([np.mean(points) for points in runs]),
        )
        for key, runs in curves.items()
    }


def compare(returns: dict[tuple[str, str], Returns], games: list[str]) -> tuple[Estimate, Estimate]:
    """Return P(prioritized is better), mean over games: by the final returns, by the area."""
    base, ours = ([returns[game, method] for game in games] for method in METHODS)
    return (
        improvement([each.final for each in ours], [each.final for each in base]),
        improvement([each.area for each in ours], [each.area for each in base]),
    )


def main(path: str | Path) -> None:
    """Print the comparison after a million steps and after all steps."""
    content = Path(path).read_text()
    for n_steps in (1_000_000, np.inf):
        returns = read(content, n_steps)
        games = sorted({game for game, _ in returns})
        span = "all steps" if np.isinf(n_steps) else f"{n_steps:,.0f} steps"
        print(f"{span}\n\n| | DQN | PER | P | P by the area |")
        print("|---|---|---|---|---|")
        for name, chosen in {"all": games, **{game: [game] for game in games}}.items():
            means = [np.mean([returns[game, each].final for game in chosen]) for each in METHODS]
            estimates = [
                f"{each.value:.2f} [{each.low:.2f}, {each.high:.2f}]"
                for each in compare(returns, chosen)
            ]
            print(f"| {name} | {means[0]:.1f} | {means[1]:.1f} | {' | '.join(estimates)} |")
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
