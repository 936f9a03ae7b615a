"""Figures of the intervals of scores and gains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sb3_per.experiments.common.drawing import BLUE, COLOURS, PNG_AND_SVG, Output, save_figure
from sb3_per.experiments.compare.curves import MOST_BANDS, seeds_in_words
from sb3_per.experiments.compare.statistics import Estimate
from sb3_per.experiments.compare.suite import Suite
from sb3_per.experiments.compare.summary import MARGIN, Comparison

_WHAT = {"final": "Final score", "area": "Area under the curve"}
_HOW = "Interquartile mean, 95 % interval"


def intervals(
    suite: Suite,
    comparisons: Sequence[Comparison],
    file: Path,
    variants: Sequence[str] = (),
    output: Output = PNG_AND_SVG,
) -> None:
    """
    Draw a row for each measure: the variants' interquartile means, and their probabilities of
    improvement over the baseline, with 95 % intervals.

    :param file: Path without an ending.
    :param variants: The variants to draw; None for all.
    """
    shown = [name for name in suite.variants if name in variants or not variants]
    comparisons = [each for each in comparisons if each.variant in shown]
    if not comparisons:
        return
    names = list(dict.fromkeys(each.variant for each in comparisons))
    colours = dict(zip(shown, _colours(suite, shown), strict=True))
    figure, rows = _pairs_of_panels(suite, comparisons, f"over {suite.baseline_label}")
    for each, left, right in rows:
        height, colour = names.index(each.variant), colours[each.variant]
        _draw_interval(left, each.score, height, colour)
        if each.improvement is not None:
            _draw_interval(right, each.improvement, height, colour)
        left.set_title(_WHAT[each.measure], fontsize=10)
        left.set_xlabel(f"{_HOW} (0: random policy, 1: solved)", fontsize=8)
    for _, left, _ in rows:
        _show(left, 0, 1)
    save_figure(figure, file, output)


def _colours(suite: Suite, names: Sequence[str]) -> list[str]:
    """Return the colours that the variants have among the learning curves."""
    if len(names) <= MOST_BANDS:
        return [*COLOURS[: len(names)]]
    return [COLOURS[0] if name == suite.baseline else BLUE for name in names]


def gains(
    suite: Suite, comparisons: Sequence[Comparison], file: Path, output: Output = PNG_AND_SVG
) -> None:
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
                _draw_interval(panel, estimate, names.index(each.variant), COLOURS[0])
        left.set_title(f"Gain in {_WHAT[each.measure].lower()}", fontsize=10)
        units = f"(1: from random to solved; dotted: margin of {MARGIN})"
        left.set_xlabel(f"{_HOW}\n{units}", fontsize=8)
        left.axvline(0, color="0.6", linewidth=0.8, zorder=0)
        left.axvline(-MARGIN, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        left.locator_params(axis="x", nbins=6)
    for _, left, _ in rows:
        _show(left, -0.1, 0.1)  # no more than this, and next to nothing would fill the panel
    save_figure(figure, file, output)


def _pairs_of_panels(
    suite: Suite, comparisons: Sequence[Comparison], over: str
) -> tuple[Figure, list[tuple[Comparison, Any, Any]]]:
    """Return a figure with a pair of panels for each measure, and each comparison's pair."""
    measures = list(dict.fromkeys(each.measure for each in comparisons))
    names = list(dict.fromkeys(each.label for each in comparisons))
    size = (8.4, (0.34 * len(names) + 0.95) * len(measures) + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(
        f"{suite.name}: {seeds_in_words(suite, {each.n_seeds for each in comparisons})}"
    )
    panels = figure.subplots(len(measures), 2, sharey=True, squeeze=False)
    for left, right in panels:
        gap = "\n" if len(over) > 20 else " "
        right.set_title(f"Probability of improvement{gap}{over}".strip(), fontsize=10)
        right.set_xlabel("Probability, 95 % interval", fontsize=8)
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
    """Widen a finished panel, so that it reaches from one value to the other."""
    left, right = panel.get_xlim()
    margin = 0.02 * (high - low)
    panel.set_xlim(min(left, low - margin), max(right, high + margin))
