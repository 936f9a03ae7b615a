"""BlindCliffwalk as learners see it: the stored transitions, and the values to be learned."""

from typing import NamedTuple

import numpy as np

from benchmarks.environments import outcome, right_action
from sb3_per.prioritization.sum_tree import FloatArray, IntArray


class Transitions(NamedTuple):
    """
    The 2n transitions that differ, by kind: ``2 * state + action``. A replay memory of
    2^(n+1) - 2 transitions holds nothing else.
    """

    rewards: FloatArray  # (2n,)
    next_states: IntArray  # (2n,), -1 where the episode ends


def transitions(n: int) -> Transitions:
    """Return the next state and the reward of each state and action of a walk of n states."""
    outcomes = [outcome(n, kind // 2, kind % 2) for kind in range(2 * n)]
    next_states = [-1 if next_state is None else next_state for next_state, _ in outcomes]
    return Transitions(
        rewards=np.array([reward for _, reward in outcomes], dtype=np.float64),
        next_states=np.array(next_states, dtype=np.int64),
    )


def stored_transitions(n: int, random: np.random.Generator) -> IntArray:
    """
    Return what a replay memory holds after all 2^n action sequences, each run until the episode
    ends, in random order (Schaul et al. 2016, appendix B.1).

    :return: The kind of each transition, shape (2^(n+1) - 2,); exactly one is rewarded.
    """
    sequences = random.permutation(2**n)
    is_wrong = (sequences[:, None] >> np.arange(n)) & 1  # (2^n, n)
    is_reached = np.cumsum(is_wrong, axis=1) == is_wrong
    states = np.broadcast_to(np.arange(n), is_reached.shape)[is_reached]
    right = np.array([right_action(state) for state in range(n)])
    actions = right[states] ^ is_wrong[is_reached]
    kinds: IntArray = 2 * states + actions
    return kinds


def discount(n: int) -> float:
    """Return gamma, which keeps the values on one scale whatever n is (appendix B.1)."""
    return 1 - 1 / n


def true_values(n: int) -> FloatArray:
    """Return the optimal Q of every state and action, shape (n, 2)."""
    values = np.zeros((n, 2))
    for state in range(n):
        values[state, right_action(state)] = discount(n) ** (n - 1 - state)
    return values
