"""Medians with quartiles, of times and of paired ratios."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Quartiles(NamedTuple):
    """A quarter of the measurements lies below ``low``, half below ``median``."""

    low: float
    median: float
    high: float


def quartiles_of(measurements: NDArray[np.float64] | list[float]) -> Quartiles:
    """Return the quartiles of measurements, at least one, shape (n,)."""
    return Quartiles(*(float(value) for value in np.percentile(measurements, (25, 50, 75))))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown whose columns line up, the first one to the left."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    first = f"| {{:<{widths[0]}}} |" + "".join(f" {{:>{width}}} |" for width in widths[1:])
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([first.format(*header), rule, *(first.format(*row) for row in rows)])
