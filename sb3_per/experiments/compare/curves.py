"""Learning curves."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import EngFormatter

from sb3_per.experiments.common.drawing import (
    BLUE,
    COLOURS,
    DASHES,
    PNG_AND_SVG,
    Output,
    save_figure,
)
from sb3_per.experiments.compare.scores import Run
from sb3_per.experiments.compare.statistics import LEAST_RUNS, band
from sb3_per.experiments.compare.suite import Suite
from sb3_per.experiments.compare.summary import select

MOST_BANDS = 4  # in a panel; more cannot be told apart
_SMALL_COLUMNS = 4
_BELOW_RANDOM = 1.5  # how far down panels reach, in distances from random to threshold
_REFERENCE = {"color": "0.6", "linewidth": 0.8, "zorder": 0}


def draw(
    suite: Suite,
    runs: Sequence[Run],
    file: Path,
    variants: Sequence[str] = (),
    output: Output = PNG_AND_SVG,
) -> None:
    """
    Draw learning curves: the interquartile mean over seeds, with its 95 % interval as a band.

    Up to four variants share a panel for each environment. More get a panel each, in which the
    baseline is drawn as well.

    :param file: Path without an ending.
    :param variants: The variants to draw; None for all.
    """
    shown = [name for name in suite.variants if name in variants or not variants]
    layout = _panels_of_environments if len(shown) <= MOST_BANDS else _panels_of_variants
    figure = layout(suite, runs, shown)
    figure.supxlabel("Environment steps", fontsize=10)
    figure.supylabel(_what_is_shown(suite, runs), fontsize=10)
    save_figure(figure, file, output)


def _panels_of_environments(suite: Suite, runs: Sequence[Run], shown: Sequence[str]) -> Figure:
    n_columns = min(3 if len(suite.environments) == 3 else 2, len(suite.environments))
    n_rows = math.ceil(len(suite.environments) / n_columns)
    figure = Figure(
        figsize=((4.8, 4.8, 3.7)[n_columns - 1] * n_columns, 3.1 * n_rows + 0.9),
        layout="constrained",
    )
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for panel, environment in zip(panels, suite.environments, strict=False):
        for index, variant in enumerate(shown):
            found = select(runs, variant, environment)
            if found:
                line = _draw_curve(panel, found, COLOURS[index], DASHES[index])
                handles.setdefault(suite.variant_label(variant), line)
        _dress(panel, suite, environment)
        lowest = _cut_outliers(panel, suite, environment)
        _name_references(panel, suite, environment)
        panel.set_title(_title(suite, runs, environment, shown) + lowest, fontsize=10)
    for panel in panels[len(suite.environments) :]:
        panel.set_axis_off()
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=_legend_columns([*handles], figure.get_figwidth()),
        frameon=False,
    )
    return figure


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Return how many columns, at most four, fit into a legend of this width in inches."""
    points = FontProperties(size=rcParams["legend.fontsize"]).get_size_in_points()
    # A line, the gap before its label, and the gap before the next column take 4.8 em.
    widths = [
        TextPath((0, 0), label, size=points).get_extents().width / 72 + 4.8 * points / 72
        for label in labels
    ]
    for n_columns in (4, 3, 2):
        columns = [max(part) for part in np.array_split(widths, n_columns) if len(part)]
        if sum(columns) <= width:
            return n_columns
    return 1


def _panels_of_variants(suite: Suite, runs: Sequence[Run], shown: Sequence[str]) -> Figure:
    others = [variant for variant in shown if variant != suite.baseline]
    n_columns = len(others) if len(others) == _SMALL_COLUMNS + 1 else _SMALL_COLUMNS
    n_rows = math.ceil(len(others) / n_columns)
    height = (1.5 * n_rows + 0.4) * len(suite.environments) + 0.3
    figure = Figure(figsize=(9.2, height), layout="constrained")
    parts = figure.subfigures(len(suite.environments), 1, squeeze=False).ravel()
    for part, environment in zip(parts, suite.environments, strict=True):
        panels = part.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey=True)
        baseline = select(runs, suite.baseline, environment)
        for panel, variant in zip(panels.ravel(), others, strict=False):
            _draw_curve(panel, baseline, COLOURS[0], "-")
            _draw_curve(panel, select(runs, variant, environment), BLUE, "--")
            _dress(panel, suite, environment)
            panel.set_title(suite.variant_label(variant), fontsize=9)
        lowest = _cut_outliers(panels[0, 0], suite, environment)
        for panel in panels[:, -1]:
            _name_references(panel, suite, environment)
        for panel in panels.ravel()[len(others) :]:
            panel.set_axis_off()
        key = f"; black: {suite.baseline_label}; blue: the variant above the panel"
        part.suptitle(_title(suite, runs, environment, shown) + lowest + key, fontsize=10)
    return figure


def _draw_curve(panel: Any, found: Sequence[Run], colour: str, dashes: str) -> Any:
    if not found:
        return None
    middle, low, high = band(np.array([run.returns for run in found]))
    (line,) = panel.plot(found[0].steps, middle, dashes, linewidth=1.6, color=colour)
    panel.fill_between(found[0].steps, low, high, color=colour, alpha=0.15, linewidth=0)
    return line


def _dress(panel: Any, suite: Suite, environment: str) -> None:
    declared = suite.environments[environment]
    for value in (declared.threshold, declared.score.random):
        panel.axhline(value, **_REFERENCE)
    panel.set_xlim(0, declared.steps)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.locator_params(axis="x", nbins=4)  # more would touch each other in small panels
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _name_references(panel: Any, suite: Suite, environment: str) -> None:
    """Print the names of the two grey lines to the right of a panel, where no curve is."""
    declared = suite.environments[environment]
    values = {"threshold": declared.threshold, "random": declared.score.random}
    low, high = panel.get_ylim()
    is_close = abs(values["threshold"] - values["random"]) < 0.15 * (high - low)
    for name, value in values.items():
        is_upper = value == max(values.values())
        panel.annotate(
            name,
            (1, value),
            xycoords=panel.get_yaxis_transform(),
            xytext=(3, (4 if is_upper else -4) if is_close else 0),
            textcoords="offset points",
            color="0.45",
            fontsize=7,
            va="center",
            annotation_clip=False,
        )


def _cut_outliers(panel: Any, suite: Suite, environment: str) -> str:
    """
    Let a panel and the panels that share its axis end a little below a random policy's return.

    A variant that diverges would otherwise flatten all other curves.

    :return: An addition to the title.
    """
    declared = suite.environments[environment]
    random = declared.score.random
    lowest, bottom = panel.get_ylim()[0], random - _BELOW_RANDOM * abs(declared.threshold - random)
    if lowest >= bottom:
        return ""
    panel.set_ylim(bottom=bottom)
    return f"; cut below {bottom:,.0f}"


def _what_is_shown(suite: Suite, runs: Sequence[Run]) -> str:
    counts = sorted({each.evaluation.episodes for each in suite.environments.values()})
    episodes = " or ".join(map(str, counts)) + f" evaluation episode{'s' if counts != [1] else ''}"
    n_seeds = [
        len(select(runs, variant, environment))
        for variant in suite.variants
        for environment in suite.environments
    ]
    interval = ", 95 % interval" if max(n_seeds) >= LEAST_RUNS else ""
    return f"Mean return of {episodes}\n(interquartile mean{interval})"


def _title(suite: Suite, runs: Sequence[Run], environment: str, shown: Sequence[str]) -> str:
    n_seeds = {len(select(runs, each, environment)) for each in shown}
    return f"{environment} ({seeds_in_words(suite, n_seeds)})"


def seeds_in_words(suite: Suite, n_seeds: set[int]) -> str:
    """Return in words how many of a suite's seeds are finished."""
    if n_seeds == {suite.seeds}:
        return f"{suite.seeds} seed{'s' if suite.seeds != 1 else ''}"
    some = " to ".join(str(each) for each in sorted({min(n_seeds), max(n_seeds)}))
    return f"{some} of {suite.seeds} seeds"
