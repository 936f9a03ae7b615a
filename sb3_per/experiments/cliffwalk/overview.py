"""Tables of the measurements in a folder, for the terminal and for a page."""

import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from sb3_per.experiments.cliffwalk import measurements, plot
from sb3_per.experiments.cliffwalk.measurements import Spread, Spreads
from sb3_per.experiments.cliffwalk.trials import NAMES
from sb3_per.experiments.common.tables import markdown


def show(folder: pathlib.Path) -> None:
    """Write a table for each learner to the terminal; a summary and the figure into the folder."""
    known = measurements.read(folder)
    measurements.write_summary(folder, known)
    spreads = measurements.spreads(known)
    for learner in measurements.learners_of(spreads):
        sys.stdout.write(f"{table(spreads, learner)}\n\n")
    sys.stdout.write(f"{plot.draw(spreads, folder)}\n")


def table(spreads: Spreads, learner: str) -> str:
    """
    Return a Markdown table of the updates by n and method, at most 80 columns wide: medians; if
        there are just two methods, smallest and largest too, and the ratio of the medians. A
        star marks what has fewer seeds than the rest.
    """
    methods = measurements.methods_of(spreads, learner)
    columns = ["n", *(NAMES[method] for method in methods)]
    rows = []
    n_seeds = [spread.n_seeds for (key, _, _), spread in spreads.items() if key == learner]
    most = max(n_seeds)
    for n in sorted({n for key, _, n in spreads if key == learner}):
        of_n = [spreads.get((learner, method, n)) for method in methods]
        rows.append([str(n), *(_text(spread, most, len(methods) == 2) for spread in of_n)])
        if len(methods) == 2:
            rows[-1].append(_ratio(of_n))
    if len(methods) == 2:
        columns.append("ratio")
    lines = [f"{NAMES[learner]}, updates:", "", markdown(columns, rows, is_aligned=True)]
    if min(n_seeds) < most:
        lines += ["", f"*: fewer than {most} seeds; summary.csv tells how many"]
    return "\n".join(lines)


def _text(spread: Spread | None, most_seeds: int, with_range: bool) -> str:
    if spread is None:
        return ""
    star = "*" if spread.n_seeds < most_seeds else ""
    if not np.isfinite(spread.median):
        return f"unsolved{star}"
    range_ = f" ({spread.smallest:.0f} to {spread.largest:.0f})" if with_range else ""
    return f"{spread.median:.0f}{range_}{star}"


def _ratio(pair: Sequence[Spread | None]) -> str:
    medians = [spread.median for spread in pair if spread is not None]
    is_known = len(medians) == 2 and np.isfinite(medians).all()
    return f"{medians[0] / medians[1]:.2f}" if is_known else ""
