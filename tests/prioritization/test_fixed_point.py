"""
Where learning ends when rewards are random: one state whose reward is 10 one time in ten, else 0.

The true value is 1. Prioritized replay without full correction settles elsewhere, where the
weighted draws of both kinds of transitions balance (derivation in the first test).
"""

import numpy as np
import pytest
from sb3_per.prioritization.sampling import SamplingScheme

from benchmarks.cliffwalk.walk import (
    discount,
    stored_transitions,
    transitions,
    true_values,
)
from sb3_per.prioritization.proportional import Proportional
from sb3_per.prioritization.sampler import importance_weights

REWARDS = np.repeat([10.0, 0.0], [100, 900])


def learned_value(alpha, beta, normalization="batch", n_updates=40_000, solved=()):
    """Tabular Q-learning: batches of 32, step size 0.01, the mean over the last quarter."""
    random, values = np.random.default_rng(0), []
    proportional = Proportional(1000, alpha=alpha)
    proportional.insert(np.arange(1000))
    value = 0.0
    for _ in range(n_updates):
        draw = proportional.sample(SamplingScheme(), 32, random.random(32), with_smallest=True)
        reference = {
            "batch": draw.probabilities.min(),
            "buffer": draw.smallest_probability,
            "none": 1 / 1000,
        }[normalization]
        weights = importance_weights(draw.probabilities, reference, beta)[:, 0]
        td_errors = np.where(np.isin(draw.slots, solved), 0.0, REWARDS[draw.slots] - value)
        proportional.update(draw.slots, td_errors)
        value += 0.01 * np.mean(weights * td_errors)
        values.append(value)
    return np.mean(values[-n_updates // 4 :])


@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 0.0), (0.6, 0.4), (0.6, 1.0), (1.0, 0.0)])
def test_learning_ends_where_theory_says(alpha, beta):
    """
    With P ~ abs(error)^alpha and w ~ P^-beta, the pull of a transition is abs(error)^e,
    e = 1 + alpha (1 - beta). 0.1 (10 - Q)^e = 0.9 Q^e gives Q = 10 x / (1 + x), x = 9^(-1 / e).
    """
    x = (1 / 9) ** (1 / (1 + alpha * (1 - beta)))

    assert learned_value(alpha, beta) == pytest.approx(10 * x / (1 + x), rel=0.05)


def test_weights_that_are_not_normalised_end_there_as_well():
    assert learned_value(0.6, 1.0, "none") == pytest.approx(1.0, rel=0.05)


def test_one_solved_transition_stops_learning_with_buffer_normalization_and_not_with_batch():
    """Slot 999 has TD error 0 throughout, so that its weight is the largest by far."""
    values = {name: learned_value(0.6, 1.0, name, solved=[999]) for name in ("batch", "buffer")}

    assert values["batch"] == pytest.approx(1.0, rel=0.1)
    assert values["buffer"] < 0.2


def distance_from_truth(alpha, betas, seed):
    """
    Where Q-learning ends on BlindCliffwalk, n = 8, with skewed noise on every reward: the root mean
    squared error of all 16 values over the last 5 % of the updates. Beta moves linearly.

    The memory holds each transition ten times, once with a noise of 0.9 and nine times with -0.1:
    so the mean of the noise is exactly 0, and the true values are those without it.
    """
    n, n_updates, random = 8, 10_000, np.random.default_rng(seed)
    known, truth = transitions(n), true_values(n).ravel()
    kinds = np.tile(stored_transitions(n, random), 10)
    noise = np.repeat([0.9, *[-0.1] * 9], len(kinds) // 10)
    proportional = Proportional(len(kinds), alpha=alpha)
    proportional.insert(np.arange(len(kinds)))
    values, squares = np.zeros(2 * n), []
    for beta in np.linspace(*betas, n_updates):
        draw = proportional.sample(SamplingScheme(), 32, random.random(32))
        weights = importance_weights(draw.probabilities, draw.probabilities.min(), beta)[:, 0]
        drawn = kinds[draw.slots]
        best = np.append(values.reshape(n, 2).max(axis=1), 0.0)  # 0 behind the end, at -1
        rewards = known.rewards[drawn] + noise[draw.slots]
        td_errors = rewards + discount(n) * best[known.next_states[drawn]] - values[drawn]
        proportional.update(draw.slots, td_errors)
        np.add.at(values, drawn, 0.1 * weights * td_errors)
        squares.append(np.mean((values - truth) ** 2))
    return np.mean(squares[-n_updates // 20 :]) ** 0.5


@pytest.mark.slow
def test_skewed_noise_leads_astray_without_weights_and_not_with_them():
    """
    Uniform replay's distance is the noise of a constant step size. Weights take away the bias of
    prioritization, and as none is above 1, they also make smaller steps.
    """
    of_five_seeds = [
        [distance_from_truth(alpha, betas, seed) for seed in range(5)]
        for alpha, betas in ((0.0, (0, 0)), (0.6, (0, 0)), (0.6, (0.4, 1)))
    ]

    uniform, without, annealed = np.mean(of_five_seeds, axis=1)
    assert without >= 3 * uniform
    assert annealed <= uniform
