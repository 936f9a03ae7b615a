"""The numbers that are compared, computed from a result file."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_per.experiments.compare.environment import FINAL_EVALUATIONS, Environment
from sb3_per.experiments.compare.suite import Cell

FloatArray = NDArray[np.float64]
# Beyond this score, a damaged file or a wrong anchor in the suite is more likely than learning: the
# episodes of the published runs lie between -28 and 11.
IMPLAUSIBLE = 100


@dataclasses.dataclass(frozen=True)
class Run:
    """
    A finished cell. Scores are returns, 0 at the suite's random policy and 1 where it is solved.

    :param result: What the worker has written.
    :param steps: Steps of its evaluations, shape (E,). Training by whole episodes continues to the
        end of an episode; later evaluations are left out.
    :param returns: Mean over the episodes of each evaluation, shape (E,).
    :param final_return: Mean of the last three of them.
    :param final: The same as a score.
    :param area: Mean score over all evaluations: since they are evenly spaced, the area under the
        learning curve in units of the whole training.
    :param reached: Steps at the first evaluation that reaches the suite's threshold, infinity if
        none does (the run is censored at its end).
    :param is_greedy: Whether evaluations do not explore; RL-Zoo decides this by environment.
    :param is_plausible: Whether no episode's score is beyond ``IMPLAUSIBLE``, on either side.
    """

    cell: Cell
    result: dict[str, Any]
    steps: NDArray[np.int64]
    returns: FloatArray
    final_return: float
    final: float
    area: float
    reached: float
    steps_per_second: float
    steps_per_cpu_second: float
    cpu_seconds: float
    is_greedy: bool
    is_plausible: bool


def run_of(cell: Cell, result: dict[str, Any], environment: Environment) -> Run:
    """
    Compute the numbers of a finished cell.

    :param result: The result that the worker has written.
    :param environment: The cell's environment in the suite.
    """
    steps = np.array(result["evaluations"]["steps"])
    in_budget = steps <= environment.steps
    steps = steps[in_budget]  # (E,)
    episodes = np.array(result["evaluations"]["returns"])  # (E, episodes)
    returns = episodes.mean(axis=1)[in_budget]  # (E,)
    zero, one = environment.score.random, environment.score.solved
    scores = (returns - zero) / (one - zero)  # (E,)
    # Rounded, so that a mean of thresholds is one, however its episodes were added.
    hits = steps[np.round(returns - environment.threshold, 9) >= 0]
    return Run(
        cell=cell,
        result=result,
        steps=steps,
        returns=returns,
        final_return=float(returns[-FINAL_EVALUATIONS:].mean()),
        # Rounded, so that equal returns are ties, whatever the order in which they were added.
        final=round(float(scores[-FINAL_EVALUATIONS:].mean()), 9),
        area=round(float(scores.mean()), 9),
        reached=float(hits[0]) if hits.size else np.inf,
        steps_per_second=result["steps_per_second"],
        steps_per_cpu_second=result["steps_per_cpu_second"],
        cpu_seconds=result["seconds"]["cpu"],
        is_greedy=result["evaluation_is_greedy"],
        is_plausible=bool((np.abs(episodes - zero) <= IMPLAUSIBLE * (one - zero)).all()),
    )


def censored_median(reached: FloatArray) -> float:
    """
    Return the median of times, of which some are only known to lie beyond the end of the run.

    All runs end at the same time, so the estimate of Kaplan and Meier (1958) is the smallest time
    that half of the runs have reached; infinity, if fewer have.

    :param reached: Infinite for censored runs, shape (n,).
    """
    return float(np.sort(reached)[(len(reached) + 1) // 2 - 1])
