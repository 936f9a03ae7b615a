"""Tables and the figure of the runs: updates until the values are right."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from sb3_per.compare.report import COLOURS, markdown, save_figure

BLUE = COLOURS[5]
# The names of learners and methods in tables and figures, and their order.
NAMES = {
    "tabular": "Tabular Q",
    "linear": "Linear Q: one-hot and bias",
    "network_lr1e-3": "Networks, learning rate 1e-3",
    "network_lr2.5e-4": "Networks, learning rate 2.5e-4",
    "uniform": "uniform",
    "oracle": "oracle",
    "greedy": "greedy",
    "proportional_alpha0.6": "prop 0.6",
    "proportional_alpha1.0": "prop 1.0",
    "rank_alpha0.7": "rank 0.7",
    "rank_alpha1.0": "rank 1.0",
    "DQN": "DQN",
    "PERDQN": "PERDQN",
    "recipe_1": "recipe 1",
    "recipe_2": "recipe 2",
}
# Dashes tell the two versions of a method apart in print.
STYLES = {
    "uniform": (COLOURS[0], "-"),
    "DQN": (COLOURS[0], "-"),
    "PERDQN": (BLUE, "-"),
    "recipe_1": (COLOURS[2], "--"),
    "recipe_2": (COLOURS[1], "--"),
    "oracle": (COLOURS[3], "-"),
    "greedy": (COLOURS[6], "-"),
    "proportional_alpha0.6": (BLUE, "-"),
    "proportional_alpha1.0": (COLOURS[2], "--"),
    "rank_alpha0.7": (COLOURS[4], "-"),
    "rank_alpha1.0": (COLOURS[1], "--"),
}


def in_order(names: pd.Series) -> list[str]:
    """Return each name once, in the order of ``NAMES``."""
    return [name for name in NAMES if name in set(names)]


def medians(runs: pd.DataFrame, learner: str) -> pd.DataFrame:
    """
    Return median, smallest and largest number of updates over the seeds.

    A run that was given up counts as infinitely long.

    :return: A row for each method and n.
    """
    own = runs[runs["learner"] == learner]
    updates = own["updates"].astype(float).where(own["solved"], np.inf)
    return updates.groupby([own["method"], own["n"]]).agg(["median", "min", "max"])


def table(runs: pd.DataFrame, learner: str) -> str:
    """Return a table of medians, with a row for each n and a column for each method."""
    found = medians(runs, learner)["median"]
    rows = found.unstack("method")[in_order(found.index.get_level_values("method"))]
    text = rows.map(lambda value: "unsolved" if np.isinf(value) else f"{value:.0f}")
    return f"{NAMES[learner]}, updates:\n\n{markdown(text.rename(columns=NAMES).reset_index())}"


def draw(runs: pd.DataFrame, file: Path) -> None:
    """Draw medians as lines and smallest to largest as bands, a panel for each learner."""
    learners = in_order(runs["learner"])
    figure = Figure(figsize=(5 * len(learners), 4.4), layout="constrained")
    panels = figure.subplots(1, len(learners), sharey=True, squeeze=False)[0]
    for panel, learner in zip(panels, learners, strict=True):
        found = medians(runs, learner)
        for method in in_order(found.index.get_level_values("method")):
            color, style = STYLES[method]
            curve = found.loc[method]
            curve = curve[np.isfinite(curve["median"])]
            n_transitions = 2.0 ** (curve.index + 1) - 2
            panel.fill_between(
                n_transitions, curve["min"], curve["max"], color=color, alpha=0.15, linewidth=0
            )
            panel.plot(
                n_transitions, curve["median"], style, color=color, label=NAMES[method], marker="."
            )
        panel.set_xscale("log", base=2)  # n states have about 2^(n + 1) transitions
        panel.xaxis.set_major_formatter(EngFormatter(places=0, sep=""))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_yscale("log")
        panel.set_title(NAMES[learner])
        panel.set_xlabel("transitions in the memory, one of them rewarded")
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, fontsize="small")
    panels[0].set_ylabel("updates until the values are right")
    save_figure(figure, file)
