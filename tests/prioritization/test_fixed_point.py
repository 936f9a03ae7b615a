"""
Where learning ends when rewards are random: one state whose reward is 10 one time in ten, else 0.

The true value is 1. Prioritized replay without full correction ends where the weighted samples of
both kinds of transitions balance (derivation in the first test).
"""

import numpy as np
import pytest

from sb3_per.options import PrioritizationOptions
from sb3_per.prioritization.sampler import PrioritizedSampler

REWARDS = np.repeat([10.0, 0.0], [100, 900])


def learned_value(alpha, beta, normalization="batch", n_updates=20_000, solved=()):
    """Tabular Q-learning: batches of 32, step size 0.01, the mean over the last quarter."""
    options = PrioritizationOptions(alpha=alpha, weight_normalization=normalization)
    sampler = PrioritizedSampler(1000, options, np.random.default_rng(0))
    sampler.insert(np.arange(1000))
    value, values = 0.0, []
    for _ in range(n_updates):
        slots, weights = sampler.sample(32, beta)
        td_errors = np.where(np.isin(slots, solved), 0.0, REWARDS[slots] - value)
        sampler.update(slots, td_errors)
        value += 0.01 * np.mean(weights[:, 0] * td_errors)
        values.append(value)
    return np.mean(values[-n_updates // 4 :])


@pytest.mark.parametrize(
    ("alpha", "beta", "normalization"),
    [
        (0.6, 0.0, "batch"),
        (0.6, 0.4, "batch"),
        (0.6, 1.0, "batch"),
        (0.6, 1.0, "none"),
        (1.0, 0.0, "batch"),
    ],
)
def test_learning_ends_where_theory_says(alpha, beta, normalization):
    """
    With P ~ abs(error)^alpha and w ~ P^-beta, the pull of a transition is abs(error)^e,
    e = 1 + alpha (1 - beta). 0.1 (10 - Q)^e = 0.9 Q^e gives Q = 10 x / (1 + x), x = 9^(-1 / e).
    """
    x = (1 / 9) ** (1 / (1 + alpha * (1 - beta)))

    value = learned_value(alpha, beta, normalization)
    assert value == pytest.approx(10 * x / (1 + x), rel=0.05)


def test_buffer_normalization_can_stop_learning():
    """Slot 999 has TD error 0 throughout, so that its weight is the largest by far."""
    values = {name: learned_value(0.6, 1.0, name, solved=[999]) for name in ("batch", "buffer")}

    assert values["batch"] == pytest.approx(1.0, rel=0.1)
    assert values["buffer"] < 0.2
