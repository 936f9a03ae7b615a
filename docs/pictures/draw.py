"""
Draw the pictures of the documentation as SVG: ``python docs/pictures/draw.py``.

They stand inside the pages and take the colour of the text around them, so they read in light and
in dark mode.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

WIDTH = 420  # narrow enough for a phone
BLUE, ORANGE, GREEN = "#3b8eea", "#e07b2a", "#2ba37f"  # read on white and on black
TD_ERRORS = [0.05, 0.2, 0.5, 1.0, 2.0]


def svg(height: int, alt: str, *parts: str) -> str:
    """Return a picture with an alternative text."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(alt)}" xmlns="http://www.w3.org/2000/svg" font-size="14" '
        f'font-family="sans-serif">\n<title>{escape(alt)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def text(x: float, y: float, content: str, anchor: str = "middle", extra: str = "") -> str:
    """Return a line of text in the page's colour."""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="currentColor" {extra}>'
        f"{escape(content)}</text>"
    )


def box(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1) -> str:
    """Return a filled rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" '
        f'fill="{colour}" fill-opacity="{opacity:g}"/>'
    )


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str = "currentColor", extra: str = ""
) -> str:
    """Return a line."""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" '
        f'stroke-width="1.5" {extra}/>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a vertical or horizontal arrow."""
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    tip = [(x2, y2), (x2 - 8 * dx - 4 * dy, y2 - 8 * dy - 4 * dx)]
    tip.append((x2 - 8 * dx + 4 * dy, y2 - 8 * dy + 4 * dx))
    points = " ".join(f"{x:g},{y:g}" for x, y in tip)
    return (
        line(x1, y1, x2 - 6 * dx, y2 - 6 * dy) + f'<polygon points="{points}" fill="currentColor"/>'
    )


def curve(points: Sequence[tuple[float, float]], colour: str, extra: str = "") -> str:
    """Return a line through several points."""
    joined = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2.5" {extra}/>'


def bars(
    alt: str, y_label: str, series: dict[str, Sequence[float]], names: Sequence[str], x_label: str
) -> str:
    """Return groups of bars, a group for each name and a bar for each series."""
    left, bottom, tallest = 10, 250, 165
    colours = (BLUE, ORANGE, GREEN)
    top = max(max(values) for values in series.values())
    parts = [line(left, bottom, WIDTH - 10, bottom), text(left, 18, y_label, "start")]
    group = (WIDTH - left - 10) / len(names)
    for i, name in enumerate(names):
        for k, values in enumerate(series.values()):
            tall = tallest * values[i] / top
            x = left + i * group + 5 + k * 24
            number = f"{values[i]:.2g}".removeprefix("0") or "0"
            parts.append(box(x, bottom - tall, 21, tall, colours[k]))
            parts.append(text(x + 10, bottom - tall - 4, number, extra='font-size="11"'))
        parts.append(text(left + (i + 0.5) * group, bottom + 18, name))
    parts.append(text((left + WIDTH) / 2, bottom + 40, x_label))
    for k, name in enumerate(series):
        parts.append(box(left + k * 110, 32, 14, 14, colours[k]))
        parts.append(text(left + 20 + k * 110, 44, name, "start"))
    return svg(bottom + 50, alt, *parts)


def probabilities(alpha: float, share: float = 0.0) -> list[float]:
    """Return P(i) of the five TD errors."""
    powers = [td_error**alpha for td_error in TD_ERRORS]
    return [share / len(powers) + (1 - share) * power / sum(powers) for power in powers]


def weights(alpha: float, beta: float) -> list[float]:
    """Return the weights of the five TD errors, divided by the largest."""
    raw = [(len(TD_ERRORS) * probability) ** -beta for probability in probabilities(alpha)]
    return [weight / max(raw) for weight in raw]


def five_bars(alt: str, y_label: str, series: dict[str, Sequence[float]]) -> str:
    """Return bars for the five TD errors."""
    return bars(
        alt, y_label, series, [str(error) for error in TD_ERRORS], "abs(TD error) of a transition"
    )


def sum_tree() -> str:
    """Return a sum tree of four leaves and the way of one sample through it."""
    nodes = {  # name: (x, y, sum, whether the sample passes it)
        "root": (210, 45, "10", True),
        "left": (115, 115, "4", False),
        "right": (305, 115, "6", True),
        "a": (65, 190, "3", False),
        "b": (165, 190, "1", False),
        "c": (255, 190, "4", True),
        "d": (355, 190, "2", False),
    }
    parents = {
        "left": "root",
        "right": "root",
        "a": "left",
        "b": "left",
        "c": "right",
        "d": "right",
    }
    parts = []
    for child, parent in parents.items():
        (x1, y1, *_), (x2, y2, _, used) = nodes[parent], nodes[child]
        parts.append(line(x1, y1 + 18, x2, y2 - 18, ORANGE if used else "currentColor"))
    for x, y, total, used in nodes.values():
        parts.append(box(x - 28, y - 18, 56, 36, ORANGE if used else BLUE, 0.35))
        parts.append(text(x, y + 5, total))
    parts += [text(x, 228, f"slot {i}") for i, x in enumerate((65, 165, 255, 355))]
    parts.append(text(248, 40, "mass 5.2 of 10", "start"))
    parts.append(text(340, 110, "5.2 - 4 = 1.2", "start", 'font-size="12"'))
    parts.append(text(340, 126, "of 6", "start", 'font-size="12"'))
    alt = "A sum tree: each node holds the sum of its children. Mass 5.2 leads to slot 2."
    return svg(240, alt, *parts)


def stratification() -> str:
    """Return the masses of six slots, cut into four slices, with stratified and other samples."""
    masses = [0.30, 0.06, 0.22, 0.04, 0.28, 0.10]
    parts, start, left, wide = [], 0.0, 100, 310
    for i, mass in enumerate(masses):
        parts.append(box(left + wide * start, 40, wide * mass - 2, 36, BLUE, 0.35 + 0.15 * (i % 2)))
        parts.append(text(left + wide * (start + mass / 2), 63, str(i)))
        start += mass
    for k in range(5):
        x = left + wide * k / 4
        parts.append(line(x, 34, x, 150, "currentColor", 'stroke-dasharray="4 4"'))
    rows = {"stratified": (0.12, 0.41, 0.58, 0.93), "independent": (0.15, 0.62, 0.66, 0.72)}
    for (name, samples), y, colour in zip(rows.items(), (100, 130), (ORANGE, GREEN), strict=True):
        parts += [
            f'<circle cx="{left + wide * u:g}" cy="{y}" r="6" fill="{colour}"/>' for u in samples
        ]
        parts.append(text(left - 10, y + 5, name, "end"))
    parts.append(text(left, 22, "slots 0 to 5, as wide as their probability", "start"))
    alt = "Stratified samples fall one into each of four equal slices; independent ones may crowd."
    return svg(160, alt, *parts)


def beta() -> str:
    """Return how beta changes over the training, for two settings."""
    left, bottom, wide, tall = 50, 200, 350, 160

    def at(part: float, value: float) -> tuple[float, float]:
        return left + wide * part, bottom - tall * value

    parts = [line(left, bottom, left + wide, bottom), line(left, bottom, left, bottom - tall - 10)]
    for value in (0.0, 0.4, 1.0):
        parts.append(text(left - 8, at(0, value)[1] + 5, f"{value:g}", "end"))
    parts.append(curve([at(0, 0.4), at(1, 1)], BLUE))
    parts.append(curve([at(0, 0.4), at(0.5, 1), at(1, 1)], ORANGE, 'stroke-dasharray="7 5"'))
    parts.append(text(*at(0.72, 0.7), "(0.4, 1.0)", "start"))
    parts.append(text(at(0.5, 0)[0] + 6, at(0, 1)[1] - 8, "(0.4, 1.0, 50_000)", "start"))
    parts.append(text(left, bottom + 20, "0", "middle"))
    parts.append(text(left + wide, bottom + 20, "100,000 steps", "end"))
    parts.append(text(10, 18, "beta", "start"))
    alt = "Beta rises linearly from 0.4 to 1 over the training, or over the first 50,000 steps."
    return svg(230, alt, *parts)


def staleness() -> str:
    """Return a TD error that moves, and the priority, which follows only when it is sampled."""
    left, bottom, wide = 20, 200, 380
    errors = [0.55, 0.9, 1.25, 1.1, 0.7, 0.35, 0.3, 0.45, 0.8, 1.0, 0.85]
    points = [(left + wide * i / 10, bottom - 120 * error) for i, error in enumerate(errors)]
    parts = [line(left, bottom, left + wide, bottom), curve(points, BLUE)]
    stairs, height = [(points[0][0], points[0][1])], points[0][1]
    for i in (3, 6, 9):
        x, y = points[i]
        stairs += [(x, height), (x, y)]
        height = y
        parts.append(arrow(x, bottom + 30, x, bottom + 4))
    stairs.append((left + wide, height))
    parts.append(curve(stairs, ORANGE, 'stroke-dasharray="7 5"'))
    parts.append(text(points[3][0], bottom + 48, "sampled"))
    parts.append(text(points[6][0], bottom + 48, "sampled"))
    parts.append(text(points[9][0], bottom + 48, "sampled"))
    parts += [box(20, 8, 14, 14, BLUE), text(40, 20, "abs(TD error) now", "start")]
    parts += [box(200, 8, 14, 14, ORANGE), text(220, 20, "stored priority", "start")]
    alt = "The TD error changes all the time; the stored priority changes only when sampled."
    return svg(260, alt, *parts)


def data_flow() -> str:
    """Return who calls whom, for a new transition and for a gradient step."""
    names = {
        "algorithm": "loss, TD errors, beta",
        "buffer": "transitions",
        "sampler": "random numbers, weights, stale updates",
        "prioritization": "priorities from TD errors",
        "tree": "sums of priorities",
    }
    calls = [
        ("add, sample, update_priorities", "batch, weights, slots"),
        ("insert, sample, update", "slots, weights"),
        ("insert, update", "P(i)"),
        ("set", "sums"),
    ]
    parts = []
    for i, (name, owns) in enumerate(names.items()):
        y = 20 + 76 * i
        parts.append(box(60, y, 300, 46, BLUE, 0.3))
        parts.append(text(210, y + 20, name, extra='font-weight="bold"'))
        parts.append(text(210, y + 37, owns, extra='font-size="12"'))
    for i, (call, result) in enumerate(calls):
        y = 66 + 76 * i
        parts += [arrow(210, y + 2, 210, y + 28), arrow(240, y + 28, 240, y + 2)]
        parts.append(text(202, y + 20, call, "end", 'font-size="12"'))
        parts.append(text(248, y + 20, result, "start", 'font-size="12"'))
    alt = (
        "The algorithm calls the buffer, which calls the sampler, the prioritization and its tree."
    )
    return svg(390, alt, *parts)


def pictures() -> dict[str, str]:
    """Return all pictures by name."""
    priorities = {f"alpha {alpha:g}": probabilities(alpha) for alpha in (0, 0.6, 1)}
    corrected = {f"beta {beta:g}": weights(0.6, beta) for beta in (0, 0.4, 1)}
    mixed = {f"share {share:g}": probabilities(1, share) for share in (0, 0.5, 1)}
    return {
        "priorities": five_bars(
            "With alpha 0 all five are sampled alike; a larger alpha prefers large TD errors.",
            "P(i)",
            priorities,
        ),
        "weights": five_bars(
            "With beta 1 a weight undoes how often a transition is sampled; beta 0 does not.",
            "weight / largest",
            corrected,
        ),
        "uniform_share": five_bars(
            "A uniform share of 0.5 keeps every probability above half of 1 / N.", "P(i)", mixed
        ),
        "sum_tree": sum_tree(),
        "stratification": stratification(),
        "beta": beta(),
        "staleness": staleness(),
        "data_flow": data_flow(),
    }


if __name__ == "__main__":
    for name, content in pictures().items():
        Path(__file__).with_name(f"{name}.svg").write_text(content, encoding="utf-8")
