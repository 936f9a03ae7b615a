"""The metrics of gradient steps, and which of them are logged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    weights = weights.astype(np.float64)  # squares of small weights can underflow in float32
    sizes = np.abs(td_errors)
    n, total, squares = len(weights), float(weights.sum()), float(weights @ weights)
    threshold = np.inf if loss_threshold is None else loss_threshold
    gradients = np.minimum(sizes.astype(np.float64), threshold)
    # g d - g^2 / 2 is d^2 / 2 up to the threshold, and linear beyond it.
    loss = float(gradients @ sizes) - 0.5 * float(gradients @ gradients)
    return Metrics(
        loss=loss / n,
        td_error=float(sizes.sum()) / n,
        weight_mean=total / n,
        effective_sample_size=total * total / (n * squares) if squares > 0 else 0.0,
        linear_loss_share=int(np.count_nonzero(sizes > threshold)) / n,
    )
