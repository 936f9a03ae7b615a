"""Hyperparameters of a suite: checked, merged with others, and multiplied."""

import ast
import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator

from sb3_per.experiments.compare.problems import Problem, refuse
from sb3_per.rules import require

# The hyperparameters of RL-Zoo and the algorithms that count something.
_WHOLE = (
    "batch_size",
    "buffer_size",
    "frame_stack",
    "gradient_steps",
    "learning_starts",
    "n_envs",
    "n_steps",
    "policy_delay",
    "sde_sample_freq",
    "target_update_interval",
    "top_quantiles_to_drop_per_net",
    "train_freq",
)
_SET_ELSEWHERE = ("n_timesteps", "env_kwargs", "seed", "device", "verbose", "tensorboard_log")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values that a worker reads from JSON as they are; refuse others."""
    try:
        is_kept = json.loads(json.dumps(values, allow_nan=False)) == values
    except (TypeError, ValueError, RecursionError):
        is_kept = False
    rule = "must be text, finite numbers, and lists and mappings from text of these"
    require(is_kept, rule, values)
    return values


def _settable(values: dict[str, Any]) -> dict[str, Any]:
    """Return hyperparameters; refuse those that a suite sets elsewhere, and numbers as text."""
    rule = "is set by the suite or the run, so leave it out here"
    elsewhere = [Problem((name,), rule) for name in values if name in _SET_ELSEWHERE]
    refuse(*elsewhere, *_numbers_as_text(_plain(values)))
    return values


def _numbers_as_text(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Problem]:
    for name, value in values.items():
        if any(map(_reads_as_number, value if isinstance(value, list) else [value])):
            rule = "must be a number, not text (1.0e-3, not 1e-3)"
            yield Problem((*path, name), f"{rule}, got {value!r}")
        if isinstance(value, dict):
            yield from _numbers_as_text(value, (*path, name))


def _reads_as_number(value: object) -> bool:
    try:
        float(value if isinstance(value, str) else "no text")
    except ValueError:
        return False
    return True


PlainValues = Annotated[dict[str, Any], AfterValidator(_plain)]
Hyperparameters = Annotated[dict[str, Any], AfterValidator(_settable)]


def files_of_rl_zoo() -> dict[str, Path]:
    """Return RL-Zoo's files of hyperparameters by name: dqn, sac ...; none without RL-Zoo."""
    spec = importlib.util.find_spec("rl_zoo3")  # finds it without an import
    folders = [] if spec is None else spec.submodule_search_locations or []
    return {path.stem: path for each in folders for path in Path(each, "hyperparams").glob("*.yml")}


def sections_of_rl_zoo(file: str = "dqn") -> dict[str, dict[str, Any]]:
    """Return the hyperparameters in one of RL-Zoo's files; nothing without RL-Zoo."""
    path = files_of_rl_zoo().get(file)
    return {} if path is None else dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def overlaid(
    base: Mapping[str, Any], top: Mapping[str, Any], path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """
    Return values with other values laid over them.

    :param path: The place of ``top`` in the file, for errors.
    :return: ``base`` with the values of ``top``; mappings are merged key by key. Text such as
        ``dict(net_arch=[64])``, which RL-Zoo evaluates, counts as a mapping, too.
    :raises Problems: for a mapping over text that is no mapping: the text would be lost.
    """
    result = dict(base)
    for key, value in top.items():
        below = result.get(key)
        if isinstance(below, str) and isinstance(value, Mapping):
            below = _evaluated(below, (*path, key))
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = overlaid(below, value, (*path, key))
        result[key] = value
    return result


def _evaluated(text: str, path: tuple[str, ...]) -> Any:
    try:
        value = ast.literal_eval(_WithoutCalls().visit(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, TypeError, ValueError):
        value = None
    if not isinstance(value, Mapping):
        refuse(Problem(path, f"must be text, not a mapping, since it replaces {text!r}"))
    return value


class _WithoutCalls(ast.NodeTransformer):
    """Turns ``dict(a=1)`` into ``{"a": 1}``, which is a literal, at any depth."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        names = [ast.Constant(each.arg) for each in node.keywords]
        is_dict = isinstance(node.func, ast.Name) and node.func.id == "dict"
        if not is_dict or node.args or any(name.value is None for name in names):
            return node
        return ast.Dict(keys=list(names), values=[each.value for each in node.keywords])


def multiplied(
    values: Mapping[str, Any], factors: Mapping[str, Any], path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """
    Multiply some of the values; a whole number stays whole if the product is, up to rounding.

    :param path: The place of the factors in the file, for errors.
    :raises Problems: if a value or a factor is not a number, or if a product is not finite, or is
        not whole although it counts something.
    """
    result, problems = dict(values), []
    for name, factor in factors.items():
        try:
            result[name] = _product(name, result.get(name), factor)
        except ValueError as error:
            problems.append(Problem((*path, name), f"{error}, got {factor!r}"))
    refuse(*problems)
    return result


def _product(name: str, value: Any, factor: Any) -> float:
    if type(factor) not in (int, float) or type(value) not in (int, float):
        raise ValueError(f"must be a factor for a number; {name} is {value!r}")
    try:
        product: float = value * factor
    except OverflowError:
        product = math.inf
    if not math.isfinite(product):
        raise ValueError(f"must keep it finite; {name} is {value}")
    if isinstance(value, int) and math.isclose(product, round(product)):
        return round(product)
    if name in _WHOLE:
        raise ValueError(f"must keep it whole; {name} is {value}")
    return product
