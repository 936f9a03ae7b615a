"""The metrics of a gradient step."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Metrics(NamedTuple):
    """The metrics of a gradient step, logged as ``train/<name>``."""

    loss: float
    td_error: float
    weight_mean: float
    effective_sample_size: float
    linear_loss_share: float
    gradient_noise_ratio: float


def metrics_of(
    loss: float,
    td_errors: NDArray[np.float32],
    weights: NDArray[np.float32],
    loss_threshold: float | None = None,
) -> Metrics:
    """
    Return the metrics of a batch.

    With w the weights, d the TD errors, t the loss's threshold and g = min(abs(d), t), the size of
    a sample's gradient with respect to its Q-value:

    - ``effective_sample_size`` is (sum w)^2 / (B sum w^2), 0 where all weights are 0;
    - ``linear_loss_share`` is the share of samples with abs(d) > t, 0 without a threshold;
    - ``gradient_noise_ratio`` is mean(w^2 g^2) / (mean(w g^2) mean(w)). For beta = 1 it estimates
      the second moment of the gradient, divided by the second moment under uniform sampling: below
      1, prioritization makes the gradient less noisy. The mean weight makes the ratio independent
      of how weights are normalized. The ratio is 1 if all gradients are 0.

    :param loss: Mean of weight * loss.
    :param td_errors: Target minus Q, on the host, shape (B,).
    :param weights: Importance-sampling weights, on the host, shape (B,).
    :param loss_threshold: The abs(TD error) at which the loss turns linear; None if it never does.
    """
    weights = weights.astype(np.float64)  # squares of small weights can underflow in float32
    sizes = np.abs(td_errors)
    n, total, squares = len(weights), float(weights.sum()), float(weights @ weights)
    threshold = np.inf if loss_threshold is None else loss_threshold
    gradients = np.minimum(sizes.astype(np.float64), threshold)
    weighted = weights * gradients
    uniform = float(weighted @ gradients) * total
    return Metrics(
        loss=loss,
        td_error=float(sizes.sum()) / n,
        weight_mean=total / n,
        effective_sample_size=total * total / (n * squares) if squares > 0 else 0.0,
        linear_loss_share=int(np.count_nonzero(sizes > threshold)) / n,
        gradient_noise_ratio=n * float(weighted @ weighted) / uniform if uniform > 0 else 1.0,
    )
