"""Learning curves and intervals, as PNG and SVG."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from sb3_per.experiments.compare.scores import Run
from sb3_per.experiments.compare.statistics import Estimate, band
from sb3_per.experiments.compare.suite import Suite
from sb3_per.experiments.compare.summary import MARGIN, Comparison, select

# Okabe and Ito's palette, which the colour-blind can tell apart; dashes say the same again.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7")
_DASHES = ("-", "--", "-.", ":", (0, (8, 2)), (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (1, 3)))
_COLUMNS, _SMALL_COLUMNS = 2, 4
# Without dates, versions and random identifiers: equal results give equal files.
_PLAIN = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
_TITLES = {"final": "final score (IQM)", "area": "area under the curve (IQM)"}


def own_style() -> AbstractContextManager[None]:
    """Return a context in which the user's settings do not change figures, and $ is no formula."""
    return mpl.style.context(["default", {"text.parse_math": False}])


def curves(suite: Suite, runs: Sequence[Run], file: Path) -> None:
    """
    Draw learning curves: interquartile mean over seeds, with its 95 % interval as a band.

    A panel for each environment has a line for each variant; where there are more variants than
    colours, a panel for each variant has that and the baseline.

    :param file: Without an ending.
    """
    one_for_all = len(suite.variants) <= len(_COLOURS)
    figure = (_panels_of_environments if one_for_all else _panels_of_variants)(suite, runs)
    _save(figure, file)


def _panels_of_environments(suite: Suite, runs: Sequence[Run]) -> Figure:
    n_columns = min(_COLUMNS, len(suite.environments))
    n_rows = math.ceil(len(suite.environments) / n_columns)
    figure = Figure(figsize=(4.6 * n_columns, 3.3 * n_rows + 0.7), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for panel, environment in zip(panels, suite.environments, strict=False):
        for index, variant in enumerate(suite.variants):
            label = suite.variant_label(variant)
            _draw_curve(panel, select(runs, variant, environment), label, index)
        _dress(panel, suite, environment)
        panel.set_title(_title(suite, runs, environment), fontsize=10)
        panel.set_xlabel("steps")
        panel.set_ylabel("return")
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
    return figure


def _panels_of_variants(suite: Suite, runs: Sequence[Run]) -> Figure:
    baseline = suite.baseline_label
    others = [variant for variant in suite.variants if variant != suite.baseline]
    n_rows = math.ceil(len(others) / _SMALL_COLUMNS)
    height = (1.7 * n_rows + 0.5) * len(suite.environments)
    figure = Figure(figsize=(9.2, height), layout="constrained")
    parts = figure.subfigures(len(suite.environments), 1, squeeze=False).ravel()
    for part, environment in zip(parts, suite.environments, strict=True):
        beside = f"; black: {baseline}"
        part.suptitle(_title(suite, runs, environment) + beside, fontsize=10)
        panels = part.subplots(n_rows, _SMALL_COLUMNS, squeeze=False, sharex=True, sharey=True)
        for panel, variant in zip(panels.ravel(), others, strict=False):
            _draw_curve(panel, select(runs, suite.baseline, environment), baseline, 0)
            _draw_curve(panel, select(runs, variant, environment), variant, 5)
            _dress(panel, suite, environment)
            panel.set_title(suite.variant_label(variant), fontsize=9)
            panel.tick_params(labelsize=8)
        for panel in panels.ravel()[len(others) :]:
            panel.set_axis_off()
        part.supxlabel("steps", fontsize=9)
        part.supylabel("return", fontsize=9)
    return figure


def _draw_curve(panel: Any, found: Sequence[Run], label: str, index: int) -> None:
    if not found:
        return
    middle, low, high = band(np.array([run.returns for run in found]))
    colour, dashes = _COLOURS[index % len(_COLOURS)], _DASHES[index % len(_DASHES)]
    panel.plot(found[0].steps, middle, linestyle=dashes, linewidth=1.8, color=colour, label=label)
    panel.fill_between(found[0].steps, low, high, color=colour, alpha=0.15, linewidth=0)


def _dress(panel: Any, suite: Suite, environment: str) -> None:
    declared = suite.environments[environment]
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
    panel.set_xlim(0, declared.steps)
    panel.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
    panel.spines[["top", "right"]].set_visible(False)


def _title(suite: Suite, runs: Sequence[Run], environment: str) -> str:
    n_seeds = {len(select(runs, variant, environment)) for variant in suite.variants}
    return f"{environment} ({_seeds(suite, n_seeds)})"


def intervals(suite: Suite, comparisons: Sequence[Comparison], file: Path) -> None:
    """
    Draw a row for each measure: the variants' interquartile means, and their probabilities of
    improvement over the baseline, with 95 % intervals.

    :param file: Without an ending.
    """
    names = list(dict.fromkeys(each.variant for each in comparisons))
    colours = {
        variant: _COLOURS[index % len(_COLOURS)] for index, variant in enumerate(suite.variants)
    }
    if not names:
        return
    figure, rows = _pairs_of_panels(suite, comparisons, f" over {suite.baseline_label}")
    for each, left, right in rows:
        height, colour = names.index(each.variant), colours[each.variant]
        _draw_interval(left, each.score, height, colour)
        if each.improvement is not None:
            _draw_interval(right, each.improvement, height, colour)
        left.set_title(_TITLES[each.measure], fontsize=10)
        left.set_xlabel("0: random policy, 1: solved", fontsize=8)
    for _, left, _ in rows:
        _show(left, 0, 1)
    _save(figure, file)


def gains(suite: Suite, comparisons: Sequence[Comparison], file: Path) -> None:
    """
    Draw a row for each measure: what each contrast adds to the interquartile mean, and its
    probability of improvement, with 95 % intervals.

    :param file: Without an ending.
    """
    if not comparisons:
        return
    names = list(dict.fromkeys(each.variant for each in comparisons))
    figure, rows = _pairs_of_panels(suite, comparisons, "")
    for each, left, right in rows:
        for panel, estimate in ((left, each.difference), (right, each.improvement)):
            if estimate is not None:
                _draw_interval(panel, estimate, names.index(each.variant), _COLOURS[0])
        left.set_title(f"gain in {_TITLES[each.measure]}", fontsize=10)
        left.set_xlabel(f"1: from random to solved; dotted: margin of {MARGIN}", fontsize=8)
        left.axvline(0, color="0.6", linewidth=0.8, zorder=0)
        left.axvline(-MARGIN, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        left.locator_params(axis="x", nbins=6)
    for _, left, _ in rows:
        _show(left, -0.1, 0.1)  # no more than this, and next to nothing would fill the panel
    _save(figure, file)


def _pairs_of_panels(
    suite: Suite, comparisons: Sequence[Comparison], over: str
) -> tuple[Figure, list[tuple[Comparison, Any, Any]]]:
    """A pair of panels for each measure, and to each comparison its pair."""
    measures = list(dict.fromkeys(each.measure for each in comparisons))
    names = list(dict.fromkeys(each.label for each in comparisons))
    size = (8.4, (0.34 * len(names) + 0.95) * len(measures) + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(f"{suite.name}: {_seeds(suite, {each.n_seeds for each in comparisons})}")
    panels = figure.subplots(len(measures), 2, sharey=True, squeeze=False)
    for left, right in panels:
        right.set_title(f"probability of improvement{over}", fontsize=10)
        right.axvline(0.5, color="0.6", linewidth=0.8, zorder=0)
        right.set_xlim(-0.02, 1.02)
        left.set_yticks(range(len(names)), names)
        left.set_ylim(len(names) - 0.5, -0.5)
        for panel in (left, right):
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(axis="x", color="0.92")
    return figure, [(each, *panels[measures.index(each.measure)]) for each in comparisons]


def _draw_interval(panel: Any, estimate: Estimate, height: int, colour: str) -> None:
    ends, style = [estimate.low, estimate.high], {"linewidth": 3, "alpha": 0.4}
    panel.plot(ends, [height, height], color=colour, solid_capstyle="butt", **style)
    panel.plot([estimate.value], [height], "o", color=colour, markersize=5)


def _show(panel: Any, low: float, high: float) -> None:
    """Widen a panel in which all is drawn, so that it reaches from one value to the other."""
    left, right = panel.get_xlim()
    margin = 0.02 * (high - low)
    panel.set_xlim(min(left, low - margin), max(right, high + margin))


def _seeds(suite: Suite, n_seeds: set[int]) -> str:
    if n_seeds == {suite.seeds}:
        return f"{suite.seeds} seeds"
    some = " to ".join(str(each) for each in sorted({min(n_seeds), max(n_seeds)}))
    return f"{some} of {suite.seeds} seeds"


def _save(figure: Figure, file: Path) -> None:
    for ending, metadata in _PLAIN.items():
        with mpl.rc_context({"svg.hashsalt": file.name}):
            figure.savefig(file.with_suffix(f".{ending}"), dpi=150, metadata=metadata)
