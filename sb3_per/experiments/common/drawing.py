"""Shared by all figures: colours, dashes and files."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which the colour-blind can tell apart; dashes say the same again.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#F0E442")
BLUE = COLOURS[5]
DASHES = ("-", "--", "-.", ":")

# Without dates, versions and random identifiers: equal results give equal files.
_METADATA = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def distinct_colours(n: int) -> list[str]:
    """Return ``n`` different colours: the palette's, or evenly spaced ones of a colour map."""
    if n <= len(COLOURS):
        return [*COLOURS[:n]]
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["turbo"](i / (n - 1))) for i in range(n)]


def own_style() -> AbstractContextManager[None]:
    """Return a context in which the user's settings change no figure, and $ in names is text."""
    import matplotlib.style

    return matplotlib.style.context(["default", {"text.parse_math": False}])


class Output(NamedTuple):
    """
    The files of a figure.

    :param formats: Endings of the files.
    :param width: Width in inches; the height follows in proportion. None keeps the layout's size.
        Text keeps its size.
    """

    formats: tuple[str, ...] = ("png", "svg")
    width: float | None = None


PNG_AND_SVG = Output()


def save_figure(figure: "Figure", file: Path, output: Output = PNG_AND_SVG) -> None:
    """Write a figure; ``file`` has no ending."""
    import matplotlib as mpl

    if output.width is not None:
        width, height = figure.get_size_inches()
        figure.set_size_inches(output.width, height * output.width / width)
    with mpl.rc_context({"svg.hashsalt": file.name}):
        for ending in output.formats:
            path = file.with_name(f"{file.name}.{ending}")
            figure.savefig(path, dpi=150, metadata=_METADATA[ending])
