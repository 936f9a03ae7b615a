"""The metrics of gradient steps."""

import numpy as np
import pytest
from models import logged, make, ready

from sb3_per.algorithms.metrics import LOGGED, metrics_of


def metrics_by_hand(errors, weights, threshold=None):
    return metrics_of(np.array(errors, np.float32), np.array(weights, np.float32), threshold)


def ratio_of(batches):
    """Return the logged ratio after batches of (TD errors, weights)."""
    model = ready(make())
    model._log_prioritization([metrics_by_hand(errors, weights) for errors, weights in batches])
    return logged(model)["train/gradient_noise_ratio"]


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


def test_moments_are_averaged_before_they_are_divided():
    """Where errors are rare, most batches hold none, and the mean of their ratios says nothing."""
    with_rare = [([1.0, 0.0], [0.1, 1.0])] + [([1e-3, 1e-3], [1.0, 1.0])] * 9

    assert np.mean([ratio_of([batch]) for batch in with_rare]) > 0.9
    assert ratio_of(with_rare * 50) < 0.3


@pytest.mark.parametrize(("errors", "weights"), [([0.0, 0.0], [1.0, 1.0]), ([1.0, 2.0], [0, 0])])
def test_ratio_without_gradients_is_one(errors, weights):
    assert ratio_of([(errors, weights)]) == 1.0


def test_logged_metrics_are_means_over_the_batches(monkeypatch):
    model = ready(make())
    buffer, batches, steps = model.replay_buffer, [], []
    sample, update = buffer.sample, buffer.update_priorities

    def noting_sample(*args, **kwargs):
        batches.append(sample(*args, **kwargs))
        return batches[-1]

    def noting_update(slots, td_errors):
        assert slots is batches[-1].slots
        steps.append(metrics_by_hand(td_errors.ravel(), batches[-1].weights.numpy().ravel(), 1.0))
        update(slots, td_errors)

    monkeypatch.setattr(buffer, "sample", noting_sample)
    monkeypatch.setattr(buffer, "update_priorities", noting_update)

    model.train(gradient_steps=4, batch_size=16)

    assert len(steps) == logged(model)["train/n_updates"] == 4
    for name in LOGGED[:-1]:
        mean = np.mean([getattr(step, name) for step in steps])
        assert logged(model)[f"train/{name}"] == pytest.approx(mean), name
    # Clipped where the loss turns linear; then eps is added.
    assert logged(model)["train/priority_max"] == pytest.approx(1 + 1e-6)
