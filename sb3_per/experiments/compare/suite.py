"""A suite as data that pydantic checks: environments, variants, comparisons and seeds."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from sb3_per.experiments.compare.environment import AtLeastOne, Environment, Section, check_copies
from sb3_per.experiments.compare.hyperparameters import Hyperparameters, multiplied, overlaid
from sb3_per.experiments.compare.problems import Problem, Problems, refuse
from sb3_per.rules import require


def _folder_name(name: str) -> str:
    """Return the name of a variant, which gets a folder next to the report's."""
    is_good = re.fullmatch(r"[^\W_][\w.+-]*", name) and name not in ("report", "suite.yml")
    rule = "must be named by letters, digits and _.+-, a letter or digit first, and not"
    require(bool(is_good), f"{rule} report or suite.yml", name)
    return name


def _known_variant(name: str, info: ValidationInfo) -> str:
    """Return a name that one of the file's variants has; the variant may have other problems."""
    known = (info.context or {}).get("variants") or [name]
    require(name in known, f"must be one of the variants {', '.join(map(str, known))}", name)
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]
VariantName = Annotated[str, AfterValidator(_known_variant)]


class Variant(Section):
    """
    The settings in which a variant differs.

    :param algorithm: RL-Zoo's name of the algorithm.
    :param label: Its name in tables and figures; empty for its key.
    :param overrides: Hyperparameters that replace the environment's; mappings are merged by key.
    :param scale: Factors of hyperparameters, which are multiplied after that.
    """

    algorithm: str
    label: str = ""
    overrides: Hyperparameters = Field(default_factory=dict)
    scale: Hyperparameters = Field(default_factory=dict)


class Contrast(Section):
    """
    A variant, and the variant that it adds something to.

    :param label: Its name in tables and figures; empty for its key.
    """

    variant: VariantName
    over: VariantName
    label: str = ""

    @field_validator("over")
    @classmethod
    def _check_over(cls, over: str, info: ValidationInfo) -> str:
        require(over != info.data.get("variant"), "must be another variant", over)
        return over


class Suite(Section):
    """
    A grid of cells: every variant in every environment with every seed.

    :param baseline: The variant with which the others are compared.
    :param contrasts: Further comparisons, named after what the variant adds.
    """

    name: str
    about: str
    seeds: AtLeastOne
    first_seed: Annotated[int, Field(ge=0)] = 0
    baseline: VariantName
    environments: Annotated[dict[str, Environment], Field(min_length=1)]
    variants: Annotated[dict[FolderName, Variant], Field(min_length=1)]
    contrasts: dict[str, Contrast] = Field(default_factory=dict)

    @property
    def all_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def variant_label(self, name: str) -> str:
        """Return the name of a variant in tables and figures."""
        return self.variants[name].label or name

    @property
    def baseline_label(self) -> str:
        return self.variant_label(self.baseline)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        is_good = name not in ("", ".", "..") and {*name}.isdisjoint("/\\\0")
        require(is_good, "must do as the name of a folder", name)
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
    check_copies(values, environment.evaluation, (part, "n_envs"))
    return values


def _equal_labels(parts: Mapping[str, Variant] | Mapping[str, Contrast]) -> Iterator[Problem]:
    """Find labels that several variants or several contrasts share."""
    shown = [part.label or name for name, part in parts.items()]
    for name, part in parts.items():
        if part.label and shown.count(part.label) > 1:
            yield Problem((name, "label"), f"must be the only one, got {part.label!r}")


class Cell(NamedTuple):
    """
    One training run. It depends only on its settings, which follow from the suite.

    :param settings: The settings that a result file repeats, of the types that JSON knows.
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
