"""The figure: updates over the number of transitions, both on logarithmic axes."""

import pathlib

import numpy as np

from sb3_per.experiments.cliffwalk import measurements
from sb3_per.experiments.cliffwalk.measurements import Spreads
from sb3_per.experiments.cliffwalk.trials import NAMES
from sb3_per.experiments.common.command_line import NO_FIGURE
from sb3_per.experiments.common.drawing import BLUE, COLOURS, save_figure

FIGURE = "cliffwalk"
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


def draw(spreads: Spreads, folder: pathlib.Path) -> str:
    """
    Draw medians as lines, smallest to largest as bands, a panel for each learner.

    :return: The path of the figure, or what must be installed first.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, NullFormatter
    except ImportError:
        return NO_FIGURE
    learners = measurements.learners_of(spreads)
    figure = Figure(figsize=(5 * len(learners), 4.4), layout="constrained")
    panels = figure.subplots(1, len(learners), sharey=True, squeeze=False)[0]
    for panel, learner in zip(panels, learners, strict=True):
        for method in measurements.methods_of(spreads, learner):
            color, style = STYLES[method]
            x, median, smallest, largest = _curve(spreads, learner, method)
            panel.fill_between(x, smallest, largest, color=color, alpha=0.15, linewidth=0)
            panel.plot(x, median, style, color=color, label=NAMES[method], marker=".")
        panel.set_xscale("log", base=2)  # n states have about 2^(n + 1) transitions
        panel.xaxis.set_major_formatter(EngFormatter(places=0, sep=""))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_yscale("log")
        panel.set_title(NAMES[learner])
        panel.set_xlabel("transitions in the memory, one of them rewarded")
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, fontsize="small")
    panels[0].set_ylabel("updates until the values are right")
    save_figure(figure, folder / FIGURE)
    return f"Figure: {folder / FIGURE}.png and .svg"


def _curve(spreads: Spreads, learner: str, method: str) -> np.ndarray:
    """Return transitions, median, smallest and largest for each n at which most seeds learned."""
    points = [
        (measurements.n_transitions(n), spread.median, spread.smallest, spread.largest)
        for (of, by, n), spread in spreads.items()
        if of == learner and by == method and np.isfinite(spread.median)
    ]
    return np.array(points).reshape(-1, 4).T
