"""The metrics of gradient steps."""

import numpy as np
import pytest
from stable_baselines3.common.logger import Logger

from sb3_per.algorithms.metrics import LOGGED, averaged_moments, log_metrics, metrics_of


def ratio_of(batches, moments=(0.0, 0.0)):
    """Return the logged ratio after batches of (TD errors, weights)."""
    steps = [
        metrics_of(0.0, np.array(errors, np.float32), np.array(weights, np.float32))
        for errors, weights in batches
    ]
    logger = Logger(None, [])
    log_metrics(logger, LOGGED, steps, averaged_moments(moments, steps))
    return logger.name_to_value["train/gradient_noise_ratio"]


@pytest.mark.parametrize("scale", [1.0, 1e-3, 7.0])  # as if divided by the largest, or not
def test_the_ratio_of_one_batch_is_that_of_its_moments(scale):
    errors, weights = np.array([1.0, -2.0, 3.0]), np.array([0.5, 1.0, 0.25])
    expected = np.mean(weights**2 * errors**2) / np.mean(weights * errors**2) / np.mean(weights)

    assert ratio_of([(errors, scale * weights)]) == pytest.approx(expected)


def test_moments_are_averaged_before_they_are_divided():
    """Where errors are rare, most batches hold none, and the mean of their ratios says nothing."""
    batches = [([1.0, 1.0], [0.1, 0.1])] + [([0.0, 1e-6], [1.0, 1.0])] * 9

    assert ratio_of([*batches, *batches]) == pytest.approx(1.0, rel=1e-3)
    with_rare = [([1.0, 0.0], [0.1, 1.0])] + [([1e-3, 1e-3], [1.0, 1.0])] * 9
    single = [ratio_of([batch]) for batch in with_rare]
    assert np.mean(single) > 0.9
    assert ratio_of(with_rare * 50) < 0.3


def test_without_gradients_the_ratio_is_one():
    assert ratio_of([([0.0, 0.0], [1.0, 1.0])]) == 1.0
    assert ratio_of([([1.0, 2.0], [0.0, 0.0])]) == 1.0


def test_a_training_keeps_the_averages_of_the_steps_before():
    batch = ([1.0, 3.0], [1.0, 0.5])
    before = averaged_moments((0.0, 0.0), [metrics_of(0.0, *map(np.float32, batch))])

    other = ([2.0, 2.0], [1.0, 1.0])

    assert ratio_of([batch, other]) == pytest.approx(ratio_of([other], before))
