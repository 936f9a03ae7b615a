"""The metrics of gradient steps."""

import numpy as np
import pytest
from models import logged, make, ready

from sb3_per.algorithms.metrics import Metrics, metrics_of


def metrics_by_hand(errors, weights, threshold=None):
    return metrics_of(np.array(errors, np.float32), np.array(weights, np.float32), threshold)


def test_metrics_of_a_batch_by_hand():
    metrics = metrics_by_hand([0.5, -2.0, 4.0], [1.0, 0.5, 0.25], threshold=1.0)

    assert metrics.loss == pytest.approx((0.125 + 1.5 + 3.5) / 3)
    assert metrics.td_error == pytest.approx(6.5 / 3)
    assert metrics.weight_mean == pytest.approx(1.75 / 3)
    assert metrics.effective_sample_size == pytest.approx(1.75**2 / (3 * 1.3125))
    assert metrics.linear_loss_share == pytest.approx(2 / 3)


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
    for name in Metrics._fields:
        mean = np.mean([getattr(step, name) for step in steps])
        assert logged(model)[f"train/{name}"] == pytest.approx(mean), name
    # Clipped where the loss turns linear; then eps is added.
    assert logged(model)["train/priority_max"] == pytest.approx(1 + 1e-6)
