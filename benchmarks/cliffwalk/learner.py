"""Q-learning on one transition at a time, until the values are right."""

import numpy as np

from benchmarks.cliffwalk.walk import Transitions, discount, transitions, true_values
from sb3_per._utils import kernel
from sb3_per.prioritization.sum_tree import FloatArray, IntArray

LEARNING_RATE = 1 / 4
INITIAL_SPREAD = 0.1
# Mean squared error over all 2n values below which the task counts as learned.
SOLVED = 1e-3


class Learner:
    """
    Q-learning as in appendix B.1 of Schaul et al. (2016): learning rate 1/4, gamma = 1 - 1/n, all
    initial parameters from N(0, 0.1), where 0.1 is the standard deviation.

    With a table, Q(s, a) is one parameter. With linear values, the features of a state are its
    one-hot vector and a constant 1: Q(s, a) = w(s, a) + b(a), so an update of one state changes all
    other states with the same action.

    :param n: Number of states.
    :param has_bias: Whether values are linear instead of a table.
    :param random: Generator of the initial parameters.
    """

    def __init__(self, n: int, has_bias: bool, random: np.random.Generator) -> None:
        self.values = random.normal(0.0, INITIAL_SPREAD, (n, 2))
        if has_bias:
            self.values += random.normal(0.0, INITIAL_SPREAD, 2)
        self.n_updates = 0
        self._has_bias = has_bias
        self._discount = discount(n)
        self._transitions = transitions(n)
        self._truth = true_values(n)

    @property
    def error(self) -> float:
        """Return the mean squared error over all 2n values."""
        return float(_squared_error(self.values, self._truth) / self.values.size)

    @property
    def is_solved(self) -> bool:
        """Return whether the error is below 1e-3."""
        return self.error < SOLVED

    def replay(self, kinds: IntArray) -> FloatArray:
        """
        Update once for each transition, in order, until the task is solved.

        :param kinds: Kinds of transitions, shape (B,).
        :return: TD errors before each update that was made, shape (B,) or shorter.
        """
        td_errors = _replay(
            self.values, kinds, self._transitions, self._discount, self._has_bias, self._truth
        )
        self.n_updates += len(td_errors)
        return td_errors

    def best_kind(self) -> int:
        """Return the transition whose update brings the values closest to the truth."""
        return _best_kind(
            self.values, self._transitions, self._discount, self._has_bias, self._truth
        )


@kernel
def _squared_error(values: FloatArray, truth: FloatArray) -> float:
    total = 0.0
    for state in range(len(values)):
        for action in range(2):
            total += (values[state, action] - truth[state, action]) ** 2
    return total


@kernel
def _update(
    values: FloatArray, kind: int, known: Transitions, gamma: float, has_bias: bool
) -> float:
    """Update a value and return the TD error from before the update."""
    state, action = kind // 2, kind % 2
    target = known.rewards[kind]
    next_state = known.next_states[kind]
    if next_state >= 0:
        target += gamma * max(values[next_state, 0], values[next_state, 1])
    td_error = target - values[state, action]
    values[state, action] += LEARNING_RATE * td_error
    if has_bias:
        values[:, action] += LEARNING_RATE * td_error
    return float(td_error)


@kernel
def _replay(
    values: FloatArray,
    kinds: IntArray,
    known: Transitions,
    gamma: float,
    has_bias: bool,
    truth: FloatArray,
) -> FloatArray:
    td_errors = np.empty(len(kinds))
    for i in range(len(kinds)):
        td_errors[i] = _update(values, kinds[i], known, gamma, has_bias)
        if _squared_error(values, truth) < SOLVED * values.size:
            return td_errors[: i + 1]
    return td_errors


@kernel
def _best_kind(
    values: FloatArray, known: Transitions, gamma: float, has_bias: bool, truth: FloatArray
) -> int:
    best, smallest = 0, np.inf
    for kind in range(values.size):
        tried = values.copy()
        _update(tried, kind, known, gamma, has_bias)
        error = _squared_error(tried, truth)
        if error < smallest:
            best, smallest = kind, error
    return best
