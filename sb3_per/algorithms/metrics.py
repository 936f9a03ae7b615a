"""The metrics of gradient steps, and their log."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.logger import Logger

# Weight of the past in the averages of the gradient's second moments: about the last 100 batches.
# A single batch may hold none of the rare samples with large gradients.
_PAST = 0.99


class Metrics(NamedTuple):
    """The metrics of a gradient step."""

    loss: float
    td_error: float
    weight_mean: float
    effective_sample_size: float
    linear_loss_share: float
    second_moment: float
    uniform_second_moment: float


# What is logged as ``train/<name>``.
LOGGED = (*Metrics._fields[:-2], "gradient_noise_ratio")


def metrics_of(
    td_errors: NDArray[np.float32],
    weights: NDArray[np.float32],
    loss_threshold: float | None = None,
) -> Metrics:
    """
    Return the metrics of a batch.

    With w the weights, d the TD errors, t the loss's threshold and g = min(abs(d), t), the size of
    a sample's gradient with respect to its Q-value:

    - ``loss`` is the mean Huber loss of d, without weights (nothing is logged without a threshold:
      SB3 logs the loss itself there);
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


def averaged_moments(moments: Sequence[float], steps: Iterable[Metrics]) -> tuple[float, float]:
    """
    Return moving averages of the gradient's second moments after further gradient steps.

    :param moments: The averages before, weighted and uniform; 0 at the beginning of a training.
        Their ratio needs no correction for this beginning, because both have the same.
    """
    weighted, uniform = moments
    for each in steps:
        weighted = _PAST * weighted + (1 - _PAST) * each.second_moment
        uniform = _PAST * uniform + (1 - _PAST) * each.uniform_second_moment
    return weighted, uniform


def log_metrics(
    logger: Logger, names: Iterable[str], steps: Sequence[Metrics], moments: Sequence[float]
) -> None:
    """
    Log means over gradient steps, and the ratio of the gradient's second moments.

    Below 1, prioritization makes the gradient less noisy than uniform sampling would. The ratio is
    1 if all gradients are 0.

    :param names: Which of ``LOGGED`` to log.
    :param steps: The metrics of at least one gradient step.
    :param moments: Of ``averaged_moments``.
    """
    weighted, uniform = moments
    for name in names:
        if name == "gradient_noise_ratio":
            value = weighted / uniform if uniform > 0 else 1.0
        else:
            value = sum(getattr(metrics, name) for metrics in steps) / len(steps)
        logger.record(f"train/{name}", value)
