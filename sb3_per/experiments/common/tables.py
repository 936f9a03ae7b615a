"""Tables in Markdown and CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from sb3_per.saving.atomic import new_file


def markdown(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, is_aligned: bool = False
) -> str:
    """
    Return a table.

    :param is_aligned: Whether columns line up, for reading in a terminal: the first one to the
        left, the others to the right.
    """
    lines = [[_on_one_line(text) for text in line] for line in (columns, *rows)]
    if not is_aligned:
        lines.insert(1, ["---"] * len(columns))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    layout = f"| {{:<{first}}} |" + "".join(f" {{:>{width}}} |" for width in others)
    lines.insert(1, ["-" * first, *("-" * (width - 1) + ":" for width in others)])
    return "\n".join(layout.format(*line) for line in lines)


def _on_one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write_csv(
    path: Path, columns: Sequence[str], rows: Iterable[Iterable[object]], line_end: str = "\n"
) -> None:
    """Write a CSV file, which replaces the one that was there as a whole or not at all."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=line_end)
    writer.writerow(columns)
    writer.writerows(rows)
    with new_file(path) as file:
        file.write(text.getvalue().encode())
