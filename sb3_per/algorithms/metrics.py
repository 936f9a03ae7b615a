"""What is logged of a gradient step."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Metrics(NamedTuple):
    """Below ``train/`` in the log."""

    loss: float
    td_error: float
    weight_mean: float
    effective_sample_size: float


def metrics_of(
    loss: float, td_errors: NDArray[np.float32], weights: NDArray[np.float32]
) -> Metrics:
    """
    :param loss: Mean of weight * Huber(TD error).
    :param td_errors: Target minus Q, on the host, shape (B,).
    :param weights: Importance-sampling weights, on the host, shape (B,).
    :return: The loss, the mean of abs(TD error), the mean weight, and (sum w)^2 / (B sum w^2),
        which is 0 where all weights are.
    """
    weights = weights.astype(np.float64)  # squares of float32 may be too small for it
    n, total, squares = len(weights), float(weights.sum()), float(weights @ weights)
    return Metrics(
        loss=loss,
        td_error=float(np.abs(td_errors).sum()) / n,
        weight_mean=total / n,
        effective_sample_size=total * total / (n * squares) if squares > 0 else 0.0,
    )
