"""
Where learning ends when rewards are random: one state whose reward is 10 one time in ten, else 0.

The true value is 1. Prioritized replay without full correction ends where the weighted samples of
both kinds of transitions balance (derivation in the first test).
"""

import numpy as np
import pytest

from sb3_per.prioritization.proportional import Proportional
from sb3_per.prioritization.sampler import importance_weights
from sb3_per.prioritization.sum_tree import SamplingScheme

REWARDS = np.repeat([10.0, 0.0], [100, 900])


def learned_value(alpha, beta, normalization="batch", n_updates=20_000, solved=()):
    """Tabular Q-learning: batches of 32, step size 0.01, the mean over the last quarter."""
    random, values = np.random.default_rng(0), []
    proportional = Proportional(1000, alpha=alpha)
    proportional.insert(np.arange(1000))
    value = 0.0
    for _ in range(n_updates):
        uniforms = random.random(32)
        sampled = SamplingScheme().sample(proportional.tree, 32, uniforms, with_smallest=True)
        reference = {
            "batch": sampled.probabilities.min(),
            "buffer": sampled.smallest_probability,
            "none": 1 / 1000,
        }[normalization]
        weights = importance_weights(sampled.probabilities, reference, beta)[:, 0]
        td_errors = np.where(np.isin(sampled.slots, solved), 0.0, REWARDS[sampled.slots] - value)
        proportional.update(sampled.slots, td_errors)
        value += 0.01 * np.mean(weights * td_errors)
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
