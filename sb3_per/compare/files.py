"""Files that are whole or not there."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file so that after a crash at any moment it holds all of ``text`` or what it held."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
