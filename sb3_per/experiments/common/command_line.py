"""Numbers and folders on command lines."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sb3_per.extras import install

NO_FIGURE = f"No figure without the package matplotlib: {install('plots')}"


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """
    Return a parser of whole numbers in a range.

    :param low: The smallest number allowed.
    :param high: The largest; None for no limit.
    :return: A ``type`` for argparse; its errors state the rule and the number.
    """
    rule = f"must be at least {low}" if high is None else f"must lie in [{low}, {high}]"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if number < low or (high is not None and number > high):
            raise argparse.ArgumentTypeError(f"{rule}, got {number}")
        return number

    return parse


class Distinct(argparse.Action):
    """Keeps each of several values once, in their order."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [*dict.fromkeys(values)])


def make_folder(path: Path) -> None:
    """
    Make a folder for results, before anything is spent on them.

    :raises SystemExit: with a message, if the folder cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--out must be a folder, or a new one: {error}") from error


@contextmanager
def locked_folder(path: Path, command: str) -> Iterator[None]:
    """
    Make a folder for results and keep it for this process: two would write into the same files.

    :param command: The name of the command, for the message.
    :raises SystemExit: if the folder cannot be made, or another process uses it.
    """
    make_folder(path)
    lock = FileLock(path / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise SystemExit(f"another {command} is running in {path}") from error
    try:
        yield
    finally:
        lock.release()
