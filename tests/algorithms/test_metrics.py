"""The metrics of gradient steps."""

import numpy as np
import pytest
from stable_baselines3.common.logger import Logger

from sb3_per.algorithms.metrics import LOGGED, averaged_moments, log_metrics, metrics_of


def metrics_by_hand(errors, weights, threshold=None):
    return metrics_of(np.array(errors, np.float32), np.array(weights, np.float32), threshold)


def ratio_of(batches, moments=(0.0, 0.0)):
    """Return the logged ratio after batches of (TD errors, weights)."""
    steps = [metrics_by_hand(errors, weights) for errors, weights in batches]
    logger = Logger(None, [])
    log_metrics(logger, LOGGED, steps, averaged_moments(moments, steps))
    return logger.name_to_value["train/gradient_noise_ratio"]


def test_metrics_of_a_batch_by_hand():
    metrics = metrics_by_hand([0.5, -2.0, 4.0], [1.0, 0.5, 0.25], threshold=1.0)

    assert metrics.loss == pytest.approx((0.125 + 1.5 + 3.5) / 3)
    assert metrics.td_error == pytest.approx(6.5 / 3)
    assert metrics.weight_mean == pytest.approx(1.75 / 3)
    assert metrics.effective_sample_size == pytest.approx(1.75**2 / (3 * 1.3125))
    assert metrics.linear_loss_share == pytest.approx(2 / 3)
    mean = 1.75 / 3
    assert metrics.second_moment == pytest.approx((0.25 + 0.25 + 0.0625) / 3 / mean**2)
    assert metrics.uniform_second_moment == pytest.approx((0.25 + 0.5 + 0.25) / 3 / mean)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 7.0])  # as if divided by the largest, or not
def test_ratio_of_one_batch_is_that_of_its_moments(scale):
    errors, weights = np.array([1.0, -2.0, 3.0]), np.array([0.5, 1.0, 0.25])
    expected = np.mean(weights**2 * errors**2) / np.mean(weights * errors**2) / np.mean(weights)

    assert ratio_of([(errors, scale * weights)]) == pytest.approx(expected)


def test_moments_are_averaged_before_they_are_divided():
    """Where errors are rare, most batches hold none, and the mean of their ratios says nothing."""
    with_rare = [([1.0, 0.0], [0.1, 1.0])] + [([1e-3, 1e-3], [1.0, 1.0])] * 9

    assert np.mean([ratio_of([batch]) for batch in with_rare]) > 0.9
    assert ratio_of(with_rare * 50) < 0.3


def test_ratio_without_gradients_is_one():
    assert ratio_of([([0.0, 0.0], [1.0, 1.0])]) == 1.0
    assert ratio_of([([1.0, 2.0], [0.0, 0.0])]) == 1.0
