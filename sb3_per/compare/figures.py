"""Learning curves and intervals, as PNG and SVG."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from sb3_per.compare.scores import Run
from sb3_per.compare.statistics import Estimate, band
from sb3_per.compare.suite import Suite
from sb3_per.compare.summary import Comparison, select

# Okabe and Ito's palette, which the colour-blind can tell apart; dashes repeat what colour says.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7")
_DASHES = ("-", "--", "-.", ":")
_COLUMNS = 2
# Without dates, versions and random identifiers: equal results give equal files.
_PLAIN = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
_TITLES = {"final": "final score (IQM)", "area": "area under the curve (IQM)"}


def curves(suite: Suite, runs: Sequence[Run], file: Path) -> None:
    """
    Draw a panel for each environment, a line for each variant: interquartile mean over seeds, with
    its 95 % interval as a band.

    :param file: Without an ending.
    """
    n_columns = min(_COLUMNS, len(suite.environments))
    n_rows = math.ceil(len(suite.environments) / n_columns)
    figure = Figure(figsize=(4.6 * n_columns, 3.3 * n_rows + 0.7), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for panel, environment in zip(panels, suite.environments, strict=False):
        _draw_curves(panel, suite, runs, environment)
    for panel in panels[len(suite.environments) :]:
        panel.set_axis_off()
    handles = {
        label: handle
        for panel in panels
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False
    )
    _save(figure, file)


def _draw_curves(panel: Any, suite: Suite, runs: Sequence[Run], environment: str) -> None:
    declared = suite.environments[environment]
    n_seeds = []
    for index, variant in enumerate(suite.variants):
        found = select(runs, variant, environment)
        n_seeds.append(len(found))
        if not found:
            continue
        middle, low, high = band(np.array([run.returns for run in found]))
        style = {"color": _COLOURS[index % len(_COLOURS)], "label": variant}
        panel.plot(found[0].steps, middle, _DASHES[index % len(_DASHES)], linewidth=1.8, **style)
        panel.fill_between(found[0].steps, low, high, color=style["color"], alpha=0.15, linewidth=0)
    for value, name in ((declared.threshold, "threshold"), (declared.score.random, "random")):
        panel.axhline(value, color="0.6", linewidth=0.8, zorder=0)
        right_end = panel.get_yaxis_transform()
        panel.text(
            0.99,
            value,
            name,
            transform=right_end,
            color="0.45",
            fontsize=7,
            ha="right",
            va="bottom",
        )
    some = "" if min(n_seeds) == suite.seeds else f"{min(n_seeds)} to {max(n_seeds)} of "
    panel.set_title(f"{environment} ({some}{suite.seeds} seeds)", fontsize=10)
    panel.set_xlim(0, declared.steps)
    panel.set_xlabel("steps")
    panel.set_ylabel("return")
    panel.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
    panel.spines[["top", "right"]].set_visible(False)


def intervals(suite: Suite, comparisons: Sequence[Comparison], file: Path) -> None:
    """
    Draw a row for each measure: the variants' interquartile means, and their probabilities of
    improvement over the baseline, with 95 % intervals.

    :param file: Without an ending.
    """
    measures = list(dict.fromkeys(each.measure for each in comparisons))
    names = list(dict.fromkeys(each.variant for each in comparisons))
    if not names:
        return
    size = (8.4, (0.34 * len(names) + 0.95) * len(measures))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(measures), 2, sharey=True, squeeze=False)
    for row, measure in zip(panels, measures, strict=True):
        for each in [each for each in comparisons if each.measure == measure]:
            height = names.index(each.variant)
            colour = _COLOURS[list(suite.variants).index(each.variant) % len(_COLOURS)]
            _draw_interval(row[0], each.score, height, colour)
            if each.improvement is not None:
                _draw_interval(row[1], each.improvement, height, colour)
        row[0].set_title(_TITLES[measure], fontsize=10)
        row[0].set_xlabel("0: random policy, 1: solved", fontsize=8)
        row[0].set_xlim(*_with_zero_and_one(row[0].get_xlim()))
        row[1].set_title(f"probability of improvement over {suite.baseline}", fontsize=10)
        row[1].axvline(0.5, color="0.6", linewidth=0.8, zorder=0)
        row[1].set_xlim(-0.02, 1.02)
        row[0].set_yticks(range(len(names)), names)
        row[0].set_ylim(len(names) - 0.5, -0.5)
        for panel in row:
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(axis="x", color="0.92")
    _save(figure, file)


def _draw_interval(panel: Any, estimate: Estimate, height: int, colour: str) -> None:
    panel.plot(
        [estimate.low, estimate.high], [height, height], color=colour, linewidth=3, alpha=0.4
    )
    panel.plot([estimate.value], [height], "o", color=colour, markersize=5)


def _with_zero_and_one(limits: tuple[float, float]) -> tuple[float, float]:
    return min(limits[0], -0.02), max(limits[1], 1.02)


def _save(figure: Figure, file: Path) -> None:
    for ending, metadata in _PLAIN.items():
        with mpl.rc_context({"svg.hashsalt": file.name}):
            figure.savefig(file.with_suffix(f".{ending}"), dpi=150, metadata=metadata)
