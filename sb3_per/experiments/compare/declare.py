"""Suites as YAML files: ours, a user's, and the one that a run folder keeps."""

import dataclasses
import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import yaml

from sb3_per.experiments.compare import results
from sb3_per.experiments.compare.overlay import UnreadableText, overlaid, scaled
from sb3_per.experiments.compare.scores import FINAL_EVALUATIONS
from sb3_per.experiments.compare.section import Section, SuiteError, read_yaml
from sb3_per.experiments.compare.suite import (
    Contrast,
    Environment,
    Evaluation,
    Score,
    Suite,
    Variant,
    gym_id,
)
from sb3_per.saving.archive import new_file

_FOLDER = Path(__file__).parent / "suites"
# Of RL-Zoo's keys and those of DQN and PERDQN, what counts something.
_WHOLE = (
    "batch_size",
    "buffer_size",
    "frame_stack",
    "gradient_steps",
    "learning_starts",
    "n_envs",
    "n_steps",
    "target_update_interval",
    "train_freq",
)
_SET_ELSEWHERE = ("n_timesteps", "env_kwargs", "seed", "device", "verbose", "tensorboard_log")


def names() -> list[str]:
    """:return: The suites that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.yml"))


def load(which: str) -> Suite:
    """
    :param which: The name of one of our suites, or the path of a YAML file.
    :return: It, with RL-Zoo's hyperparameters filled in.
    :raises SuiteError: if there is none, or something in it is wrong.
    """
    path = Path(which)
    if path.suffix not in (".yml", ".yaml"):
        path = _FOLDER / f"{which}.yml"
    if not path.is_file():
        known = ", ".join(names())
        raise SuiteError(f"there is no suite {which!r} (there are {known}, or your own YAML file)")
    return _suite(read_yaml(path), path.stem)


def with_seeds(suite: Suite, seeds: int) -> Suite:
    return dataclasses.replace(suite, seeds=seeds)


def save(suite: Suite, path: Path) -> None:
    """Write a suite as a file that ``load`` reads, with every hyperparameter spelled out."""
    text = yaml.safe_dump(dataclasses.asdict(suite), sort_keys=False, allow_unicode=True)
    with new_file(path) as file:
        file.write(text.encode())


def _suite(section: Section, stem: str) -> Suite:
    environments = {name: _environment(each) for name, each in _named(section, "environments")}
    variants = {name: _variant(each) for name, each in _named(section, "variants")}
    ids = [gym_id(name) for name in environments]
    for name in environments:
        if ids.count(gym_id(name)) > 1:
            section.section("environments").fail(name, f"must be the only {gym_id(name)}")
    for name in variants:
        # A variant is a folder, beside that of the report.
        if not re.fullmatch(r"[^\W_][\w.+-]*", name) or name in ("report", results.SUITE):
            rule = "must be named by letters, digits and _.+-, one of the former first"
            section.section("variants").fail(name, rule)
    _check_changes(section.section("variants"), environments, variants)
    name = section.take("name", str, stem)
    if name in ("", ".", "..") or not {*name}.isdisjoint("/\\\0"):
        section.fail("name", "must do as the name of a folder")
    suite = Suite(
        name=name,
        about=section.take("about", str),
        seeds=_at_least_one(section, "seeds"),
        baseline=section.take("baseline", str),
        environments=environments,
        variants=variants,
        contrasts=_contrasts(section, variants),
    )
    if suite.baseline not in variants:
        section.fail("baseline", f"must be one of the variants {', '.join(variants)}")
    section.finish()
    return suite


def _contrasts(section: Section, variants: dict[str, Variant]) -> dict[str, Contrast]:
    contrasts = {}
    for name in section.take("contrasts", dict, {}):
        each = section.section("contrasts").section(name)
        contrasts[name] = Contrast(each.take("variant", str), each.take("over", str))
        each.finish()
        for key, variant in dataclasses.asdict(contrasts[name]).items():
            if variant not in variants:
                each.fail(key, f"must be one of the variants {', '.join(variants)}")
        if contrasts[name].variant == contrasts[name].over:
            each.fail("over", "must be another variant")
    return contrasts


def _named(section: Section, key: str) -> list[tuple[str, Section]]:
    found = list(section.section(key).sections())
    if not found:
        section.fail(key, "must not be empty")
    return found


def _environment(section: Section) -> Environment:
    evaluation, score = section.section("evaluation"), section.section("score")
    environment = Environment(
        steps=_at_least_one(section, "steps"),
        evaluation=Evaluation(
            _at_least_one(evaluation, "every"), _at_least_one(evaluation, "episodes")
        ),
        score=Score(
            score.take("random", float), score.take("solved", float), score.take("source", str)
        ),
        threshold=section.take("threshold", float),
        hyperparameters=_hyperparameters(section),
        env_kwargs=_take_json(section, "env_kwargs"),
    )
    for each in (evaluation, score, section):
        each.finish()
    if environment.score.solved <= environment.score.random:
        score.fail("solved", f"must be larger than random ({environment.score.random})")
    n_evaluations, rest = divmod(environment.steps, environment.evaluation.every)
    if rest or n_evaluations < FINAL_EVALUATIONS:
        rule = f"must go into steps ({environment.steps}) {FINAL_EVALUATIONS} times or more, evenly"
        evaluation.fail("every", rule)
    n_envs = environment.hyperparameters.get("n_envs", 1)
    if not _goes_into(n_envs, environment.evaluation.every):
        evaluation.fail("every", f"must be a multiple of n_envs ({n_envs!r})")
    return environment


def _variant(section: Section) -> Variant:
    variant = Variant(
        algorithm=section.take("algorithm", str),
        overrides=_take_values(section, "overrides"),
        scale=_take_values(section, "scale"),
    )
    section.finish()
    return variant


def _hyperparameters(section: Section) -> dict[str, Any]:
    """:return: RL-Zoo's section, if one is named, with the suite's values on top."""
    own = _take_values(section, "hyperparameters")
    name = section.take("rl_zoo_section", str, "")
    theirs = _sections_of_rl_zoo() if name else {name: {}}
    if name not in theirs:
        section.fail("rl_zoo_section", f"must be one of RL-Zoo's dqn.yml: {', '.join(theirs)}")
    try:
        values = overlaid(theirs[name], own)
    except UnreadableText as error:
        section.fail("hyperparameters", f"must not replace text by a mapping: {error}")
    if "policy" not in values:
        section.fail("hyperparameters", "must hold a policy where rl_zoo_section names no section")
    return {key: value for key, value in values.items() if key != "n_timesteps"}


def _sections_of_rl_zoo() -> dict[str, dict[str, Any]]:
    spec = importlib.util.find_spec("rl_zoo3")  # finds it without an import
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        text = Path(folder, "hyperparams", "dqn.yml").read_text(encoding="utf-8")
        return dict(yaml.safe_load(text))
    return {}


def _check_changes(
    section: Section, environments: dict[str, Environment], variants: dict[str, Variant]
) -> None:
    """:raises SuiteError: for an override or a scale that cannot be laid over an environment."""
    for name, variant in variants.items():
        own = section.section(name)
        for environment in environments.values():
            try:
                values = overlaid(environment.hyperparameters, variant.overrides)
            except UnreadableText as error:
                own.fail("overrides", f"must not replace text by a mapping: {error}")
            for key, factor in variant.scale.items():
                _check_scale(own.section("scale"), key, factor, values.get(key))
                values[key] = scaled(values[key], factor)
            if not _goes_into(values.get("n_envs", 1), environment.evaluation.every):
                part = own.section("scale" if "n_envs" in variant.scale else "overrides")
                part.fail(
                    "n_envs", f"must go into evaluation.every ({environment.evaluation.every})"
                )


def _goes_into(n_envs: object, every: int) -> bool:
    """:return: Whether evaluations, each ``every // n_envs`` steps of all copies, come on time."""
    return type(n_envs) is int and n_envs > 0 and every % n_envs == 0


def _check_scale(section: Section, key: str, factor: Any, value: Any) -> None:
    if not all(type(each) in (int, float) for each in (factor, value)):
        section.fail(key, f"must be a factor for a number; {key} is {value!r}")
    try:
        product = scaled(value, factor)
    except OverflowError:
        product = math.inf
    if not math.isfinite(product):
        section.fail(key, f"must keep it finite; {key} is {value}")
    if key in _WHOLE and type(product) is not int:
        section.fail(key, f"must keep it whole; {key} is {value}")


def _take_values(section: Section, key: str) -> dict[str, Any]:
    """:return: Hyperparameters, or nothing if the key is not there."""
    values = _take_json(section, key)
    for name in values:
        if name in _SET_ELSEWHERE:
            section.section(key).fail(name, "is set by the suite or the run, not here")
    if key in section:
        _refuse_numbers_as_text(section.section(key))
    return values


def _take_json(section: Section, key: str) -> dict[str, Any]:
    """:return: A mapping that a worker reads as it is; nothing if the key is not there."""
    values = section.take(key, dict, {})
    try:
        is_kept = json.loads(json.dumps(values, allow_nan=False)) == values
    except (TypeError, ValueError, RecursionError):
        is_kept = False
    if not is_kept:
        section.fail(key, "must be text, finite numbers, and lists and mappings from text of these")
    return values


def _refuse_numbers_as_text(section: Section) -> None:
    for name, value in section.items():
        if any(map(_reads_as_number, value if isinstance(value, list) else [value])):
            section.fail(name, "must be a number, not text (1.0e-3, not 1e-3)")
        if isinstance(value, dict):
            _refuse_numbers_as_text(section.section(name))


def _reads_as_number(value: object) -> bool:
    try:
        float(value if isinstance(value, str) else "no text")
    except ValueError:
        return False
    return True


def _at_least_one(section: Section, key: str) -> int:
    value = section.take(key, int)
    if value < 1:
        section.fail(key, "must be at least 1")
    return value
