"""A suite: the variants, environments and seeds of a comparison, as data that pydantic checks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    StringConstraints,
    model_validator,
)
from stable_baselines3.common.preprocessing import is_image_space

from sb3_per import options, zoo
from sb3_per._utils import require_one_of
from sb3_per.algorithms import ALGORITHMS
from sb3_per.algorithms.networks import Parts

FINAL_EVALUATIONS = 3  # the last ones, whose mean is a run's final return
N_EVALUATIONS = 20  # of a run that the command line describes
# Of ``sb3_per.options``, where their names have capitals.
NAMED_SETTINGS = ("paper", "rainbow", "half_uniform", "full_correction", "lap")
EPSILON = tuple(f"exploration_{name}" for name in ("fraction", "initial_eps", "final_eps"))
EVALUATED = ("policy_kwargs", "replay_buffer_kwargs", "normalize", "monitor_kwargs")  # by RL-Zoo
FolderName = Annotated[str, StringConstraints(pattern=r"^\w[\w.+-]*$")]


class Section(BaseModel):
    """A part of a suite: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Evaluation(Section):
    """The evaluations of a run."""

    every: PositiveInt  # training steps from one evaluation to the next
    episodes: PositiveInt  # of each evaluation
    greedy: bool = False  # everywhere; RL-Zoo's evaluations explore on Atari and MiniGrid


class Score(Section):
    """The returns at which normalized scores are 0 and 1."""

    random: float  # mean return of a random policy
    solved: float
    source: str = ""  # where both numbers come from

    @model_validator(mode="after")
    def _check_order(self) -> Score:
        if self.solved <= self.random:
            raise ValueError(f"solved must be above random ({self.random}), got {self.solved}")
        return self


class Environment(Section):
    """
    The settings that all variants share in one environment.

    ``rl_zoo_section`` fills in the hyperparameters of a section of ``rl_zoo_file``, a YAML file of
    RL-Zoo or one of ours.
    """

    steps: PositiveInt  # of training, in a run
    evaluation: Evaluation
    score: Score | None = None  # needed only if a suite has several environments
    threshold: float | None = None  # the report says when runs reach this return
    hyperparameters: dict[str, Any] = {}  # under RL-Zoo's names
    env_kwargs: dict[str, Any] = {}  # of ``gymnasium.make``, for training and evaluation

    @model_validator(mode="before")
    @classmethod
    def _fill_in_rl_zoo(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "rl_zoo_section" not in values:
            return values
        rest = dict(values)
        file, name = rest.pop("rl_zoo_file", "dqn"), rest.pop("rl_zoo_section")
        section = sections_of(file).get(name)
        if section is None:
            raise ValueError(f"rl_zoo_section must be in {file}.yml, got {name!r}")
        rest["hyperparameters"] = merged(section, rest.get("hyperparameters") or {})
        return rest

    @model_validator(mode="after")
    def _check_evaluation(self) -> Environment:
        every = self.evaluation.every
        if self.steps % every:
            raise ValueError(f"evaluation.every must divide steps ({self.steps}), got {every}")
        return self


class Variant(Section):
    """What sets a variant apart from the others."""

    algorithm: str  # RL-Zoo's name
    label: str = ""  # in tables and figures; empty for its key
    overrides: dict[str, Any] = {}  # they replace the environment's; mappings are merged by key
    scale: dict[str, float] = {}  # factors of hyperparameters, which are multiplied after that
    seeds: PositiveInt | None = None  # only the suite's first ones; None for all


class Contrast(Section):
    """A comparison of a variant with another one than the baseline."""

    variant: str
    over: str
    label: str = ""  # in tables; empty for its key


class Suite(Section):
    """A comparison: every variant is trained in every environment with every seed."""

    name: FolderName
    about: str = ""
    seeds: PositiveInt
    first_seed: Annotated[int, Field(ge=0)] = 0
    baseline: str  # the variant with which the others are compared
    environments: Annotated[dict[str, Environment], Field(min_length=1)]
    variants: Annotated[dict[FolderName, Variant], Field(min_length=1)]
    contrasts: dict[str, Contrast] = {}  # further comparisons of two variants

    @model_validator(mode="after")
    def _check_names(self) -> Suite:
        pairs = [name for pair in self.contrasts.values() for name in (pair.variant, pair.over)]
        unknown = [name for name in (self.baseline, *pairs) if name not in self.variants]
        if unknown:
            known = ", ".join(self.variants)
            raise ValueError(f"there is no variant {', '.join(unknown)}: the variants are {known}")
        labels = [self.label(name) for name in self.variants]
        if len({*labels}) < len(labels):
            raise ValueError(f"labels of variants must be different, got {', '.join(labels)}")
        unscaled = [name for name, env in self.environments.items() if env.score is None]
        if unscaled and len(self.environments) > 1:
            raise ValueError(f"several environments need a score: {', '.join(unscaled)} has none")
        return self

    @model_validator(mode="after")
    def _check_hyperparameters(self) -> Suite:
        for environment in self.environments.values():
            for variant in self.variants.values():
                values = hyperparameters(environment, variant)
                for name, value in values.items():
                    zoo.refuse_number_as_text(name, value)
                    if isinstance(value, float) and not math.isfinite(value):  # JSON has none
                        raise ValueError(f"{name} must be finite, got {value}")
                if "n_timesteps" in values:
                    raise ValueError("write steps of the environment, not n_timesteps")
                if "env_kwargs" in values:  # RL-Zoo does not pass them to the evaluations
                    raise ValueError("env_kwargs belong to the environment, not to hyperparameters")
                every, n_envs = environment.evaluation.every, values.get("n_envs", 1)
                if every % n_envs:
                    raise ValueError(f"n_envs must divide evaluation.every ({every}), got {n_envs}")
        return self

    def label(self, variant: str) -> str:
        """Return the name of a variant in tables and figures."""
        return self.variants[variant].label or variant


class Run(NamedTuple):
    """One training run. It depends only on its settings."""

    variant: str
    environment: str
    seed: int
    settings: dict[str, Any]  # as its result repeats them, in the types that JSON knows

    def __str__(self) -> str:
        return f"{self.variant}, {self.environment}, seed {self.seed}"


def runs_of(suite: Suite) -> list[Run]:
    """Return all runs: seed by seed, and within a seed variant by variant."""
    return [
        Run(name, environment, seed, _settings(suite, name, environment, seed))
        for seed in range(suite.first_seed, suite.first_seed + suite.seeds)
        for name, variant in suite.variants.items()
        for environment in suite.environments
        if seed - suite.first_seed < (variant.seeds or suite.seeds)
    ]


def _settings(suite: Suite, name: str, environment: str, seed: int) -> dict[str, Any]:
    shared, variant = suite.environments[environment], suite.variants[name]
    settings = {
        "variant": name,
        "environment": environment,
        "algorithm": variant.algorithm,
        "steps": shared.steps,
        "evaluation": shared.evaluation.model_dump(exclude_defaults=True),
        "env_kwargs": shared.env_kwargs,
        "hyperparameters": hyperparameters(shared, variant),
        "seed": seed,
    }
    return dict(json.loads(json.dumps(settings, allow_nan=False)))  # as results are stored


def hyperparameters(environment: Environment, variant: Variant) -> dict[str, Any]:
    """Return the hyperparameters of a variant in an environment."""
    values = merged(environment.hyperparameters, variant.overrides)
    for key, factor in variant.scale.items():
        value = values.get(key)
        if not isinstance(value, int | float):
            raise ValueError(f"scale needs a number, but {key} is {value!r}")
        values[key] = round(value * factor) if isinstance(value, int) else value * factor
    return values


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return ``base`` with the values of ``top``; mappings are merged key by key.

    RL-Zoo's sections may have text such as ``dict(net_arch=[64])``, which RL-Zoo evaluates. Merged
    with a mapping, it stays text; values of the mapping's keys are replaced as a whole.
    """
    result = dict(base)
    for key, value in top.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = merged(before, value)
        elif key in EVALUATED and {type(before), type(value)} == {str, dict}:
            value = f"{{**{before}, **{value}}}"
        result[key] = value
    return result


def sections_of(file: str) -> dict[str, dict[str, Any]]:
    """Return the hyperparameters in ``file.yml``, RL-Zoo's and ours, by environment."""
    sections: dict[str, dict[str, Any]] = {}
    for path in (zoo.rl_zoo_file(file), zoo.config_folder() / f"{file}.yml"):
        if path.is_file():
            sections |= yaml.safe_load(path.read_text(encoding="utf-8"))
    for section in sections.values():
        section.pop("n_timesteps", None)
    return sections


def load(path: Path) -> Suite:
    """Read a suite from a YAML file; the file's name is the default of its name."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if isinstance(values, dict):
        values = {"name": path.stem, **values}
    return Suite.model_validate(values)


def as_yaml(suite: Suite) -> str:
    """Return a suite as text that ``load`` reads, with every hyperparameter spelled out."""
    values = suite.model_dump(mode="json", exclude_defaults=True)
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def from_options(environment: str, algorithms: Sequence[str], steps: int, seeds: int) -> Suite:
    """
    Return a suite of algorithms in one environment; the first algorithm is the baseline.

    All have the same hyperparameters, which ``about`` names: a section of RL-Zoo's file for the
    first algorithm (or for the one that it extends) or of our files, else SB3's defaults.

    :param algorithms: RL-Zoo's names. ``per_dqn:paper`` takes the settings ``PAPER`` of
        ``sb3_per.options`` instead of the algorithm's defaults.
    """
    if steps % N_EVALUATIONS:
        raise ValueError(f"--steps must be a multiple of {N_EVALUATIONS}, got {steps}")
    variants = dict(map(_variant, algorithms))
    if len(variants) < len(algorithms):
        raise ValueError(f"--algos must be different, got {' '.join(algorithms)}")
    baseline = next(iter(variants))
    env = gym.make(environment)
    env.close()
    spec: Any = env.spec  # with the newest version, if the user has named none
    module = environment.rpartition(":")[0]
    about, values = _shared_values(env, variants[baseline]["algorithm"])
    about += _limit_warm_up(values, steps) + _set_support(variants, spec.id)
    return Suite.model_validate(
        {
            "name": "_".join([spec.id.replace("/", "-"), *variants]),
            "about": f"Hyperparameters: {about}.",
            "seeds": seeds,
            "baseline": baseline,
            "environments": {
                f"{module}:{spec.id}" if module else spec.id: {
                    "steps": steps,
                    "evaluation": {"every": steps // N_EVALUATIONS, "episodes": 10},
                    "threshold": spec.reward_threshold,
                    "hyperparameters": values,
                }
            },
            "variants": variants,
        }
    )


def _shared_values(env: gym.Env[Any, Any], algorithm: str) -> tuple[str, dict[str, Any]]:
    """Return hyperparameters that fit an environment and any algorithm, and where they are from."""
    spec: Any = env.spec
    family = re.split("[-/]", spec.id)[0]
    is_atari = "AtariEnv" in str(spec.entry_point)
    base = zoo.BASES.get(algorithm, algorithm)
    for file in (base, f"per_{base}"):
        sections = sections_of(file)
        related = (name for name in sections if re.match(f"{family}[-/]", name))
        name = spec.id if spec.id in sections else "atari" if is_atari else next(related, None)
        if name is not None:
            return f"the section {name} of {file}.yml", dict(sections[name])
    policy = _policy_for(env.observation_space)
    return f"SB3's defaults with {policy}, since no section of {base}.yml fits", {"policy": policy}


def _limit_warm_up(values: dict[str, Any], steps: int) -> str:
    """Let learning start after a tenth of the steps at the latest; say so."""
    if values.get("learning_starts", 0) <= steps // 10:
        return ""
    values["learning_starts"] = steps // 10
    return f"; learning starts after {steps // 10:,} steps"


def _set_support(variants: Mapping[str, dict[str, Any]], environment: str) -> str:
    """Give Rainbow the support of its own section, which the returns decide; say what it is."""
    rainbows = [v["overrides"] for v in variants.values() if v["algorithm"] == "rainbow"]
    own = sections_of("rainbow").get(environment, {}).get("policy_kwargs", {})
    if not rainbows:
        return ""
    if "v_min" not in own:
        limits = f"from {Parts.v_min} to {Parts.v_max}"
        return f"; Rainbow's support is its default, {limits}: if returns differ, write a suite"
    for overrides in rainbows:
        overrides["policy_kwargs"] = {name: own[name] for name in ("v_min", "v_max")}
    return f"; Rainbow's support is rainbow.yml's, from {own['v_min']} to {own['v_max']}"


def _variant(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of ``per_dqn`` or ``per_dqn:paper``."""
    algorithm, _, setting = text.partition(":")
    ours = ALGORITHMS.get(algorithm)
    label = ours.__name__ if ours else algorithm.upper()
    # The hyperparameters are DQN's, whose epsilon Rainbow's noisy layers replace.
    overrides: dict[str, Any] = dict.fromkeys(EPSILON) if algorithm == "rainbow" else {}
    if not setting:
        return algorithm, {"algorithm": algorithm, "label": label, "overrides": overrides}
    require_one_of(f"the settings in {text!r}", setting.lower(), NAMED_SETTINGS)
    overrides["replay_buffer_kwargs"] = dict(getattr(options, setting.upper()))
    label = f"{label}:{setting}"
    name = f"{algorithm}-{setting}"
    return name, {"algorithm": algorithm, "label": label, "overrides": overrides}


def _policy_for(space: gym.Space[Any]) -> str:
    if isinstance(space, gym.spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"


def gym_id(environment: str) -> str:
    """Return what ``module:Name-v0`` is called in gymnasium's registry: ``Name-v0``."""
    return environment.rpartition(":")[2]
