"""Time of a step against the number of stored transitions."""

from pathlib import Path
from typing import Any

from sb3_per.experiments.bench.ops import Cost
from sb3_per.experiments.common.command_line import NO_FIGURE
from sb3_per.experiments.common.drawing import distinct_colours, save_figure

MARKERS = "osD^vP*X"


def against_capacity(costs: list[Cost], file: Path) -> str:
    """
    Draw a panel for each batch size, a line for each contestant, quartiles as a band.

    :param costs: The costs; only those of flat observations are drawn.
    :param file: Path without an ending; PNG and SVG are written.
    :return: The path of the figure, or why there is none.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return NO_FIGURE
    flat = [cost for cost in costs if cost.stored == "8 floats"]
    batches = sorted({cost.batch for cost in flat})
    if not batches:
        return "No figure: no flat observations were measured"
    figure = Figure(figsize=(4.2 * len(batches) + 2.4, 4.2), layout="constrained")
    panels = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
    for panel, batch in zip(panels, batches, strict=True):
        _draw(panel, [cost for cost in flat if cost.batch == batch])
        panel.set_title(f"batch of {batch}")
        panel.set_xlabel("transitions stored")
    panels[0].set_ylabel("microseconds a step:\none sample, one update, four additions")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False)
    save_figure(figure, file)
    return f"Figure: {file.with_suffix('.png')}"


def _draw(panel: Any, costs: list[Cost]) -> None:
    names = list(dict.fromkeys(cost.name for cost in costs))
    colours = distinct_colours(len(names))
    for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
        own = sorted((cost for cost in costs if cost.name == name), key=lambda c: c.capacity)
        style = {"color": colour, "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
        if name.endswith("bare"):
            style["linestyle"] = "--"
        capacities = [cost.capacity for cost in own]
        panel.plot(capacities, [cost.step.median for cost in own], label=name, **style)
        lows, highs = [cost.step.low for cost in own], [cost.step.high for cost in own]
        panel.fill_between(capacities, lows, highs, color=style["color"], alpha=0.15, linewidth=0)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.grid(alpha=0.3)
