"""
Draw the figures of the result pages from ``benchmarks/results``: ``python -m benchmarks.figures``.

Names of figures as arguments draw these alone: ``python -m benchmarks.figures rare``.
"""

import sys
from pathlib import Path

import pandas as pd

from benchmarks.cliffwalk import report as cliffwalk
from benchmarks.speed import memory, ops
from sb3_per.compare.report import write_figure
from sb3_per.compare.results import PACKED, read

RESULTS, PAGES = Path("benchmarks/results"), Path("docs/results")
# The suites, and the variants that their figures show; all, if none is named.
SUITES = {
    "ablation": ("per", "quarter_step", "td_error_clip_1", "beta_0", "alpha_1"),
    "classic": ("dqn", "per", "rank"),
    "confirm_dense": ("dqn", "annealed"),
    "continuous_sac": ("sac", "lap", "per"),
    "continuous_td3": ("td3", "lap", "per"),
    "goals_dqn": (),
    "goals_sac": (),
    "million": (),
    "minatar": ("dqn", "recommended", "per"),
    "sparse": (),
    "sparse_qrdqn": (),
}
ROWS = {
    "cliffwalk": cliffwalk.draw,
    "cliffwalk_networks": cliffwalk.draw,
    "speed_ops": ops.draw,
    "speed_images": memory.draw,
}
# Plain names of environments whose settings say more than their id.
TITLES = {
    "FrozenLake-v1": "FrozenLake 8x8, no slipping",
    "FrozenLake8x8-v1": "FrozenLake 8x8, slippery",
}
README = Path("docs/pictures/rare.svg")
RARE = {"MiniGrid-DoorKey-5x5-v0": "DoorKey-5x5", "MountainCar-v0": "MountainCar"}


def main(*names: str) -> None:
    """Draw figures; all, if none is named."""
    for name, variants in SUITES.items():
        if not names or name in names:
            results = read(RESULTS / f"{name}{PACKED}")
            titles = {
                name: TITLES.get(name, name.rpartition("/")[2])
                for name in results.suite.environments
            }
            write_figure(results, PAGES / f"{name}.svg", variants, titles)
    for name, draw in ROWS.items():
        if not names or name in names:
            rows = pd.read_json(RESULTS / f"{name}{PACKED}", lines=True)
            draw(rows, PAGES / f"{name}.svg")
    if not names or "rare" in names:
        rare = read(RESULTS / f"confirm_rare{PACKED}")
        write_figure(rare, README, ("dqn", "annealed"), RARE, n_columns=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
