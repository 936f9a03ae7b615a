"""The problems of a suite: all of them at once, each with its path in the file."""

import difflib
from collections.abc import Sequence
from typing import NamedTuple, NoReturn


class Problem(NamedTuple):
    """
    A value that breaks a rule.

    :param path: The keys that lead to it.
    :param rule: In words, with the value.
    """

    path: tuple[str, ...]
    rule: str

    def __str__(self) -> str:
        return f"{'.'.join(self.path) or 'the file'} {self.rule}"


class Problems(ValueError):
    """The problems below one value, which its validator raises together."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class SuiteError(ValueError):
    """Raised for a suite that cannot be run or does not exist."""


def similar(name: str, known: Sequence[str], otherwise: str = "") -> str:
    """Return the end of a rule that says which known name may have been meant."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else otherwise


def refuse(*problems: Problem) -> None:
    """
    Raise the problems of a value together, if there are any.

    :raises Problems: with paths that begin below the value.
    """
    if problems:
        raise Problems(problems)


def fail(file: str, problems: Sequence[Problem]) -> NoReturn:
    """
    Refuse a file.

    :raises SuiteError: that names the file and all problems.
    """
    if len(problems) == 1:
        raise SuiteError(f"{file}: {problems[0]}")
    lines = "".join(f"\n  {problem}" for problem in problems)
    raise SuiteError(f"{file} has {len(problems)} problems:{lines}")
