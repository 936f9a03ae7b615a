"""From a run folder to a report: figures, tables and what may be claimed from them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sb3_per.compare import declare, figures, results, tables
from sb3_per.compare.scores import FINAL_EVALUATIONS, Run, run_of
from sb3_per.compare.section import SuiteError
from sb3_per.compare.suite import Cell, Suite, cells
from sb3_per.compare.summary import LEAST_SEEDS, compare

_METHOD = f"""\
Scores are 0 at a random policy's return and 1 at the solved one (below). *final* is the mean of a
run's last {FINAL_EVALUATIONS} evaluations, *area* the mean of all of them. IQM: interquartile mean.
Brackets and bands hold 95 % bootstrap intervals (percentile, resampling the runs within each
environment). The probability of improvement is that of a run of the variant over a run of the
baseline, mean over environments; ties count half. "Better" is claimed only where its interval lies
above 0.5, and nothing with fewer than {LEAST_SEEDS} seeds; claims are not corrected for their
number. A threshold is reached at the first evaluation whose mean return is as large; runs that
never do count as beyond the end. Steps per second leave evaluations out; CPU seconds are what a
busy machine does not distort."""
_FAIR = """\
Within an environment all variants share hyperparameters, network, steps, seeds and evaluation. What
differs is this, and nothing else:"""


def write(folder: Path, out: Path) -> Path:
    """
    Write the report of a run folder, a function of its files alone.

    :param folder: Where ``run`` has worked.
    :param out: Where to; files of the same names are replaced.
    :return: The report in Markdown.
    :raises SuiteError: if ``folder`` is no run folder, or holds no result yet.
    :raises MixedResults: if a result was made with other settings than the suite's.
    """
    if not (folder / results.SUITE).is_file():
        raise SuiteError(f"{folder} must be a run folder, but it holds no {results.SUITE}")
    suite = declare.load(str(folder / results.SUITE))
    grid = cells(suite)
    found = {str(cell): results.read(folder, cell) for cell in grid}
    runs = [
        run_of(cell, result, suite.environments[cell.environment])
        for cell in grid
        if (result := found[str(cell)]) is not None
    ]
    if not runs:
        raise SuiteError(f"{folder} holds no result yet")
    missing = [cell for cell in grid if found[str(cell)] is None]
    comparisons = compare(suite, runs, missing)
    out.mkdir(parents=True, exist_ok=True)
    figures.curves(suite, runs, out / "curves")
    figures.intervals(suite, comparisons, out / "intervals")
    tables.write_csv(tables.of_runs(runs), out / "runs.csv")
    parts = [
        *_heading(suite, runs, missing, results.strangers(folder, grid)),
        tables.markdown(tables.of_suite(suite, comparisons)),
        "![probability of improvement](intervals.png)",
        "![learning curves](curves.png)",
        tables.markdown(tables.of_environments(suite, runs)),
        _METHOD,
        *_settings(suite),
        *_made_by([result for result in found.values() if result is not None]),
    ]
    path = out / "report.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _heading(
    suite: Suite, runs: Sequence[Run], missing: Sequence[Cell], strangers: Sequence[Path]
) -> Iterator[str]:
    n_variants, n_environments = len(suite.variants), len(suite.environments)
    yield f"# {suite.name}\n\n{suite.about}"
    yield (
        f"{n_variants} variants in {n_environments} environments with {suite.seeds} seeds: "
        f"{len(runs)} of {len(runs) + len(missing)} runs are finished."
    )
    if missing:
        listed = "\n".join(f"- {cell}" for cell in missing)
        yield f"**The grid is incomplete.** Failed or not yet run:\n\n{listed}"
    if strangers:
        yield f"{len(strangers)} results in the folder are not part of the grid and left out."


def _settings(suite: Suite) -> Iterator[str]:
    yield f"## What is compared\n\n{_FAIR}"
    yield tables.markdown(
        [
            {
                "variant": name,
                "RL-Zoo algorithm": variant.algorithm,
                "overrides": _listed(variant.overrides),
                "times": _listed(variant.scale),
            }
            for name, variant in suite.variants.items()
        ]
    )
    yield tables.markdown(
        [
            {
                "environment": name,
                "steps": f"{each.steps:,}",
                "evaluation": f"{each.evaluation.episodes} episodes / {each.evaluation.every:,}",
                "random": each.score.random,
                "solved": each.score.solved,
                "threshold": each.threshold,
                "source": each.score.source,
                "shared hyperparameters": _listed(each.hyperparameters | each.env_kwargs),
            }
            for name, each in suite.environments.items()
        ]
    )


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in values.items())


def _made_by(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    every: dict[str, dict[str, None]] = {}
    for result in found:
        for name, value in (result["versions"] | result["machine"]).items():
            every.setdefault(name, {})[str(value)] = None
    yield "Made with " + ", ".join(f"{name} {' and '.join(each)}" for name, each in every.items())
    mixed = [name for name, each in every.items() if len(each) > 1]
    if mixed:
        yield f"**Runs differ in {', '.join(mixed)}**, beside their settings."
