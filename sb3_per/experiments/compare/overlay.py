"""Hyperparameters laid over others, and multiplied."""

import ast
import math
from collections.abc import Mapping
from typing import Any


def overlaid(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """
    :return: ``base`` with the values of ``top``; where both hold a mapping, key by key. Text such
        as ``dict(net_arch=[64])``, which RL-Zoo evaluates, is a mapping below one, too.
    :raises UnreadableText: if a mapping lies over text of which that cannot be told.
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


class UnreadableText(ValueError):
    """A mapping would replace text unread, and with it what it does not name."""


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
    """:return: Their product; a whole number stays one, if the product is one up to rounding."""
    product = value * factor
    is_whole = math.isfinite(product) and math.isclose(product, round(product))
    return round(product) if isinstance(value, int) and is_whole else product
