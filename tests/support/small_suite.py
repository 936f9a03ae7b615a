"""A suite whose runs take a second: PERDQN and DQN on BlindCliffwalk with three states."""

import copy

from sb3_per.compare.suite import Suite

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
