"""Docstrings that explain every argument: an algorithm of SB3 explains most of ours."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

WIDTH = 76  # `help` puts four characters in front of each line


def with_arguments(kind: type[Any]) -> str:
    """
    Return the docstring of a class, with the arguments that the docstrings of its bases explain.

    Where several docstrings explain an argument, that of the most derived class counts.
    ``replay_buffer_kwargs`` is followed by the class's default options.
    """
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        texts |= _explained_in(base.__doc__ or "")
    defaults = ", ".join(f"{k}={v!r}" for k, v in kind.default_options.items())
    kwargs = texts.get("replay_buffer_kwargs", "")  # nothing with `python -OO`
    kwargs = kwargs.partition(" The defaults here: ")[0]  # a base may have added its own
    texts["replay_buffer_kwargs"] = f"{kwargs} The defaults here: ``{defaults}``."
    lines = [
        "\n    ".join(textwrap.wrap(f":param {name}: {texts[name]}", WIDTH, break_on_hyphens=False))
        for name in inspect.signature(kind).parameters
        if name in texts
    ]
    start = inspect.cleandoc(kind.__doc__ or "").partition("\n:param ")[0].rstrip()
    return "\n".join([start, "", *lines, ""])


def _explained_in(docstring: str) -> dict[str, str]:
    """Return the explanations of arguments by their names."""
    # SB3 refers to pages of its own site, which have no name elsewhere.
    text = re.sub(r"\s*See :ref:`\w+`", "", inspect.cleandoc(docstring))
    _, *parts = re.split(r"^:param (\w+): *", text, flags=re.MULTILINE)
    names, explanations = parts[::2], parts[1::2]
    return {name: " ".join(part.split()) for name, part in zip(names, explanations, strict=True)}
