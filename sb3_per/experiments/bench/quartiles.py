"""Medians with quartiles, of times and of paired ratios."""

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
