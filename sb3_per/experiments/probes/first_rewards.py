"""
Print the steps of training to the first, tenth and hundredth rewarded episode of a comparison.

    python -m sb3_per.experiments.probes.first_rewards runs/sparse FrozenLake-v1
    python -m sb3_per.experiments.probes.first_rewards runs/sparse MountainCar-v0 -600

The third argument is the return of an episode without reward.
"""

import sys
from pathlib import Path

import numpy as np
from stable_baselines3.common.monitor import load_results

COUNTS = (1, 10, 100)


def main(
    folder: str | Path = "runs/sparse", env_id: str = "FrozenLake-v1", unrewarded: float | str = 0.0
) -> dict[str, list[list[float]]]:
    """
    Print a row of medians for each variant.

    :param folder: A run folder, with the episodes that a run leaves there.
    :param unrewarded: An episode is rewarded if its return is larger.
    :return: The steps of each run, by variant.
    """
    found: dict[str, list[list[float]]] = {}
    for run in sorted(Path(folder).glob(f"*/*/{env_id.replace('/', '-')}_*/")):
        if list(run.glob("*.monitor.csv")):
            found.setdefault(run.parts[-3], []).append(first_steps(run, float(unrewarded)))
    print("| variant | runs | steps to the 1st (median) | 10th | 100th |\n|---|---|---|---|---|")
    for name, rows in found.items():
        print(f"| {name} | {len(rows)} |", *(f"{step:,.0f} |" for step in np.median(rows, axis=0)))
    return found or sys.exit(f"no episodes of {env_id} in {folder}: only a run leaves them there")


def first_steps(run: Path, unrewarded: float) -> list[float]:
    """Return the step at which the n-th rewarded episode ended, for each of the counts."""
    episodes = load_results(str(run))  # of training, in their order
    steps = episodes.l.cumsum()[episodes.r > unrewarded]
    return [steps.iloc[n - 1] if n <= len(steps) else np.inf for n in COUNTS]


if __name__ == "__main__":
    main(*sys.argv[1:])
