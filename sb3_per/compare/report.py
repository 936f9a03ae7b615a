"""The report of a comparison: one table, one figure, and the numbers of each run."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from sb3_per.algorithms.metrics import LARGEST_SUPPORT_EDGE
from sb3_per.compare.results import Results, curve, write_file
from sb3_per.compare.statistics import (
    LEAST_RUNS,
    Estimate,
    band,
    difference,
    improvement,
    pooled_mean,
)
from sb3_per.compare.suite import FINAL_EVALUATIONS, Environment, Score, Suite, gym_id

ALL = "all"  # the rows over all environments
MEASURES = ("final", "area")
MEDIANS = ("median final", "median area")
# Colours that read on white and on black; text and the baseline are grey. Dashes help, too.
GREY, BLUE, ORANGE, GREEN = "#808080", "#3b8eea", "#e07b2a", "#2ba37f"
COLOURS = (GREY, BLUE, ORANGE, GREEN, "#a66de0", "#e0526f", "#b8960c", "#1aa3b8")
DASHES = ("-", "-", "--", "-.", ":")
TERMINAL_COLUMNS = ["seeds", "median final", "P final", "median area", "P area", "reached"]
TERMINAL_COLUMNS += ["steps to threshold", "steps/s", "CPU min"]
MOST_BANDS = 3  # more cannot be told apart
WIDTH = 5.4  # inches; 12-point text can still be read when a phone shrinks this to 340 pixels
COLUMNS = ["environment", "variant", "seeds", "final", "final - base", "median final", "P final"]
COLUMNS += ["area", "area - base", "median area", "P area", "reached", "steps to threshold"]
COLUMNS += ["steps/s", "CPU min"]
RUN_COLUMNS = ["variant", "environment", "seed", "final_return", "area_return", "final_score"]
RUN_COLUMNS += ["area_score", "steps_to_threshold", "steps_per_cpu_second", "cpu_seconds"]
RUN_COLUMNS += ["device", "support_edge"]

# Below the table, in a terminal, too.
_LEGEND = f"""\
- final: mean of the last {FINAL_EVALUATIONS} evaluations. area: mean of all, so it is larger
  if a run learns faster. Medians are over the seeds: of returns, and over all
  environments of scores (0: random policy, 1: solved).
- P: probability that a run is better than a run of the baseline, mean over the
  environments; ties count half.
- Brackets: 95 % bootstrap intervals, from {LEAST_RUNS} seeds on; with five seeds and
  P near 0 or 1, they are too narrow."""
_NOTES = f"""\
- *final*, *area*: interquartile means over the seeds.
- *reached*, *steps to threshold*, *steps/s*, *CPU min*: from all runs of a variant; other columns
  from the seeds that both have. Intervals are not corrected for their number.
- *steps to threshold*: median, in which runs that miss the threshold are longer than the training.
- *steps/s*: training steps per CPU second, without evaluations; median.
- Figure: interquartile means over the seeds, with 95 % intervals for up to {MOST_BANDS} variants;
  for fewer than {LEAST_RUNS} seeds, means, and single runs as thin lines. Dotted: the threshold,
  and a random policy."""


def write(results: Results, out: Path, variants: Sequence[str] = (), ending: str = "svg") -> str:
    """
    Write ``report.md``, the figure ``curves``, and ``runs.csv`` with a row for each run.

    :param out: Folder of the report.
    :param variants: The variants in the figure; empty for all.
    :param ending: Format of the figure: svg, pdf or png.
    :return: Who is better, and the main rows of the table, for a terminal.
    """
    suite = results.suite
    unknown = [name for name in variants if name not in suite.variants]
    if unknown:
        raise ValueError(f"--variants must be in {[*suite.variants]}, got {unknown}")
    out.mkdir(parents=True, exist_ok=True)
    runs = table_of_runs(results)
    rows = _rows(suite, runs)
    write_figure(results, out / f"curves.{ending}", variants)
    write_file(out / "runs.csv", runs.to_csv(index=False).encode())
    main = [row for row in rows if row["environment"] == rows[0]["environment"]]
    findings = [f"{row['pair']}: {row['verdict']}." for row in main if row["pair"]]
    findings += _unfit_supports(results)
    findings.append(_progress(results))
    page = _page(results, runs, findings, markdown(_frame(rows)), f"curves.{ending}")
    write_file(out / "report.md", f"{page}\n".encode())
    findings = [textwrap.fill(line, 80, subsequent_indent="  ") for line in findings]
    table = _frame(main).set_axis([row["name"] for row in main]).filter(TERMINAL_COLUMNS)
    # Pandas puts columns that do not fit below the others.
    shown = table.to_string(line_width=80)
    legend = _LEGEND + (_thresholds(suite) if "reached" in table else "")
    return "\n\n".join(["\n".join(findings), shown, legend])


def _page(
    results: Results, runs: pd.DataFrame, findings: Sequence[str], table: str, figure: str
) -> str:
    """Return the text of ``report.md``."""
    suite = results.suite
    parts = [f"# {_title(suite)}", "\n".join(f"- {line}" for line in findings), suite.about]
    if results.missing:
        missing = "\n".join(f"- {run}" for run in results.missing)
        parts.append(f"Failed or not yet made:\n\n{missing}")
    parts += [table, f"![Learning curves]({figure})"]
    parts += [f"{_LEGEND}{_thresholds(suite)}\n{_NOTES}", _made_with(results, runs)]
    return "\n\n".join(part for part in parts if part)


def _title(suite: Suite) -> str:
    """Return who is compared where; several environments have the name of their suite."""
    if len(suite.environments) > 1:
        return suite.name
    (environment,) = suite.environments
    *labels, last = map(suite.label, suite.variants)
    names = f"{', '.join(labels)} and {last}" if labels else last
    return f"{names} on {gym_id(environment)}"


def _thresholds(suite: Suite) -> str:
    """Return a line of the legend with the returns that count as reached."""
    known = {name: env.threshold for name, env in suite.environments.items()}
    listed = [f"{gym_id(name)} {value:g}" for name, value in known.items() if value is not None]
    text = f"- reached: runs with an evaluation at the threshold or above: {', '.join(listed)}."
    filled = textwrap.fill(text, 80, subsequent_indent="  ", break_on_hyphens=False)
    return f"\n{filled}" if listed else ""


def _unfit_supports(results: Results) -> list[str]:
    """Warn of Rainbow's supports that returns leave, or of which they use a small part."""
    found = []
    for environment, variant in itertools.product(
        results.suite.environments, results.suite.variants
    ):
        pairs = [pair for pair in results.finished if pair[0].environment == environment]
        rainbows = [result for run, result in pairs if run.variant == variant]
        rainbows = [result for result in rainbows if result.get("support_edge") is not None]
        if not rainbows:
            continue
        edge = max(result["support_edge"] for result in rainbows)
        low, high = rainbows[0].get("support", (0.0, 0.0))
        # Of all variants: those that learn nothing say little about the returns.
        span = np.ptp(np.concatenate([curve(run, result)[1] for run, result in pairs]))
        what = f"{results.suite.label(variant)}, {environment}: "
        if edge > LARGEST_SUPPORT_EDGE:
            what += f"returns leave the support (train/support_edge is {edge:.2f})"
        elif 0 < span < (high - low) / 10:
            what += f"all returns lie within a tenth of the support ({low:g} to {high:g})"
        else:
            continue
        found.append(f"{what}. Choose v_min and v_max that fit.")
    return found


def table_of_runs(results: Results) -> pd.DataFrame:
    """Return a row of numbers for each finished run."""
    rows = []
    last = slice(-FINAL_EVALUATIONS, None)
    for run, result in results.finished:
        environment = results.suite.environments[run.environment]
        steps, returns = curve(run, result)
        score = environment.score or Score(random=0, solved=1)
        scores = (returns - score.random) / (score.solved - score.random)
        reached = math.nan
        if environment.threshold is not None:
            # Rounded, so that a mean of thresholds is one, however its episodes were added.
            hits = steps[np.round(returns - environment.threshold, 9) >= 0]
            reached = float(hits[0]) if hits.size else math.inf
        rows.append(
            {
                "variant": run.variant,
                "environment": run.environment,
                "seed": run.seed,
                "final_return": returns[last].mean(),
                "area_return": returns.mean(),
                # Rounded, so that equal returns are ties, whatever the order of their sum.
                "final_score": round(float(scores[last].mean()), 9),
                "area_score": round(float(scores.mean()), 9),
                "steps_to_threshold": reached,
                "steps_per_cpu_second": result["trained"] / result["seconds"]["training_cpu"],
                "cpu_seconds": result["seconds"]["cpu"],
                "device": result["versions"].get("device"),
                "support_edge": result.get("support_edge"),
            }
        )
    return pd.DataFrame(rows, columns=RUN_COLUMNS)


def table(suite: Suite, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of a report: over all environments and in each, for each variant."""
    return _frame(_rows(suite, runs))


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS).dropna(axis="columns", how="all").fillna("")


def _rows(suite: Suite, runs: pd.DataFrame) -> list[dict[str, Any]]:
    scopes: dict[str, list[str]] = {name: [name] for name in suite.environments}
    if len(scopes) > 1:
        scopes = {ALL: [*suite.environments], **scopes}
    rows = []
    for scope, environments in scopes.items():
        for variant in suite.variants:
            label = suite.label(variant)
            row: dict[str, Any] = {"environment": scope, "variant": label, "name": label}
            row["pair"] = "" if variant == suite.baseline else _pair(suite, variant, suite.baseline)
            row |= _row(runs, environments, variant, suite.baseline)
            row |= _pace(suite, runs, variant, environments)
            rows.append(row)
        for name, pair in suite.contrasts.items():
            said = _pair(suite, pair.variant, pair.over)
            label = pair.label or name
            row = {"environment": scope, "variant": f"{label} ({said})", "name": label}
            row |= {"pair": said, **_row(runs, environments, pair.variant, pair.over)}
            rows.append(row | dict.fromkeys([*MEASURES, *MEDIANS], ""))
    return rows


def _pair(suite: Suite, variant: str, over: str) -> str:
    return f"{suite.label(variant)} over {suite.label(over)}"


def _row(
    runs: pd.DataFrame, environments: Sequence[str], variant: str, over: str
) -> dict[str, Any]:
    """Compare two variants, on the seeds that both have finished in all these environments."""
    both = [[_select(runs, name, scope) for scope in environments] for name in (variant, over)]
    seeds = sorted(set.intersection(*(set(part.index) for part in (*both[0], *both[1]))))
    row: dict[str, Any] = {"seeds": len(seeds), "verdict": _too_few(len(seeds))}
    if not seeds:
        return row
    unit, digits = ("return", None) if len(environments) == 1 else ("score", 3)
    chances = {}
    for measure in MEASURES:
        values, scores = (
            [[part.loc[seeds, column].to_numpy() for part in parts] for parts in both]
            for column in (f"{measure}_{unit}", f"{measure}_score")
        )
        row[measure] = as_text(pooled_mean(values[0]))
        row[f"median {measure}"] = _number(float(np.median(values[0])), digits)
        if variant != over:
            chance = improvement(*scores)
            row[f"{measure} - base"] = as_text(difference(*values), digits)
            row[f"P {measure}"] = as_text(chance, 2)
            chances[measure] = chance
    if variant != over:
        row["verdict"] = _verdict(chances, len(seeds))
    return row


def _verdict(chances: Mapping[str, Estimate], n_seeds: int) -> str:
    """Say by which measures one variant is better, if that can be told."""
    if n_seeds < LEAST_RUNS:
        return _too_few(n_seeds)
    sides = [f"{_side(chance)} by {measure}" for measure, chance in chances.items()]
    return f"{', '.join(sides)} ({n_seeds} seeds)"


def _too_few(n_seeds: int) -> str:
    return f"too few seeds to tell ({n_seeds} of {LEAST_RUNS})"


def _side(chance: Estimate) -> str:
    return "better" if chance.low > 0.5 else "worse" if chance.high < 0.5 else "undecided"


def _select(runs: pd.DataFrame, variant: str, environment: str) -> pd.DataFrame:
    chosen = runs[(runs["variant"] == variant) & (runs["environment"] == environment)]
    return chosen.set_index("seed")


def _pace(
    suite: Suite, runs: pd.DataFrame, variant: str, environments: Sequence[str]
) -> dict[str, object]:
    """Return what all runs of a variant cost, and when they reach the threshold."""
    chosen = runs[(runs["variant"] == variant) & runs["environment"].isin(environments)]
    if chosen.empty:
        return {}
    pace: dict[str, object] = {"steps/s": f"{chosen['steps_per_cpu_second'].median():,.0f}"}
    minutes = chosen["cpu_seconds"].median() / 60
    pace["CPU min"] = f"{minutes:,.{1 if minutes >= 1 else 2}f}"
    environment = suite.environments[environments[0]]
    if len(environments) == 1 and environment.threshold is not None:
        reached = np.sort(chosen["steps_to_threshold"])
        # All runs have the same length, so this is the estimate of Kaplan and Meier (1958).
        median = reached[(len(reached) + 1) // 2 - 1]
        beyond = f"> {environment.steps:,}"
        pace["reached"] = f"{np.isfinite(reached).sum()} of {len(reached)}"
        pace["steps to threshold"] = beyond if math.isinf(median) else f"{median:,.0f}"
    return pace


def as_text(estimate: Estimate, digits: int | None = None) -> str:
    """Return an estimate with its interval, as in ``0.35 [0.23, 0.47]``."""
    value, low, high = (_number(number, digits) for number in estimate)
    return value if math.isnan(estimate.low) else f"{value} [{low}, {high}]"


def _number(value: float, digits: int | None) -> str:
    digits = (2 if abs(value) < 10 else 1) if digits is None else digits
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # + 0.0: no negative zero


def markdown(rows: pd.DataFrame) -> str:
    """Return a table in Markdown."""
    lines = [[*rows.columns], ["---"] * len(rows.columns), *rows.astype(str).to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _progress(results: Results) -> str:
    n_finished, n_missing = len(results.finished), len(results.missing)
    return f"{n_finished} of {n_finished + n_missing} runs are finished."


def _made_with(results: Results, runs: pd.DataFrame) -> str:
    versions = {pair for _, result in results.finished for pair in result["versions"].items()}
    listed = ", ".join(f"{package} {version}" for package, version in sorted(versions))
    cpu_time = timedelta(seconds=round(runs["cpu_seconds"].sum()))
    return f"CPU time of all runs: {cpu_time}. Made with: {listed or 'nothing yet'}."


def write_figure(
    results: Results,
    file: Path,
    variants: Sequence[str] = (),
    titles: Mapping[str, str] | None = None,
) -> None:
    """
    Draw learning curves: a panel for each environment, one below the other.

    :param variants: The variants to draw, in this order; empty for all.
    :param titles: The environments to draw, and their names; None for all.
    """
    suite = results.suite
    shown = [*(variants or suite.variants)]
    if titles is None:
        titles = {name: gym_id(name).rpartition("/")[2] for name in suite.environments}
    with figure_style():
        height = 1.9 * len(titles) + 0.6 + 0.22 * len(shown)
        figure = Figure((WIDTH, height), layout="constrained")
        panels = figure.subplots(len(titles), squeeze=False).ravel()
        for panel, (name, title) in zip(panels, titles.items(), strict=True):
            for i, variant in enumerate(shown):
                # The first colour and line are the baseline's.
                style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}
                draw_curves(panel, results, (variant, name), style, len(shown) <= MOST_BANDS)
            _dress(panel, title, suite.environments[name])
        add_legend(figure, panels[0])
        figure.supxlabel("environment steps", fontsize="medium")
        figure.supylabel("mean return", fontsize="medium")
        save_figure(figure, file)


def add_legend(figure: Figure, panel: Any) -> None:
    """Explain the lines of a panel above the figure: in two columns, if their names are short."""
    handles, labels = panel.get_legend_handles_labels()
    n_columns = 2 if max(map(len, labels)) < 20 else 1
    figure.legend(handles, labels, loc="outside upper center", ncols=n_columns)


def figure_style() -> AbstractContextManager[None]:
    """
    Return a context in which figures read on white and on black, whatever style the user has set.

    Their background is transparent, and $ in names is text.
    """
    clear = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none")
    grey = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    sizes = dict.fromkeys(("font.size", "axes.titlesize", "legend.fontsize"), 12)
    sizes["lines.linewidth"] = 2
    spines: dict[str, Any] = {"axes.spines.top": False, "axes.spines.right": False}
    rest = {
        "legend.frameon": False,
        "text.parse_math": False,
        "grid.color": GREY,
        "grid.alpha": 0.3,
    }
    changes = clear | dict.fromkeys(grey, GREY) | sizes | spines | rest
    return matplotlib.style.context(["default", changes])


def save_figure(figure: Figure, file: Path) -> None:
    """Write a figure. Equal results give equal files, without dates and random identifiers."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": file.stem}):
        metadata = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, dpi=150, metadata=metadata)


def draw_curves(
    panel: Any,
    results: Results,
    which: tuple[str, str],
    style: dict[str, Any],
    has_band: bool,
) -> None:
    """Draw a variant in an environment: its mean, and its interval or the runs of a few seeds."""
    label = results.suite.label(which[0])
    curves = [
        curve(run, result)
        for run, result in results.finished
        if (run.variant, run.environment) == which
    ]
    panel.plot([], [], label=label, **style)  # in the legend, also without runs
    if not curves:
        return
    steps, returns = curves[0][0], np.array([returns for _, returns in curves])
    if len(curves) < LEAST_RUNS:
        marker = "o" if len(steps) == 1 else None
        panel.plot(steps, returns.T, linewidth=1, alpha=0.4, marker=marker, **style)
        panel.plot(steps, returns.mean(axis=0), **style)
        return
    middle, low, high = band(returns)
    panel.plot(steps, middle, **style)
    if has_band:
        panel.fill_between(steps, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _dress(panel: Any, title: str, environment: Environment) -> None:
    random = environment.score and environment.score.random
    limits = panel.get_ylim()
    for value in (environment.threshold, random):
        if value is not None:
            panel.axhline(value, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    panel.set_ylim(limits)  # a threshold far away would press the curves flat
    panel.set_title(title, loc="left", fontweight="bold")
    panel.set_xlim(0, environment.steps)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.locator_params(nbins=4)  # more would touch each other
