"""Steps of training to the first, tenth and hundredth rewarded episode, in runs of a comparison."""

import sys
from pathlib import Path

import numpy as np
from stable_baselines3.common.monitor import load_results

COUNTS = (1, 10, 100)


def main(
    folder: str = "runs/sparse", env_id: str = "FrozenLake-v1", unrewarded: float = 0.0
) -> dict[str, list]:
    """An episode is rewarded if its return is above that of episodes without reward."""
    found = {}
    for run in sorted(Path(folder).glob(f"*/*/{env_id.replace('/', '-')}_*/")):
        if list(run.glob("*.monitor.csv")):
            found.setdefault(run.parts[-3], []).append(first_steps(run, float(unrewarded)))
    print("| variant | runs | steps to the 1st (median) | 10th | 100th |\n|---|---|---|---|---|")
    for name, rows in found.items():
        print(f"| {name} | {len(rows)} |", *(f"{step:,.0f} |" for step in np.median(rows, axis=0)))
    return found or sys.exit(f"no episodes of {env_id} in {folder}: only a run leaves them there")


def first_steps(run: Path, unrewarded: float) -> list[float]:
    """The step at which the n-th rewarded episode ended, for each of the counts."""
    episodes = load_results(str(run))  # of training, in their order
    steps = episodes.l.cumsum()[episodes.r > unrewarded]
    return [steps.iloc[n - 1] if n <= len(steps) else np.inf for n in COUNTS]


if __name__ == "__main__":
    main(*sys.argv[1:])
