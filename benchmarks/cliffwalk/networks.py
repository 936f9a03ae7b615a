"""The same replay memory, learned by the networks of DQN and PERDQN through their own ``train``."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.logger import Logger

from benchmarks.cliffwalk.learner import SOLVED
from benchmarks.cliffwalk.walk import discount, stored_transitions, true_values
from benchmarks.environments import BlindCliffwalk, outcome
from sb3_per import PAPER, PERDQN
from sb3_per.prioritization.sum_tree import IntArray

# PERDQN's defaults, spelled out, and other settings of docs/results/recipes.md.
_CLIPPED = {**PAPER, "td_error_clip": "loss", "uniform_share": 0.5}
_CORRECTED = {**_CLIPPED, "beta": 1.0, "weight_normalization": "none"}
METHODS: dict[str, tuple[type[DQN], dict[str, Any] | None]] = {
    "DQN": (DQN, None),
    "PERDQN": (PERDQN, {**_CORRECTED, "alpha": 1.0}),
    "alpha_0.6": (PERDQN, {**_CLIPPED, "weight_normalization": "mean"}),
    "alpha_0.6_corrected": (PERDQN, _CORRECTED),
    "paper": (PERDQN, {**PAPER}),
}
LEARNERS = {"network_lr1e-3": 1e-3, "network_lr2.5e-4": 2.5e-4}  # learning rates
SIZES, N_SEEDS = range(6, 15, 2), 10

# A run is cut off here, and beta is at its final value here, as in a `learn` of so many steps.
MOST_UPDATES = 50_000
# Updates from one computation of the error to the next.
_STRIDE = 10
_BATCH_SIZE = 32
# The runs with which these settings were tried had lower seeds.
_FIRST_SEED = 1000


def updates_needed(learner: str, method: str, n: int, seed: int) -> tuple[int, bool]:
    """
    Learn once. The steps of the environment alone are left out: what ``learn`` does around each of
    them (progress, and so beta; target network) is done here before each update.

    :param learner: One of ``LEARNERS``.
    :param method: One of ``METHODS``.
    :param n: Number of states.
    :param seed: Of the replay memory's order, the network and the sampling; the first two are the
        same for all methods.
    :return: How many updates were made, a multiple of 10, and whether the values are right then.
    """
    th.set_num_threads(1)
    model = _model(method, n, LEARNERS[learner], _FIRST_SEED + seed)
    kinds = stored_transitions(n, np.random.default_rng([n, _FIRST_SEED + seed]))
    _fill(model, kinds, BlindCliffwalk(n))
    for n_updates in range(1, MOST_UPDATES + 1):
        model._update_current_progress_remaining(n_updates, MOST_UPDATES)
        model._on_step()
        model.train(gradient_steps=1, batch_size=_BATCH_SIZE)
        if n_updates % _STRIDE == 0 and _error(model, n) < SOLVED:
            return n_updates, True
    return MOST_UPDATES, False


def _model(method: str, n: int, learning_rate: float, seed: int) -> DQN:
    algorithm, options = METHODS[method]
    model = algorithm(
        "MlpPolicy",
        BlindCliffwalk(n),
        learning_rate=learning_rate,
        buffer_size=2 ** (n + 1) - 2,
        batch_size=_BATCH_SIZE,
        gamma=discount(n),
        target_update_interval=100,
        seed=seed,
        device="cpu",
        replay_buffer_kwargs=options,
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def _fill(model: DQN, kinds: IntArray, env: BlindCliffwalk) -> None:
    buffer: Any = model.replay_buffer  # SB3 declares that it may be None
    for kind in kinds:
        state, action = divmod(int(kind), 2)
        next_state, reward = outcome(env.n, state, action)
        seen = env.observation(state)
        seen_next = env.observation(state if next_state is None else next_state)
        ends = np.array([next_state is None])
        buffer.add(seen, seen_next, np.array([action]), np.array([reward]), ends, [{}])


@th.no_grad()
def _error(model: DQN, n: int) -> float:
    """Return the mean squared error over all 2n values."""
    values = model.q_net(th.eye(n)).numpy()
    return float(np.mean((values - true_values(n)) ** 2))
