"""Rows of measurements: compressed JSON lines in a file, a table on the screen and on a page."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sb3_per.compare.report import markdown

Row = dict[str, Any]


def quartiles(name: str, measured: NDArray[np.float64]) -> Row:
    """Return the median under a name, and the other quartiles under the same name and a suffix."""
    low, median, high = np.percentile(measured, (25, 50, 75)).tolist()
    return {name: median, f"{name}, low": low, f"{name}, high": high}


def save(rows: list[Row], path: Path) -> None:
    """Write rows; without a time in the file, so that equal rows give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows)
    frame.to_json(path, orient="records", lines=True, compression={"method": "gzip", "mtime": 1})


def as_text(rows: pd.DataFrame) -> str:
    """Return a table in Markdown."""
    return markdown(shown(rows))


def shown(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a table; quartiles stand in brackets behind their median."""
    texts = pd.DataFrame(index=rows.index)
    for name in rows.columns:
        if f"{name}, low" in rows:
            parts = (rows[name], rows[f"{name}, low"], rows[f"{name}, high"])
            texts[name] = [
                "" if pd.isna(median) else f"{median:.4g} ({low:.2f} to {high:.2f})"
                for median, low, high in zip(*parts, strict=True)
            ]
        elif not name.endswith((", low", ", high")):
            texts[name] = [_short(value) for value in rows[name]]
    return texts


def _short(value: Any) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)
