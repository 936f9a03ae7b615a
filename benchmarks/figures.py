"""
Draw the figures of the result pages from ``benchmarks/results``: ``python -m benchmarks.figures``.

Names of figures as arguments draw these alone: ``python -m benchmarks.figures rare``.
"""

import math
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter
from matplotlib.transforms import blended_transform_factory

from benchmarks import atari_100k, verdicts
from benchmarks.cliffwalk import report as cliffwalk
from benchmarks.pack import PACKED, read_packed
from benchmarks.verdicts import RESULTS
from sb3_per.compare.report import (
    BLUE,
    GREY,
    ORANGE,
    WIDTH,
    add_legend,
    draw_curves,
    figure_style,
    save_figure,
    write_figure,
)

PAGES, GUIDE = Path("docs/results"), Path("docs/pictures")
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
    "minatar_16_envs": ("dqn", "per"),
    "minatar_rainbow": (),
    "minigrid": ("dqn", "alpha1"),
    "rainbow_priorities": (
        "dqn",
        "rainbow_half_uniform",
        "rainbow_corrected",
        "rainbow_without_noise",
        "rainbow_without_noise_and_priorities",
    ),
    "sparse": (),
    "sparse_qrdqn": (),
}
ROWS = {
    "cliffwalk": cliffwalk.draw,
    "cliffwalk_networks": cliffwalk.draw,
}
ALGORITHMS = {"PERDQN": BLUE, "Rainbow": ORANGE}  # of the picture of the verdicts
# Suite and title of each panel.
RARE = {"minigrid_one_step": "n_steps=1", "minigrid": "n_steps=3"}
DOOR_KEY = "MiniGrid-DoorKey-5x5-v0"


def main(*names: str) -> None:
    """Draw figures; all, if none is named."""
    for name, variants in SUITES.items():
        if not names or name in names:
            results = read_packed(RESULTS / f"{name}{PACKED}")
            titles = {name: verdicts.plain(name) for name in results.suite.environments}
            write_figure(results, PAGES / f"{name}.svg", variants, titles)
    for name, draw in ROWS.items():
        if not names or name in names:
            rows = pd.read_json(RESULTS / f"{name}{PACKED}", lines=True)
            draw(rows, PAGES / f"{name}.svg")
    for name, draw_picture in PICTURES.items():
        if not names or name in names:
            draw_picture(GUIDE / f"{name}.svg")


def draw_rare(file: Path) -> None:
    """Draw learning curves on DoorKey, with one-step and three-step returns side by side."""
    with figure_style():
        figure = Figure((WIDTH, 2.8), layout=ConstrainedLayoutEngine(wspace=0.06))
        panels = figure.subplots(1, len(RARE), sharey=True)
        for panel, (name, title) in zip(panels, RARE.items(), strict=True):
            results = read_packed(RESULTS / f"{name}{PACKED}")
            for variant, colour in (("dqn", GREY), ("alpha1", BLUE)):
                draw_curves(panel, results, (variant, DOOR_KEY), {"color": colour}, has_band=True)
            panel.set_title(title, loc="left", weight="bold")
            panel.set(xlim=(0, results.suite.environments[DOOR_KEY].steps), ylim=(-0.05, 1.05))
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.locator_params(nbins=3)
        figure.supxlabel("environment steps", fontsize="medium")
        panels[0].set_ylabel("mean return")
        add_legend(figure, panels[0])
        save_figure(figure, file)


def draw_verdicts(file: Path) -> None:
    """Draw P over DQN by both measures: a block for each kind of task, a line for each task."""
    blocks: dict[str, dict[str, dict[str, verdicts.Chances]]] = {}
    for row in verdicts.GAINS:
        blocks.setdefault(row.task, {})[row.algorithm] = dict(verdicts.chances(row))
    labels: dict[int, str] = {}
    top = 0
    with figure_style():
        figure = Figure(layout="constrained")
        panels = dict(zip(("area", "final"), figure.subplots(1, 2, sharey=True), strict=True))
        at_left = blended_transform_factory(figure.transFigure, panels["area"].transData)
        heading = {"transform": at_left, "va": "center", "weight": "bold", "in_layout": False}
        for title, chances in blocks.items():
            names = _tasks(chances)
            panels["area"].text(0.01, top, title, **heading)
            labels |= dict(enumerate(names, top + 1))
            for measure, panel in panels.items():
                _draw_block(panel, chances, measure, top + 1)
            top += len(names) + 1
        for title, panel in zip(("area", "final return"), panels.values(), strict=True):
            panel.set(xlim=(-0.04, 1.04), ylim=(top - 0.4, -0.6))
            panel.set_title(title, weight="bold", pad=14)
            panel.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
            panel.set_yticks([*labels], labels.values())
            panel.tick_params(axis="y", length=0)
            panel.spines["left"].set_visible(False)
        figure.set_size_inches(WIDTH, 0.2 * top + 1.2)
        figure.supxlabel("P(better than DQN after the same steps); grey: better", fontsize="medium")
        figure.legend(handles=_handles(), loc="outside upper center", ncols=3)
        save_figure(figure, file)


def _draw_block(
    panel: Any, chances: dict[str, dict[str, verdicts.Chances]], measure: str, top: int
) -> None:
    """Draw a point and an interval for each task; a point without an interval is hollow."""
    names = _tasks(chances)
    panel.fill_between((0.5, 1), top - 0.5, top + len(names) - 0.5, color=GREY, alpha=0.2, lw=0)
    for i, (algorithm, found) in enumerate(chances.items()):
        colour, shift = ALGORITHMS[algorithm], 0.28 * (i - (len(chances) - 1) / 2)
        for name in names:
            value, low, high = getattr(found[name], measure)
            fill = "none" if math.isnan(low) else colour
            at = top + names.index(name) + shift
            panel.hlines(at, low, high, colour, linewidth=2)
            panel.plot(value, at, color=colour, marker="o", markerfacecolor=fill, clip_on=False)


def _tasks(chances: dict[str, dict[str, verdicts.Chances]]) -> list[str]:
    """Return the tasks of a block; P over all of them stands in the table."""
    return [name for name in next(iter(chances.values())) if name != verdicts.ALL]


def draw_atari(file: Path) -> None:
    """Draw human-normalized scores of the games that have a run, next to the published ones."""
    games = atari_100k.games_of(read_packed(RESULTS / f"atari_100k{PACKED}"))
    scores = games[[f"{atari_100k.RAINBOW}, score", "published, score"]].dropna()
    scores = scores.sort_values("published, score", ascending=False)
    with figure_style():
        figure = Figure(figsize=(WIDTH, 0.42 * len(scores) + 1.4), layout="constrained")
        panel = figure.subplots()
        bars = (("this library, paper's priorities", ORANGE), ("published", GREY))
        for i, (label, colour) in enumerate(bars):
            at = [row + 0.36 * (i - 0.5) for row in range(len(scores))]
            panel.barh(at, scores.iloc[:, i], height=0.36, color=colour, label=label)
        panel.set_yticks([*range(len(scores))], scores.index)
        panel.invert_yaxis()
        panel.tick_params(axis="y", length=0)
        panel.axvline(1, color=GREY, linestyle=":")
        figure.supxlabel("human-normalized score; dotted: human", fontsize="medium")
        figure.legend(loc="outside upper center", ncols=2)
        save_figure(figure, file)


def _handles() -> list[Line2D]:
    marks: dict[str, dict[str, Any]] = {
        name: {"color": colour, "linewidth": 2} for name, colour in ALGORITHMS.items()
    }
    marks["three seeds only"] = {"color": GREY, "markerfacecolor": "none", "linewidth": 0}
    return [Line2D([], [], marker="o", label=label, **mark) for label, mark in marks.items()]


PICTURES = {"atari": draw_atari, "rare": draw_rare, "verdicts": draw_verdicts}


if __name__ == "__main__":
    main(*sys.argv[1:])
