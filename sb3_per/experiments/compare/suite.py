"""What is compared with what, as data that pydantic checks: environments, variants, seeds."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from sb3_per.experiments.compare.hyperparameters import (
    Hyperparameters,
    PlainValues,
    files_of_rl_zoo,
    multiplied,
    overlaid,
    sections_of_rl_zoo,
)
from sb3_per.experiments.compare.problems import Problem, Problems, refuse

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
    :param rl_zoo_file: RL-Zoo's file of hyperparameters, by the name of an algorithm.
    :param rl_zoo_section: The section of this file that completes the hyperparameters.
    :param hyperparameters: In RL-Zoo's words, complete.
    :param env_kwargs: For training and evaluation.
    """

    steps: AtLeastOne
    evaluation: Evaluation
    score: Score
    threshold: float
    rl_zoo_file: str = Field(default="dqn", exclude=True)
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

    @field_validator("rl_zoo_file")
    @classmethod
    def _check_file(cls, file: str) -> str:
        known = sorted(files_of_rl_zoo())
        rule = f"must be one of RL-Zoo's files: {', '.join(known)}, got {file!r}"
        refuse(None if file in known else Problem((), rule))
        return file

    @field_validator("rl_zoo_section")
    @classmethod
    def _check_section(cls, name: str, info: ValidationInfo) -> str:
        file = info.data.get("rl_zoo_file", "")  # missing where it is wrong, and has been refused
        known = sections_of_rl_zoo(file) if name and file else {name: {}}
        rule = f"must be one of RL-Zoo's {file}.yml: {', '.join(known)}, got {name!r}"
        refuse(None if name in known else Problem((), rule))
        return name

    @field_validator("hyperparameters")
    @classmethod
    def _complete(cls, own: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Lay the suite's values over those of RL-Zoo's section, if one is named."""
        if not {"rl_zoo_file", "rl_zoo_section"} <= info.data.keys():  # one is wrong, and refused
            return own
        name, file = info.data["rl_zoo_section"], info.data["rl_zoo_file"]
        values = overlaid(sections_of_rl_zoo(file)[name] if name else {}, own)
        if "policy" not in values:
            rule = "must hold a policy where rl_zoo_section names no section"
            refuse(Problem((), f"{rule}, got {own!r}"))
        if "evaluation" in info.data:
            _check_copies(values, info.data["evaluation"], ("n_envs",))
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
        problems: dict[Problem, None] = {}  # each of them once, not for each environment
        for name, variant in variants.items():
            for environment in environments.values():
                try:
                    _changed(environment, variant)
                except Problems as error:
                    found = [Problem((name, *each.path), each.rule) for each in error.problems]
                    problems.update(dict.fromkeys(found))
        refuse(*problems, *_equal_labels(variants))
        return variants

    @field_validator("contrasts")
    @classmethod
    def _check_contrasts(cls, contrasts: dict[str, Contrast]) -> dict[str, Contrast]:
        refuse(*_equal_labels(contrasts))
        return contrasts


def _changed(environment: Environment, variant: Variant) -> dict[str, Any]:
    """
    Return a variant's hyperparameters in an environment.

    :raises Problems: with paths that begin in the variant.
    """
    values = overlaid(environment.hyperparameters, variant.overrides, ("overrides",))
    values = multiplied(values, variant.scale, ("scale",))
    part = "scale" if "n_envs" in variant.scale else "overrides"
    _check_copies(values, environment.evaluation, (part, "n_envs"))
    return values


def _equal_labels(parts: Mapping[str, Variant] | Mapping[str, Contrast]) -> Iterator[Problem]:
    """Find labels that another variant, or another contrast, is called by, too."""
    shown = [part.label or name for name, part in parts.items()]
    for name, part in parts.items():
        if part.label and shown.count(part.label) > 1:
            yield Problem((name, "label"), f"must be the only one, got {part.label!r}")


def _check_copies(values: Mapping[str, Any], evaluation: Evaluation, path: tuple[str, ...]) -> None:
    """Refuse ``n_envs`` copies where ``every // n_envs`` steps of all of them are not ``every``."""
    n_envs, every = values.get("n_envs", 1), evaluation.every
    if not (type(n_envs) is int and n_envs > 0 and every % n_envs == 0):
        refuse(Problem(path, f"must go into evaluation.every ({every}), got {n_envs!r}"))


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
    return {
        "variant": variant_name,
        "environment": environment_name,
        "algorithm": variant.algorithm,
        "steps": environment.steps,
        "evaluation": environment.evaluation.model_dump(),
        "env_kwargs": environment.env_kwargs,
        "hyperparameters": _changed(environment, variant),
    }


def gym_id(environment: str) -> str:
    """Return what ``module:Name-v0`` is called in gymnasium's registry: ``Name-v0``."""
    return environment.rpartition(":")[2]
