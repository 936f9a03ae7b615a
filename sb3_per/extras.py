"""What a message about a missing package advises."""


def install(extra: str) -> str:
    """
    Return the two commands of which either installs an extra of ours.

    The first works in any folder without a package index: pip keeps the sb3-per that is installed,
    and adds what the extra lists.
    """
    return f'pip install "sb3-per[{extra}]"\n(in a clone: pip install ".[{extra}]")'
