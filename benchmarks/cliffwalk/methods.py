"""Kinds of replay that choose the transition to learn from next, all with the same Q-learning."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cliffwalk.learner import Learner
from benchmarks.cliffwalk.walk import stored_transitions
from sb3_per.prioritization.proportional import Proportional
from sb3_per.prioritization.rank_based import RankBased
from sb3_per.prioritization.sum_tree import IntArray

LEARNERS = {"tabular": False, "linear": True}  # whether values have a bias
SIZES, N_SEEDS = range(2, 17), 20

# Far beyond what any method needs (uniform replay some 30 million for 20 states), for one that
# would never end.
MOST_UPDATES = 200_000_000
# Uniform replay uses no TD errors, so many of its updates can be made at once.
_MANY = 4096

Method = Callable[[Learner, IntArray, np.random.Generator], None]


def updates_needed(learner: str, method: str, n: int, seed: int) -> tuple[int, bool]:
    """
    Learn once.

    :param learner: One of ``LEARNERS``.
    :param method: One of ``METHODS``.
    :param n: Number of states.
    :param seed: Seed of the replay memory's order, the initial values and the sampling; the first
        two are the same for all methods.
    :return: How many updates were made, and whether the values are right after them.
    """
    random = np.random.default_rng([n, seed])
    pupil = Learner(n, LEARNERS[learner], random)
    METHODS[method](pupil, stored_transitions(n, random), random)
    return pupil.n_updates, pupil.is_solved


def uniform(learner: Learner, kinds: IntArray, random: np.random.Generator) -> None:
    """Learn from transitions that are sampled uniformly."""
    while _goes_on(learner):
        learner.replay(kinds[random.integers(len(kinds), size=_MANY)])


def oracle(learner: Learner, kinds: IntArray, random: np.random.Generator) -> None:
    """
    Learn from the transition whose update helps most, known in hindsight.

    It looks one update ahead. With linear values it may happen that no update helps; then it gives
    up, since it would never end.
    """
    error = np.inf
    while _goes_on(learner) and learner.error < error:
        error = learner.error
        learner.replay(np.array([learner.best_kind()]))


def prioritized(
    learner: Learner,
    kinds: IntArray,
    random: np.random.Generator,
    *,
    prioritization: Callable[[int], Any],
    greedy: bool = False,
) -> None:
    """
    Learn from transitions that this library samples one by one, without weights (beta = 0).

    :param prioritization: Makes a prioritization from the number of slots.
    :param greedy: Sample with 0 instead of random numbers: with ranks, this always gives the
        largest TD error as it was last seen.
    """
    priorities = prioritization(len(kinds))
    priorities.insert(np.arange(len(kinds)))
    while _goes_on(learner):
        mass = 0.0 if greedy else random.random() * priorities.tree.total
        slots = priorities.slots_at(priorities.tree.find(np.array([mass])))
        priorities.update(slots, learner.replay(kinds[slots]))


METHODS: dict[str, Method] = {
    "uniform": uniform,
    "oracle": oracle,
    "greedy": partial(prioritized, prioritization=RankBased, greedy=True),
    "proportional_alpha0.6": partial(prioritized, prioritization=partial(Proportional, alpha=0.6)),
    "proportional_alpha1.0": partial(prioritized, prioritization=partial(Proportional, alpha=1.0)),
    "rank_alpha0.7": partial(prioritized, prioritization=partial(RankBased, alpha=0.7)),
    "rank_alpha1.0": partial(prioritized, prioritization=partial(RankBased, alpha=1.0)),
}


def _goes_on(learner: Learner) -> bool:
    return not learner.is_solved and learner.n_updates < MOST_UPDATES
