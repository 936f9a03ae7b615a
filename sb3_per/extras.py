"""Advice in messages about missing packages."""


def install(extra: str) -> str:
    """
    Return two commands; either of them installs an extra of sb3-per.

    The first one works in any folder: pip keeps the installed sb3-per, without looking it up in a
    package index, and adds the packages of the extra.
    """
    return f'pip install "sb3-per[{extra}]"\n(in a clone: pip install ".[{extra}]")'
