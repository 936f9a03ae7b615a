"""The metrics of gradient steps, and which of them are logged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Weight of the past in the averages of the gradient's second moments: about the last 100 batches.
# A single batch may hold none of the rare samples with large gradients.
_PAST = 0.99
# A larger probability at both ends of Rainbow's support means that many returns are outside of it.
LARGEST_SUPPORT_EDGE = 0.2


class Metrics(NamedTuple):
    """The metrics of a gradient step."""

    loss: float
    td_error: float
    weight_mean: float
    effective_sample_size: float
    linear_loss_share: float
    second_moment: float
    uniform_second_moment: float


# Second moments are logged as their ratio.
LOGGED = (
    *(name for name in Metrics._fields if not name.endswith("second_moment")),
    "gradient_noise_ratio",
)


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
    - ``linear_loss_share`` is the share of samples with abs(d) > t, 0 without a threshold;
    - ``second_moment`` is mean(w^2 g^2) / mean(w)^2, and ``uniform_second_moment`` is mean(w g^2) /
      mean(w): for beta = 1, estimates of the gradient's second moment and of its second moment
      under uniform sampling. The mean weight makes them independent of how weights are normalized.

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
    # g d - g^2 / 2 is d^2 / 2 up to the threshold, and linear beyond it.
    loss = float(gradients @ sizes) - 0.5 * float(gradients @ gradients)
    return Metrics(
        loss=loss / n,
        td_error=float(sizes.sum()) / n,
        weight_mean=total / n,
        effective_sample_size=total * total / (n * squares) if squares > 0 else 0.0,
        linear_loss_share=int(np.count_nonzero(sizes > threshold)) / n,
        second_moment=n * float(weighted @ weighted) / total**2 if total > 0 else 0.0,
        uniform_second_moment=float(weighted @ gradients) / total if total > 0 else 0.0,
    )


def averaged_moments(moments: tuple[float, float], steps: list[Metrics]) -> tuple[float, float]:
    """Return the moving averages of both second moments after more gradient steps."""
    weighted, uniform = moments
    for step in steps:
        weighted = _PAST * weighted + (1 - _PAST) * step.second_moment
        uniform = _PAST * uniform + (1 - _PAST) * step.uniform_second_moment
    return weighted, uniform


def logged_values(steps: list[Metrics], moments: tuple[float, float]) -> dict[str, float]:
    """
    Return the means of the metrics over gradient steps, and the noise of the gradient.

    A ``gradient_noise_ratio`` below 1 means that prioritization makes the gradient less noisy than
    uniform sampling would. It is 1 if all gradients are 0.
    """
    values = {
        name: sum(getattr(step, name) for step in steps) / len(steps) for name in Metrics._fields
    }
    weighted, uniform = moments
    return {**values, "gradient_noise_ratio": weighted / uniform if uniform > 0 else 1.0}
