"""The metrics of gradient steps, and which of them are logged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_per._utils import kernel

# A larger probability at both ends of Rainbow's support means that many returns are outside of it.
LARGEST_SUPPORT_EDGE = 0.2


class Metrics(NamedTuple):
    """The metrics of a gradient step."""

    loss: float
    td_error: float
    weight_mean: float
    effective_sample_size: float
    linear_loss_share: float


def metrics_of(
    td_errors: NDArray[np.float32],
    weights: NDArray[np.float32],
    loss_threshold: float | None = None,
) -> Metrics:
    """
    Return the metrics of a batch.

    With w the weights, d the TD errors, t the loss's threshold and g = min(abs(d), t), the size of
    a sample's gradient with respect to its Q-value:

    - ``loss`` is the mean Huber loss of d, without weights;
    - ``effective_sample_size`` is (sum w)^2 / (B sum w^2), 0 where all weights are 0;
    - ``linear_loss_share`` is the share of samples with abs(d) > t, 0 without a threshold.

    :param td_errors: Target minus Q, on the host, shape (B,).
    :param weights: Importance-sampling weights, on the host, shape (B,).
    :param loss_threshold: The abs(TD error) at which the loss turns linear; None if it never does.
    """
    metrics = np.empty(len(Metrics._fields))
    _fill(td_errors, weights, np.inf if loss_threshold is None else float(loss_threshold), metrics)
    return Metrics._make(metrics.tolist())


@kernel
def _fill(
    td_errors: NDArray[np.float32],
    weights: NDArray[np.float32],
    threshold: float,
    metrics: NDArray[np.float64],
) -> None:
    """Fill in the metrics of a batch; a dozen calls of NumPy would take 2 % of a gradient step."""
    n = len(weights)
    loss, sizes, total, squares, n_linear = 0.0, 0.0, 0.0, 0.0, 0
    for i in range(n):
        size, weight = abs(float(td_errors[i])), float(weights[i])
        gradient = min(size, threshold)
        # d^2 / 2 up to the threshold, and linear beyond it.
        loss += gradient * size - 0.5 * gradient * gradient
        sizes += size
        total += weight
        squares += weight * weight
        n_linear += size > threshold
    metrics[0], metrics[1], metrics[2], metrics[4] = loss / n, sizes / n, total / n, n_linear / n
    metrics[3] = total * total / (n * squares) if squares > 0 else 0.0
