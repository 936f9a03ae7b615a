"""What is compared with what, as data: environments, variants, seeds."""

import dataclasses
from typing import Any, NamedTuple

from sb3_per.experiments.compare.overlay import overlaid, scaled


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """
    :param every: Training steps from one evaluation to the next; divides the steps of a run.
    :param episodes: In each evaluation.
    """

    every: int
    episodes: int


@dataclasses.dataclass(frozen=True)
class Score:
    """
    Where normalised scores are 0 and 1.

    :param random: Mean return of a random policy.
    :param solved: Return that counts as solved, larger.
    :param source: Where both come from.
    """

    random: float
    solved: float
    source: str


@dataclasses.dataclass(frozen=True)
class Environment:
    """
    What all variants share in one environment.

    :param steps: Training steps of a run.
    :param threshold: A run has reached it at the first evaluation whose mean return is as large.
    :param hyperparameters: In RL-Zoo's words, whole.
    :param env_kwargs: For training and evaluation.
    """

    steps: int
    evaluation: Evaluation
    score: Score
    threshold: float
    hyperparameters: dict[str, Any]
    env_kwargs: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Variant:
    """
    What differs.

    :param algorithm: RL-Zoo's name of it.
    :param overrides: Laid over the environment's hyperparameters, mappings key by key.
    :param scale: Hyperparameters that are multiplied, after that.
    """

    algorithm: str
    overrides: dict[str, Any]
    scale: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Contrast:
    """A variant beside the one that it adds something to."""

    variant: str
    over: str


@dataclasses.dataclass(frozen=True)
class Suite:
    """
    A grid of cells: every variant in every environment with every seed from 0 to ``seeds`` - 1.

    :param baseline: The variant that the others are compared with.
    :param contrasts: Further comparisons, by what the variant adds.
    """

    name: str
    about: str
    seeds: int
    baseline: str
    environments: dict[str, Environment]
    variants: dict[str, Variant]
    contrasts: dict[str, Contrast] = dataclasses.field(default_factory=dict)


class Cell(NamedTuple):
    """
    One training run. Its settings follow from the suite, and are all that it depends on.

    :param settings: What a result file repeats, of the types that JSON knows.
    """

    variant: str
    environment: str
    seed: int
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.variant}, {self.environment}, seed {self.seed}"


def cells(suite: Suite) -> list[Cell]:
    """:return: The grid, seed by seed, so that what is done at any time is balanced."""
    return [
        Cell(variant, environment, seed, _settings(suite, variant, environment) | {"seed": seed})
        for seed in range(suite.seeds)
        for environment in suite.environments
        for variant in suite.variants
    ]


def _settings(suite: Suite, variant_name: str, environment_name: str) -> dict[str, Any]:
    environment = suite.environments[environment_name]
    variant = suite.variants[variant_name]
    hyperparameters = overlaid(environment.hyperparameters, variant.overrides)
    for name, factor in variant.scale.items():
        hyperparameters[name] = scaled(hyperparameters[name], factor)
    return {
        "variant": variant_name,
        "environment": environment_name,
        "algorithm": variant.algorithm,
        "steps": environment.steps,
        "evaluation": dataclasses.asdict(environment.evaluation),
        "env_kwargs": environment.env_kwargs,
        "hyperparameters": hyperparameters,
    }


def gym_id(environment: str) -> str:
    """:return: What ``module:Name-v0`` is called in gymnasium's registry: ``Name-v0``."""
    return environment.rpartition(":")[2]
