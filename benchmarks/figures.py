"""
Draw the figures of the result pages from ``benchmarks/results``: ``python -m benchmarks.figures``.

Names of figures as arguments draw these alone: ``python -m benchmarks.figures rare``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.cliffwalk import report as cliffwalk
from benchmarks.speed import memory, ops
from sb3_per.compare.report import write_figure
from sb3_per.compare.results import PACKED, Results, read

RESULTS, PAGES = Path("benchmarks/results"), Path("docs/results")
# The suites, and the variants that their figures show; all, if none is named.
SUITES = {
    "ablation": ("per", "quarter_step", "td_error_clip_1", "beta_0", "alpha_1"),
    "classic": ("dqn", "per", "rank"),
    "confirm_dense": ("dqn", "alpha1"),
    "continuous_sac": ("sac", "lap", "per"),
    "continuous_td3": ("td3", "lap", "per"),
    "few_updates": ("dqn", "alpha1"),
    "goals_dqn": (),
    "goals_sac": (),
    "million": (),
    "minatar_rainbow": (),
    "minigrid": ("dqn", "alpha1"),
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
# Suite, environment, title of each panel.
RARE = (
    ("minigrid_one_step", "MiniGrid-DoorKey-5x5-v0", "DoorKey, n_steps=1"),
    ("minigrid", "MiniGrid-DoorKey-5x5-v0", "DoorKey, n_steps=3"),
)


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
        write_figure(_joined(RARE), README, ("dqn", "alpha1"), n_columns=len(RARE))


def _joined(panels: Sequence[tuple[str, str, str]]) -> Results:
    """Return the runs of panels as results of one suite; a panel's title is its environment."""
    environments, finished = {}, []
    for name, environment, title in panels:
        results = read(RESULTS / f"{name}{PACKED}")
        environments[title] = results.suite.environments[environment]
        for run, result in results.finished:
            if run.environment == environment:
                finished.append((run._replace(environment=title), result))
    return Results(results.suite.model_copy(update={"environments": environments}), finished, [])


if __name__ == "__main__":
    main(*sys.argv[1:])
