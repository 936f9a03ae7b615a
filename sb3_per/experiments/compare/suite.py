"""What is compared with what, as data that pydantic checks: environments, variants, seeds."""

import importlib.util
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from sb3_per.experiments.compare.hyperparameters import (
    Hyperparameters,
    PlainValues,
    UnreadableText,
    overlaid,
    scale_problem,
    scaled,
)
from sb3_per.experiments.compare.problems import Problem, refuse

FINAL_EVALUATIONS = 3  # how many evaluations, the last ones, make a run's final score


def _folder_name(name: str) -> str:
    """Return the name of a variant, which gets a folder next to the report's."""
    is_good = re.fullmatch(r"[^\W_][\w.+-]*", name) and name not in ("report", "suite.yml")
    rule = "must be named by letters, digits and _.+-, a letter or digit first, and not"
    refuse(None if is_good else Problem((), f"{rule} report or suite.yml, got {name!r}"))
    return name


AtLeastOne = Annotated[int, Field(ge=1)]
FolderName = Annotated[str, AfterValidator(_folder_name)]


class Section(BaseModel):
    """A part of a suite: no unknown keys, no conversions (text is not a number)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Evaluation(Section):
    """
    When and how long a run is evaluated.

    :param every: Training steps from one evaluation to the next; divides the steps of a run.
    :param episodes: In each evaluation.
    """

    every: AtLeastOne
    episodes: AtLeastOne


class Score(Section):
    """
    Where normalised scores are 0 and 1.

    :param random: Mean return of a random policy.
    :param solved: Return that counts as solved, larger.
    :param source: Where both come from.
    """

    random: float
    solved: float
    source: str

    @field_validator("solved")
    @classmethod
    def _check_solved(cls, solved: float, info: ValidationInfo) -> float:
        random = info.data.get("random", -math.inf)
        rule = f"must be larger than random ({random}), got {solved!r}"
        refuse(None if solved > random else Problem((), rule))
        return solved


class Environment(Section):
    """
    What all variants share in one environment.

    :param steps: Training steps of a run.
    :param threshold: A run has reached it at the first evaluation whose mean return is as large.
    :param rl_zoo_section: The section of RL-Zoo's ``dqn.yml`` that completes the hyperparameters.
    :param hyperparameters: In RL-Zoo's words, complete.
    :param env_kwargs: For training and evaluation.
    """

    steps: AtLeastOne
    evaluation: Evaluation
    score: Score
    threshold: float
    rl_zoo_section: str = Field(default="", exclude=True)
    hyperparameters: Hyperparameters = Field(default={}, validate_default=True)
    env_kwargs: PlainValues = {}

    @field_validator("evaluation")
    @classmethod
    def _check_evaluation(cls, evaluation: Evaluation, info: ValidationInfo) -> Evaluation:
        every, steps = evaluation.every, info.data.get("steps")
        if steps is not None and (steps % every or steps // every < FINAL_EVALUATIONS):
            rule = f"must go into steps ({steps}) {FINAL_EVALUATIONS} times or more, evenly"
            refuse(Problem(("every",), f"{rule}, got {every}"))
        return evaluation

    @field_validator("rl_zoo_section")
    @classmethod
    def _check_section(cls, name: str) -> str:
        known = _sections_of_rl_zoo() if name else {name: {}}
        rule = f"must be one of RL-Zoo's dqn.yml: {', '.join(known)}, got {name!r}"
        refuse(None if name in known else Problem((), rule))
        return name

    @field_validator("hyperparameters")
    @classmethod
    def _complete(cls, own: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Lay the suite's values over those of RL-Zoo's section, if one is named."""
        if "rl_zoo_section" not in info.data:  # it is wrong, and has been refused
            return own
        name = info.data["rl_zoo_section"]
        below = _sections_of_rl_zoo()[name] if name else {}
        refuse(_overlay_problem(below, own))
        values = overlaid(below, own)
        rule = "must hold a policy where rl_zoo_section names no section"
        problem = None if "policy" in values else Problem((), f"{rule}, got {own!r}")
        refuse(problem, _copies_problem(values, info.data.get("evaluation")))
        return {key: value for key, value in values.items() if key != "n_timesteps"}


class Variant(Section):
    """
    What differs.

    :param algorithm: RL-Zoo's name of it.
    :param label: What tables and figures call it; empty for its key.
    :param overrides: Laid over the environment's hyperparameters, mappings key by key.
    :param scale: Hyperparameters that are multiplied, after that.
    """

    algorithm: str
    label: str = ""
    overrides: Hyperparameters = {}
    scale: Hyperparameters = {}


class Contrast(Section):
    """
    A variant, and the one that it adds something to.

    :param label: What tables and figures call it; empty for its key.
    """

    variant: str
    over: str
    label: str = ""


class Suite(Section):
    """
    A grid of cells: every variant in every environment with every seed.

    :param baseline: The variant that the others are compared with.
    :param contrasts: Further comparisons, by what the variant adds.
    """

    name: str
    about: str
    seeds: AtLeastOne
    first_seed: Annotated[int, Field(ge=0)] = 0
    baseline: str
    environments: Annotated[dict[str, Environment], Field(min_length=1)]
    variants: Annotated[dict[FolderName, Variant], Field(min_length=1)]
    contrasts: dict[str, Contrast] = {}

    @property
    def all_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def variant_label(self, name: str) -> str:
        """Return what tables and figures call a variant."""
        return self.variants[name].label or name

    @property
    def baseline_label(self) -> str:
        return self.variant_label(self.baseline)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        is_good = name not in ("", ".", "..") and {*name}.isdisjoint("/\\\0")
        rule = f"must do as the name of a folder, got {name!r}"
        refuse(None if is_good else Problem((), rule))
        return name

    @field_validator("environments")
    @classmethod
    def _check_ids(cls, environments: dict[str, Environment]) -> dict[str, Environment]:
        ids = [gym_id(name) for name in environments]
        twice = [name for name in environments if ids.count(gym_id(name)) > 1]
        refuse(*(Problem((name,), f"must be the only {gym_id(name)}") for name in twice))
        return environments

    @field_validator("variants")
    @classmethod
    def _check_variants(
        cls, variants: dict[str, Variant], info: ValidationInfo
    ) -> dict[str, Variant]:
        """Refuse overrides and factors that cannot be laid over an environment's values."""
        environments: dict[str, Environment] = info.data.get("environments", {})
        problems = {
            Problem((name, *problem.path), problem.rule): None  # once, not for each environment
            for name, variant in variants.items()
            for environment in environments.values()
            for problem in _variant_problems(variant, environment)
        }
        refuse(*problems, *_equal_labels(variants))
        return variants

    @field_validator("contrasts")
    @classmethod
    def _check_contrasts(cls, contrasts: dict[str, Contrast]) -> dict[str, Contrast]:
        refuse(*_equal_labels(contrasts))
        return contrasts


def section_at(path: Sequence[str]) -> type[Section]:
    """Return the class of a part of a suite, by the keys that lead there."""
    parts: dict[str, type[Section]] = {
        "environments": Environment,
        "variants": Variant,
        "contrasts": Contrast,
        "evaluation": Evaluation,
        "score": Score,
    }
    return parts[path[2 if len(path) > 2 else 0]] if path else Suite


def _variant_problems(variant: Variant, environment: Environment) -> Iterator[Problem]:
    problem = _overlay_problem(environment.hyperparameters, variant.overrides)
    if problem is not None:
        yield Problem(("overrides", *problem.path), problem.rule)
        return
    values = overlaid(environment.hyperparameters, variant.overrides)
    for name, factor in variant.scale.items():
        rule = scale_problem(name, factor, values.get(name))
        if rule is None:
            values[name] = scaled(values[name], factor)
        else:
            yield Problem(("scale", name), rule)
    problem = _copies_problem(values, environment.evaluation)
    if problem is not None:
        part = "scale" if "n_envs" in variant.scale else "overrides"
        yield Problem((part, *problem.path), problem.rule)


def _equal_labels(parts: Mapping[str, Variant] | Mapping[str, Contrast]) -> Iterator[Problem]:
    """Find labels that another variant, or another contrast, is called by, too."""
    shown = [part.label or name for name, part in parts.items()]
    for name, part in parts.items():
        if part.label and shown.count(part.label) > 1:
            yield Problem((name, "label"), f"must be the only one, got {part.label!r}")


def _overlay_problem(base: Mapping[str, Any], top: Mapping[str, Any]) -> Problem | None:
    try:
        overlaid(base, top)
    except UnreadableText as error:
        return Problem((), f"must not replace text by a mapping: {error}")
    return None


def _copies_problem(values: Mapping[str, Any], evaluation: Evaluation | None) -> Problem | None:
    """Evaluations come every ``every // n_envs`` steps of all copies, which must be on time."""
    n_envs = values.get("n_envs", 1)
    if evaluation is None or (
        type(n_envs) is int and n_envs > 0 and evaluation.every % n_envs == 0
    ):
        return None
    return Problem(
        ("n_envs",), f"must go into evaluation.every ({evaluation.every}), got {n_envs!r}"
    )


def _sections_of_rl_zoo() -> dict[str, dict[str, Any]]:
    spec = importlib.util.find_spec("rl_zoo3")  # finds it without an import
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        text = Path(folder, "hyperparams", "dqn.yml").read_text(encoding="utf-8")
        return dict(yaml.safe_load(text))
    return {}


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
    """Return the grid, seed by seed, so that what is done at any time is balanced."""
    return [
        Cell(variant, environment, seed, _settings(suite, variant, environment) | {"seed": seed})
        for seed in suite.all_seeds
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
        "evaluation": environment.evaluation.model_dump(),
        "env_kwargs": environment.env_kwargs,
        "hyperparameters": hyperparameters,
    }


def gym_id(environment: str) -> str:
    """Return what ``module:Name-v0`` is called in gymnasium's registry: ``Name-v0``."""
    return environment.rpartition(":")[2]
