"""Signatures of constructors: which arguments they take, and clear errors for unknown ones."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def explain_unknown_arguments(
    hints: Mapping[str, str],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Decorate a constructor so that an unknown argument raises an error that helps.

    Editors, ``help()`` and type checkers still see the constructor's own arguments.

    :param hints: What to do instead, for some names that the constructor does not take.
    """

    def decorate(constructor: Callable[P, R]) -> Callable[P, R]:
        own = [each.name for each in _named_parameters(constructor)]

        @functools.wraps(constructor)
        def construct(*args: P.args, **kwargs: P.kwargs) -> R:
            kind = type(args[0])
            # A subclass has its own arguments, too; its constructor has already taken them.
            known = dict.fromkeys([*own, *(argument_names(kind) or [])])
            refuse_unknown(f"{kind.__name__} has no argument", kwargs, known, hints)
            return constructor(*args, **kwargs)

        return construct

    return decorate


def refuse_unknown(
    complaint: str, given: Iterable[str], known: Iterable[str], hints: Mapping[str, str]
) -> None:
    """
    Refuse names that are not known.

    :param complaint: The beginning of the message: "PERDQN has no argument".
    :param hints: What to do instead, for some unknown names.
    :raises ValueError: for the first unknown name. The message says what to do instead, or names a
        similar known name and lists all known names.
    """
    public = [name for name in known if not name.startswith("_")]
    for name in given:
        if name in hints and name not in public:
            raise ValueError(f"{complaint} {name!r}: {hints[name]}")
        if name not in known:
            similar = difflib.get_close_matches(name, public, n=1)
            question = f"did you mean {similar[0]!r}? " if similar else ""
            listed = ", ".join(public) or "no options"
            raise ValueError(f"{complaint} {name!r}: {question}It takes {listed}")


def argument_names(kind: type[Any]) -> list[str] | None:
    """
    Return the names of all arguments that a class takes, including those that it passes on.

    :return: The names, or None if they are unknown: the last constructor takes any name.
    """
    names: list[str] = []
    for each in kind.__mro__:
        if "__init__" not in vars(each) or each is object:
            continue
        constructor = vars(each)["__init__"]
        names += [parameter.name for parameter in _named_parameters(constructor)]
        kinds = {parameter.kind for parameter in inspect.signature(constructor).parameters.values()}
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            return names
    return None


def keyword_only(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's keyword-only arguments."""
    every = inspect.signature(function).parameters.values()
    return [each.name for each in every if each.kind is each.KEYWORD_ONLY]


def _named_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that can be given by name, without ``self``."""
    every = [*inspect.signature(function).parameters.values()][1:]
    return [each for each in every if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
