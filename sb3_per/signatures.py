"""Signatures of constructors that pass arguments on, for help() and editors."""

import inspect
from collections.abc import Callable
from typing import Any


def keyword_only(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Its parameters that can be given by name alone."""
    every = inspect.signature(function).parameters.values()
    return [each for each in every if each.kind is each.KEYWORD_ONLY]


def spliced(function: Callable[..., Any], *others: Callable[..., Any]) -> inspect.Signature:
    """All parameters of a function, then those of others that can be given by name alone."""
    parameters = [*inspect.signature(function).parameters.values()]
    for other in others:
        parameters += keyword_only(other)
    return inspect.Signature(parameters)
