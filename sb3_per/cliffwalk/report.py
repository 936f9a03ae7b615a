"""What a folder of results says, for the terminal and for a page."""

import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from sb3_per.cliffwalk import plot, results
from sb3_per.cliffwalk.cells import NAMES
from sb3_per.cliffwalk.results import Spread, Spreads


def show(folder: pathlib.Path) -> None:
    """Write a table for each learner to the terminal; a summary and the figure into the folder."""
    known = results.read(folder)
    results.write_summary(folder, known)
    spreads = results.spreads(known)
    for learner in results.learners_of(spreads):
        sys.stdout.write(f"{table(spreads, learner)}\n\n")
    sys.stdout.write(f"{plot.draw(spreads, folder)}\n")


def table(spreads: Spreads, learner: str) -> str:
    """
    :return: A Markdown table of the updates by n and method, at most 80 columns wide: medians; if
        there are just two methods, smallest and largest too, and the ratio of the medians.
    """
    methods = results.methods_of(spreads, learner)
    rows = [["n", *(NAMES[method] for method in methods)]]
    rows += [["-:" for _ in rows[0]]]
    for n in sorted({n for key, _, n in spreads if key == learner}):
        of_n = [spreads.get((learner, method, n)) for method in methods]
        rows.append([str(n), *(_text(spread, with_range=len(methods) == 2) for spread in of_n)])
        if len(methods) == 2:
            rows[-1].append(_ratio(of_n))
    if len(methods) == 2:
        rows[0].append("ratio")
        rows[1].append("-:")
    return "\n".join([f"{NAMES[learner]}, updates:", "", *_lines(rows)])


def _text(spread: Spread | None, with_range: bool) -> str:
    if spread is None:
        return ""
    if not np.isfinite(spread.median):
        return "never"
    median = f"{spread.median:.0f}"
    return f"{median} ({spread.smallest:.0f} to {spread.largest:.0f})" if with_range else median


def _ratio(pair: Sequence[Spread | None]) -> str:
    medians = [spread.median for spread in pair if spread is not None]
    is_known = len(medians) == 2 and np.isfinite(medians).all()
    return f"{medians[0] / medians[1]:.2f}" if is_known else ""


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "|" + "|".join(f" {text:>{width}} " for text, width in zip(row, widths, strict=True)) + "|"
        for row in rows
    ]
