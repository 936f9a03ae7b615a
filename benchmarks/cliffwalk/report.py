"""Tables and the figure of the runs: updates until the values are right."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from sb3_per.compare.report import COLOURS, WIDTH, add_legend, figure_style, save_figure

GREY, BLUE, ORANGE, GREEN, PURPLE, *_ = COLOURS
# The learners in tables and figures, in their order.
LEARNERS = {
    "tabular": "Tabular Q",
    "linear": "Linear Q",
    "network_lr1e-3": "Networks, learning rate 1e-3",
    "network_lr2.5e-4": "Networks, learning rate 2.5e-4",
}
# The methods in their order: name, colour and line. Dashes tell two versions of a method apart.
METHODS = {
    "uniform": ("uniform", GREY, "-"),
    "oracle": ("oracle", GREEN, "-"),
    "greedy": ("greedy", PURPLE, "-"),
    "proportional_alpha0.6": ("proportional 0.6", BLUE, "-"),
    "proportional_alpha1.0": ("proportional 1", BLUE, "--"),
    "rank_alpha0.7": ("ranks 0.7", ORANGE, "-"),
    "rank_alpha1.0": ("ranks 1", ORANGE, "--"),
    "DQN": ("DQN", GREY, "-"),
    "PERDQN": ("PERDQN", BLUE, "-"),
    "alpha_0.6": ("PERDQN, alpha 0.6", BLUE, "--"),
    "alpha_0.6_corrected": ("PERDQN, alpha 0.6, beta 1", GREEN, "--"),
    "paper": ("PERDQN, the paper's settings", ORANGE, "-"),
}
NAMES = LEARNERS | {method: name for method, (name, *_) in METHODS.items()}


def in_order(names: pd.Series) -> list[str]:
    """Return each name once, in the order of ``NAMES``."""
    return [name for name in NAMES if name in set(names)]


def medians(runs: pd.DataFrame, learner: str) -> pd.DataFrame:
    """
    Return median, smallest and largest number of updates over the seeds.

    A run that was given up counts as infinitely long.

    :return: A row for each method and n.
    """
    chosen = runs[runs["learner"] == learner]
    updates = chosen["updates"].astype(float).where(chosen["solved"], np.inf)
    return updates.groupby([chosen["method"], chosen["n"]]).agg(["median", "min", "max"])


def table(runs: pd.DataFrame, learner: str) -> pd.DataFrame:
    """Return a table of medians, with a row for each n and a column for each method."""
    found = medians(runs, learner)["median"]
    rows = found.unstack("method")[in_order(found.index.get_level_values("method"))]
    text = rows.map(lambda value: "unsolved" if np.isinf(value) else f"{value:.0f}")
    return text.rename(columns=NAMES).reset_index()


def draw(runs: pd.DataFrame, file: Path) -> None:
    """Draw medians as lines and smallest to largest as bands, a panel for each learner."""
    learners = in_order(runs["learner"])
    with figure_style():
        figure = Figure((WIDTH, 3.2 * len(learners) + 1.4), layout="constrained")
        panels = figure.subplots(len(learners), sharex=True, squeeze=False).ravel()
        for panel, learner in zip(panels, learners, strict=True):
            _draw_panel(panel, runs, learner)
        panels[-1].set_xlabel("stored transitions, one of them rewarded")
        figure.supylabel("updates until the values are right", fontsize="medium")
        add_legend(figure, panels[0])
        save_figure(figure, file)


def _draw_panel(panel: Any, runs: pd.DataFrame, learner: str) -> None:
    found = medians(runs, learner)
    for method in in_order(found.index.get_level_values("method")):
        name, colour, dash = METHODS[method]
        curve = found.loc[method]
        curve = curve[np.isfinite(curve["median"])]
        n_transitions = 2.0 ** (curve.index + 1) - 2  # n states have about 2^(n + 1)
        panel.fill_between(
            n_transitions, curve["min"], curve["max"], color=colour, alpha=0.2, linewidth=0
        )
        panel.plot(n_transitions, curve["median"], dash, color=colour, label=name)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(EngFormatter(places=0, sep=""))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(EngFormatter(places=0, sep=""))
    panel.set_title(NAMES[learner], loc="left", fontweight="bold")
    panel.grid()
