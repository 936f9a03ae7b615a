"""The numbers of a report as rows, for Markdown and for CSV."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sb3_per.experiments.common.tables import markdown, write_csv
from sb3_per.experiments.compare.scores import Run, censored_median
from sb3_per.experiments.compare.statistics import Estimate, improvement, pooled_mean
from sb3_per.experiments.compare.suite import Cell, Suite
from sb3_per.experiments.compare.summary import MEASURES, Comparison, select

Row = dict[str, Any]


def of_suite(suite: Suite, comparisons: Sequence[Comparison]) -> list[Row]:
    """Return a row for each variant and measure, over all environments."""
    baseline = suite.baseline_label
    return [
        {
            "measure": each.measure,
            "variant": each.label,
            "IQM": each.score,
            f"IQM - {baseline}'s": _finely(each.difference),
            f"P(better than {baseline})": each.improvement,
            "claim": each.claim,
        }
        for each in comparisons
    ]


def of_contrasts(suite: Suite, comparisons: Sequence[Comparison]) -> list[Row]:
    """Return a row for each contrast and measure, over all environments."""
    rows = []
    for each in comparisons:
        pair = suite.contrasts[each.variant]
        labels = suite.variant_label(pair.variant), suite.variant_label(pair.over)
        row: Row = {
            "measure": each.measure,
            "gain of": each.label,
            "variants": " over ".join(labels),
            "difference of IQM": _finely(each.difference),
            "P(better)": each.improvement,
            "claim": each.claim,
        }
        rows.append(row)
    return rows


def _finely(differs: Estimate | None) -> str:
    """Return a difference with enough digits to show its side of the margin."""
    return text(differs, lambda value: f"{value + 0.0:.3f}")


def of_environments(suite: Suite, runs: Sequence[Run]) -> list[Row]:
    """Return a row for each environment and variant, in the environment's own units."""
    rows = []
    for name, environment in suite.environments.items():
        for variant in suite.variants:
            found = select(runs, variant, name)
            label = suite.variant_label(variant)
            row: Row = {"environment": name, "variant": label, "seeds": len(found)}
            if found:
                row |= _in_own_units(found, environment.steps)
            others = select(runs, suite.baseline, name)
            if found and others and variant != suite.baseline:
                for measure in MEASURES:
                    own, other = (
                        np.array([getattr(run, measure) for run in each])
                        for each in (found, others)
                    )
                    column = f"{measure}: P(better than {suite.baseline_label})"
                    row[column] = improvement([own], [other])
            rows.append(row)
    return rows


def _in_own_units(found: list[Run], steps: int) -> Row:
    reached = np.array([run.reached for run in found])
    median = censored_median(reached)
    beyond = f"> {steps:,}"  # runs that never reached the threshold end there
    n_reached = int(np.isfinite(reached).sum())
    return {
        "final return (IQM)": pooled_mean([np.array([run.final_return for run in found])]),
        "steps to threshold (median)": beyond if math.isinf(median) else f"{median:,.0f}",
        "reached": f"{n_reached} of {len(found)}",
        "steps/s": float(np.median([run.steps_per_second for run in found])),
        "steps/CPU s": float(np.median([run.steps_per_cpu_second for run in found])),
    }


def seeds_of(cells: Sequence[Cell]) -> list[str]:
    """Return a line for each environment with the variants and seeds of its cells."""
    seeds: dict[str, dict[str, list[int]]] = {}
    for cell in cells:
        seeds.setdefault(cell.environment, {}).setdefault(cell.variant, []).append(cell.seed)
    return [
        f"{environment}, seeds: "
        + "; ".join(f"{variant} {_ranges(found)}" for variant, found in variants.items())
        for environment, variants in seeds.items()
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """Return rising numbers as text: 1, 3-5."""
    groups = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])  # equal within a range
    ranges = [[number for _, number in group] for _, group in groups]
    return ", ".join(f"{all_[0]}-{all_[-1]}" if len(all_) > 1 else f"{all_[0]}" for all_ in ranges)


def of_runs(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each run; a threshold that was not reached is left empty."""
    return [
        {
            "variant": run.cell.variant,
            "environment": run.cell.environment,
            "seed": run.cell.seed,
            "final_return": run.final_return,
            "final_score": run.final,
            "area_score": run.area,
            "steps_to_threshold": "" if math.isinf(run.reached) else int(run.reached),
            "steps_per_second": run.steps_per_second,
            "steps_per_cpu_second": run.steps_per_cpu_second,
            "cpu_seconds": run.cpu_seconds,
        }
        for run in runs
    ]


def of_variants(suite: Suite) -> list[Row]:
    """Return a row for each variant with its differences."""
    return [
        {
            "variant": f"{variant.label} ({name})" if variant.label else name,
            "RL-Zoo algorithm": variant.algorithm,
            "overrides": listed(variant.overrides),
            "multiplied": listed(variant.scale),
        }
        for name, variant in suite.variants.items()
    ]


def of_shared_settings(suite: Suite, runs: Sequence[Run]) -> list[Row]:
    """Return a row for each environment with the settings that its variants share."""
    explores = {run.cell.environment for run in runs if not run.is_greedy}
    return [
        {
            "environment": name,
            "steps": f"{each.steps:,}",
            "evaluated every": f"{each.evaluation.every:,}",
            "episodes": each.evaluation.episodes,
            "evaluated policy": "still explores" if name in explores else "greedy",
            "random": each.score.random,
            "solved": each.score.solved,
            "threshold": each.threshold,
            "from": each.score.source,
        }
        for name, each in suite.environments.items()
    ]


def listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in values.items())


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a table with the columns of all rows."""
    columns = _columns(rows)
    return markdown(columns, [[text(row.get(column)) for column in columns] for row in rows])


def as_csv(rows: Sequence[Row], path: Path) -> None:
    """Write a file with the columns of all rows."""
    columns = _columns(rows)
    values = [[row.get(column, "") for column in columns] for row in rows]
    write_csv(path, columns, values, line_end="\r\n")


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def _number(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # + 0.0: no negative zero


def text(value: object, number: Callable[[float], str] = _number) -> str:
    """
    Return a value as text, an estimate with its interval.

    :param number: Formats numbers; by default, with a suitable number of digits.
    """
    if isinstance(value, Estimate):
        interval = "" if math.isnan(value.low) else f" [{number(value.low)}, {number(value.high)}]"
        return f"{number(value.value)}{interval}"
    return number(value) if isinstance(value, float) else "" if value is None else str(value)
