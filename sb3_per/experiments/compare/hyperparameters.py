"""Hyperparameters in a suite: checked, laid over others, and multiplied."""

import ast
import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from sb3_per.experiments.compare.problems import Problem, refuse

# The hyperparameters of RL-Zoo, DQN and PERDQN that count something.
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


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values that a worker reads from JSON as they are; refuse others."""
    try:
        is_kept = json.loads(json.dumps(values, allow_nan=False)) == values
    except (TypeError, ValueError, RecursionError):
        is_kept = False
    rule = "must be text, finite numbers, and lists and mappings from text of these"
    refuse(None if is_kept else Problem((), f"{rule}, got {values!r}"))
    return values


def _settable(values: dict[str, Any]) -> dict[str, Any]:
    """Return hyperparameters; refuse those that a suite sets elsewhere, and numbers as text."""
    rule = "is set by the suite or the run, not here"
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


class UnreadableText(ValueError):
    """A mapping would replace text that cannot be read, and with it what it does not name."""


def overlaid(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """
    Lay values over others.

    :return: ``base`` with the values of ``top``; where both hold a mapping, key by key. Text such
        as ``dict(net_arch=[64])``, which RL-Zoo evaluates, is a mapping below one, too.
    :raises UnreadableText: if a mapping lies over text that is not a mapping.
    """
    result = dict(base)
    for key, value in top.items():
        below = result.get(key)
        if isinstance(below, str) and isinstance(value, Mapping):
            below = _evaluated(key, below)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = overlaid(below, value)
        result[key] = value
    return result


def _evaluated(key: str, text: str) -> Mapping[str, Any]:
    try:
        value = ast.literal_eval(_WithoutCalls().visit(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, TypeError, ValueError):
        value = None
    if not isinstance(value, Mapping):
        raise UnreadableText(f"{key} must be text here, since it replaces {text!r}")
    return value


class _WithoutCalls(ast.NodeTransformer):
    """Turns ``dict(a=1)`` into ``{"a": 1}``, which is a literal."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        names = [ast.Constant(each.arg) for each in node.keywords]
        is_dict = isinstance(node.func, ast.Name) and node.func.id == "dict"
        if not is_dict or node.args or any(name.value is None for name in names):
            return node
        return ast.Dict(keys=list(names), values=[each.value for each in node.keywords])


def scaled(value: float, factor: float) -> float:
    """Return the product; a whole number stays one, if the product is one up to rounding."""
    product = value * factor
    is_whole = math.isfinite(product) and math.isclose(product, round(product))
    return round(product) if isinstance(value, int) and is_whole else product


def scale_problem(name: str, factor: object, value: object) -> str | None:
    """
    Say why a hyperparameter cannot be multiplied.

    :return: The rule that is broken, with the values; None if it can be.
    """
    if type(factor) not in (int, float) or type(value) not in (int, float):
        return f"must be a factor for a number; {name} is {value!r}, got {factor!r}"
    try:
        product = scaled(value, factor)  # type: ignore[arg-type]  # both are numbers by now
    except OverflowError:
        product = math.inf
    if not math.isfinite(product):
        return f"must keep it finite; {name} is {value}, got {factor!r}"
    if name in _WHOLE and type(product) is not int:
        return f"must keep it whole; {name} is {value}, got {factor!r}"
    return None
