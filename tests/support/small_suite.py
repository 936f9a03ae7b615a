"""A suite whose runs take a second: PERDQN and DQN on BlindCliffwalk with three states."""

import copy

from sb3_per.compare.results import Results
from sb3_per.compare.suite import Suite, runs_of

# Minutes of training.
LONG = {"steps": 900_000, "evaluation": {"every": 300_000, "episodes": 2}}
ENVIRONMENT = "benchmarks.environments:sb3_per/BlindCliffwalk-v0"
VALUES = {
    "name": "small",
    "seeds": 2,
    "baseline": "dqn",
    "environments": {
        ENVIRONMENT: {
            "env_kwargs": {"n": 3},
            "hyperparameters": {
                "policy": "MlpPolicy",
                "buffer_size": 500,
                "learning_starts": 20,
                "policy_kwargs": {"net_arch": [16]},
            },
            "steps": 90,
            "evaluation": {"every": 30, "episodes": 2},
            "threshold": 1.0,
        }
    },
    "variants": {"dqn": {"algorithm": "dqn"}, "per": {"algorithm": "per_dqn", "label": "PERDQN"}},
}


def values(**changes):
    return {**copy.deepcopy(VALUES), **changes}


def suite(**changes):
    return Suite.model_validate(values(**changes))


def of_environment(**changes):
    changed = values()
    changed["environments"][ENVIRONMENT].update(changes)
    return changed


def result(returns):
    """A result with three evaluations of two episodes, whose means are the returns."""
    return {
        "steps": [30, 60, 90],
        "returns": [[value - 1, value + 1] for value in returns],
        "trained": 90,
        "greedy": True,
        "seconds": {"wall": 3.0, "cpu": 2.0, "training_wall": 2.0, "training_cpu": 1.0},
        "versions": {"torch": "2.0"},
    }


def results(returns, seeds=5, **changes):
    """Return results of the small suite: ``returns(variant, environment, seed)`` of each run."""
    declared = suite(seeds=seeds, **changes)
    runs = runs_of(declared)
    found = [(run, returns(run.variant, run.environment, run.seed)) for run in runs]
    finished = [(run, result(returns)) for run, returns in found if returns is not None]
    return Results(declared, finished, [run for run, returns in found if returns is None])
