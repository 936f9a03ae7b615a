"""Files that are replaced as a whole or not at all."""

import glob
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

# After so many seconds without a write, an unfinished file belongs to a process that was killed.
_ABANDONED_AFTER_SECONDS = 3600


def unfinished_files(folder: Path, pattern: str) -> Iterator[Path]:
    """
    Return the unfinished files in a folder, of running writers and of killed ones.

    :param pattern: The names of the finished files, as for ``Path.glob``.
    """
    return folder.glob(f".{pattern}*.partial")


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """
    Open a new file for writing, which replaces ``path`` when the block ends without an error.

    The file is synced to the disk first. If the path is a link, the file behind the link is
    replaced. Several writers may write to one path at the same time: each one has its own
    unfinished file, and the last one to finish wins.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _remove_abandoned(path: Path) -> None:
    for partial in unfinished_files(path.parent, glob.escape(path.name)):
        try:
            if time.time() - partial.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
                partial.unlink()
        except OSError:  # its writer has finished, or another user owns it
            continue


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # Windows cannot open a folder
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:  # some network file systems refuse it
        warnings.warn(
            f"{folder} cannot be synced to the disk ({error}): the file that was just written is "
            "in its place, but may be lost after a power cut",
            stacklevel=4,
        )
