"""The settings that all variants of a suite share in one environment, checked by pydantic."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from sb3_per.experiments.compare.hyperparameters import (
    Hyperparameters,
    PlainValues,
    files_of_rl_zoo,
    overlaid,
    sections_of_rl_zoo,
)
from sb3_per.experiments.compare.problems import Problem, refuse
from sb3_per.rules import require

FINAL_EVALUATIONS = 3  # how many evaluations, the last ones, make a run's final score
AtLeastOne = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of a suite: no unknown keys, no conversions (text is not a number)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Evaluation(Section):
    """
    The evaluations of a run.

    :param every: Training steps from one evaluation to the next; divides the steps of a run.
    :param episodes: Episodes of each evaluation.
    """

    every: AtLeastOne
    episodes: AtLeastOne


class Score(Section):
    """
    The returns at which normalised scores are 0 and 1.

    :param random: Mean return of a random policy.
    :param solved: Return that counts as solved, larger.
    :param source: The source of both numbers.
    """

    random: float
    solved: float
    source: str

    @field_validator("solved")
    @classmethod
    def _check_solved(cls, solved: float, info: ValidationInfo) -> float:
        random = info.data.get("random", -math.inf)
        require(solved > random, f"must be larger than random ({random})", solved)
        return solved


class Environment(Section):
    """
    The settings that all variants share in one environment.

    :param steps: Training steps of a run.
    :param threshold: A run reaches it at the first evaluation with at least this mean return.
    :param rl_zoo_file: RL-Zoo's file of hyperparameters, by the name of an algorithm.
    :param rl_zoo_section: The section of this file that completes the hyperparameters.
    :param hyperparameters: All hyperparameters, under RL-Zoo's names.
    :param env_kwargs: Arguments of the environments for training and evaluation.
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
        require(file in known, f"must be one of RL-Zoo's files: {', '.join(known)}", file)
        return file

    @field_validator("rl_zoo_section")
    @classmethod
    def _check_section(cls, name: str, info: ValidationInfo) -> str:
        file = info.data.get("rl_zoo_file", "")  # missing where it is wrong, and has been refused
        known = sections_of_rl_zoo(file) if name and file else {name: {}}
        require(name in known, f"must be one of RL-Zoo's {file}.yml: {', '.join(known)}", name)
        return name

    @field_validator("hyperparameters")
    @classmethod
    def _complete(cls, own: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Lay the suite's values over those of RL-Zoo's section, if one is named."""
        if not {"rl_zoo_file", "rl_zoo_section"} <= info.data.keys():  # one is wrong, and refused
            return own
        name, file = info.data["rl_zoo_section"], info.data["rl_zoo_file"]
        values = overlaid(sections_of_rl_zoo(file)[name] if name else {}, own)
        rule = "must hold a policy where rl_zoo_section names no section"
        require("policy" in values, rule, own)
        if "evaluation" in info.data:
            check_copies(values, info.data["evaluation"], ("n_envs",))
        return {key: value for key, value in values.items() if key != "n_timesteps"}


def check_copies(values: Mapping[str, Any], evaluation: Evaluation, path: tuple[str, ...]) -> None:
    """Refuse ``n_envs`` copies where ``every // n_envs`` steps of all of them are not ``every``."""
    n_envs, every = values.get("n_envs", 1), evaluation.every
    if not (type(n_envs) is int and n_envs > 0 and every % n_envs == 0):
        refuse(Problem(path, f"must go into evaluation.every ({every}), got {n_envs!r}"))
