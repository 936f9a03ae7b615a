"""The report of a run folder: figures, tables and the claims that they allow."""

import itertools
import textwrap
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import NamedTuple

from sb3_per.experiments.common.drawing import PNG_AND_SVG, Output, own_style
from sb3_per.experiments.compare import curves, figures, run_folder, suite_file, tables
from sb3_per.experiments.compare.environment import FINAL_EVALUATIONS
from sb3_per.experiments.compare.problems import SuiteError
from sb3_per.experiments.compare.scores import IMPLAUSIBLE, Run, run_of
from sb3_per.experiments.compare.statistics import LEAST_RUNS
from sb3_per.experiments.compare.suite import Cell, Suite, cells
from sb3_per.experiments.compare.summary import MARGIN, Comparison, compare, contrasts
from sb3_per.saving.atomic import new_file

_METHOD = f"""\
Scores are 0 at a random policy's return and 1 at the return of a solved task (below). *final* is
the mean of a run's last {FINAL_EVALUATIONS} evaluations, *area* the mean of all evaluations. IQM is
the interquartile mean over environments and seeds. Only seeds count that both variants have
finished in every environment. Brackets and bands are 95 % bootstrap intervals (percentile,
resampling the runs within each environment); with fewer than {LEAST_RUNS} runs there is no
interval. P is the probability that a run of the variant is better than a run of the baseline, mean
over environments; ties count half.

"Better" and "worse" are claimed only if the interval of P lies on one side of 0.5. "Non-inferior"
is claimed only if the interval of the difference of IQMs lies above -{MARGIN}. Nothing is claimed
with fewer than {LEAST_RUNS} seeds. The interquartile mean leaves out the worst quarter of all runs,
which may all come from one environment. Therefore "non-inferior" is also withheld if in a single
environment the interval of P lies below 0.5 and the interval of the difference reaches below
-{MARGIN}; the claim names this environment. Claims are not corrected for their number. With five
seeds in one environment, about one comparison in ten finds a difference between equal variants,
not one in twenty. Adding seeds after a look at the report makes such errors more frequent.

A run reaches the threshold at the first evaluation with at least this mean return. Runs that never
reach it count as longer than the training. Steps per second leave evaluations out; on a busy
machine, steps per CPU second are the more reliable number."""
_FAIR = """\
Within an environment, all variants share hyperparameters, network, steps, seeds and evaluation. As
in RL-Zoo, evaluation environments have the seed of the training. These settings differ:"""
_ALGORITHMS = """\
The algorithms differ in two more ways. `per_dqn` uses torch's fused Adam and `dqn` the plain one:
the same formula with other rounding, but faster, as the steps per second show. And `per_dqn`
samples batches with a random generator of its own, while `dqn` uses the generator that also decides
when to explore. Each difference changes single runs as much as another seed does. The `per_dqn`
variants of a seed start with the same exploration, so their results are not independent."""


class _Contents(NamedTuple):
    suite: Suite
    runs: list[Run]
    missing: list[Cell]
    strangers: list[Path]


def write(
    folder: Path, out: Path, variants: Sequence[str] = (), output: Output = PNG_AND_SVG
) -> list[str]:
    """
    Write the report of a run folder: ``report.md``, figures as PNG and SVG, ``runs.csv``.

    The report depends only on the folder's files.

    :param out: The folder of the report; files of the same names are replaced.
    :param variants: The variants in the figures; empty for all. Tables always hold all variants.
    :param output: Formats and width of the figures.
    :return: A summary, in lines of at most 80 characters; the last one is a path.
    :raises SuiteError: if ``folder`` is no run folder, holds no result yet, or its suite has no
        such variants.
    :raises MixedResults: if a result was made with other settings than the suite's.
    :raises DamagedResult: if a result is not what a worker has written.
    :raises OSError: if ``out`` cannot be made, before anything is computed.
    """
    contents = _read(folder)
    suite, runs = contents.suite, contents.runs
    unknown = [name for name in variants if name not in suite.variants]
    if unknown:
        known = ", ".join(suite.variants)
        raise SuiteError(f"--variants must be of {known}, got {', '.join(unknown)}")
    out.mkdir(parents=True, exist_ok=True)
    comparisons = compare(suite, runs, contents.missing)
    gains = contrasts(suite, runs, contents.missing)
    with own_style():
        curves.draw(suite, runs, out / "curves", variants, output)
        figures.intervals(suite, comparisons, out / "intervals", variants, output)
        figures.gains(suite, gains, out / "gains", output)
    tables.as_csv(tables.of_runs(runs), out / "runs.csv")
    parts = [*_heading(contents), *_gains(suite, gains)]
    parts += [*_findings(contents, comparisons), *_settings(contents)]
    with new_file(out / "report.md") as file:
        file.write(("\n\n".join([*parts, *_made_by(contents)]) + "\n").encode())
    said = [
        f"{suite.name}: {_progress(contents)}",
        *(f"Failed or not yet run: {line}" for line in tables.seeds_of(contents.missing)),
        *_left_out(contents),
        *_implausible(contents),
        *_claims(suite, comparisons),
    ]
    return [*itertools.chain(*map(_wrapped, said)), f"{out / 'report.md'}"]


def _read(folder: Path) -> _Contents:
    if not (folder / run_folder.SUITE).is_file():
        raise SuiteError(f"{folder} must be a run folder, but it holds no {run_folder.SUITE}")
    suite = suite_file.load(str(folder / run_folder.SUITE))
    grid = cells(suite)
    runs, missing = [], []
    for cell in grid:
        result = run_folder.read(folder, cell)
        if result is None:
            missing.append(cell)
        else:
            runs.append(run_of(cell, result, suite.environments[cell.environment]))
    if not runs:
        raise SuiteError(f"{folder} holds no result yet")
    return _Contents(suite, runs, missing, run_folder.strangers(folder, grid))


def _progress(contents: _Contents) -> str:
    n_runs = len(contents.runs)
    return f"{n_runs} of {n_runs + len(contents.missing)} runs are finished."


def _claims(suite: Suite, comparisons: Sequence[Comparison]) -> Iterator[str]:
    for each in comparisons:
        if each.improvement is not None:
            probability = tables.text(each.improvement)
            baseline = suite.baseline_label
            yield f"{each.measure}: {each.label}, P(better than {baseline}) {probability}"
            yield f"    {each.claim}"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 80, subsequent_indent="    ", break_on_hyphens=False)


def _heading(contents: _Contents) -> Iterator[str]:
    suite = contents.suite
    yield f"# {suite.name}\n\n{suite.about}"
    yield (
        f"{_count(suite.variants, 'variant')} in {_count(suite.environments, 'environment')} with "
        f"{_count(range(suite.seeds), 'seed')}. {_progress(contents)}"
    )
    if contents.missing:
        listed = "\n".join(f"- {line}" for line in tables.seeds_of(contents.missing))
        yield f"**The grid is incomplete.** Failed or not yet run:\n\n{listed}"
    yield from _left_out(contents)
    yield from (f"**{line}**" for line in _implausible(contents))


def _left_out(contents: _Contents) -> Iterator[str]:
    if contents.strangers:
        what = _count(contents.strangers, "result")
        yield f"Left out, because they are not part of the suite: {what} in the folder."


def _implausible(contents: _Contents) -> Iterator[str]:
    cells = [run.cell for run in contents.runs if not run.is_plausible]
    if cells:
        rule = f"episodes with a score beyond -{IMPLAUSIBLE} or {IMPLAUSIBLE}"
        advice = "check the result files, and random and solved in the suite"
        yield f"Implausible ({rule}; {advice}): {'; '.join(tables.seeds_of(cells))}"


def _count(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'s' if len(things) != 1 else ''}"


def _gains(suite: Suite, gains: Sequence[Comparison]) -> Iterator[str]:
    if gains:
        yield tables.as_markdown(tables.of_contrasts(suite, gains))
        yield "![what each part adds](gains.png)"


def _findings(contents: _Contents, comparisons: Sequence[Comparison]) -> Iterator[str]:
    suite = contents.suite
    if comparisons:
        yield tables.as_markdown(tables.of_suite(suite, comparisons))
        yield f"![probability of improvement over {suite.baseline_label}](intervals.png)"
    else:
        yield "No variant has a run in every environment yet, so the whole suite has no result."
    yield "![learning curves](curves.png)"
    yield tables.as_markdown(tables.of_environments(suite, contents.runs))
    yield _METHOD


def _settings(contents: _Contents) -> Iterator[str]:
    yield f"## What is compared\n\n{_FAIR}"
    yield tables.as_markdown(tables.of_variants(contents.suite))
    if {"dqn", "per_dqn"} <= {each.algorithm for each in contents.suite.variants.values()}:
        yield _ALGORITHMS
    yield tables.as_markdown(tables.of_shared_settings(contents.suite, contents.runs))
    for name, each in contents.suite.environments.items():
        yield f"Shared in {name}: {tables.listed(each.hyperparameters | each.env_kwargs)}"


def _made_by(contents: _Contents) -> Iterator[str]:
    every: dict[str, dict[str, None]] = {}
    for run in contents.runs:
        for name, value in (run.result["versions"] | run.result["machine"]).items():
            every.setdefault(name, {})[str(value)] = None
    duration = _duration(sum(run.cpu_seconds for run in contents.runs))
    yield (
        f"Trained in {duration}. `sb3-per compare run {run_folder.SUITE} --out FOLDER` "
        "with the file from the run folder repeats the training."
    )
    yield "Made with " + ", ".join(f"{name} {' and '.join(each)}" for name, each in every.items())
    n_untold = sum("built" not in run.result for run in contents.runs)
    if n_untold:
        yield f"{n_untold} runs do not record the defaults of their models."
    for variant, environment in _built_differently(contents):
        yield f"**The runs of {variant} in {environment} differ in defaults of their models.**"
    mixed = [name for name, each in every.items() if len(each) > 1]
    if mixed:
        yield f"**The runs also differ in {', '.join(mixed)}.**"


def _duration(cpu_seconds: float) -> str:
    for unit, seconds in (("hours", 3600), ("minutes", 60)):
        if cpu_seconds >= seconds:
            return f"{cpu_seconds / seconds:.1f} CPU {unit}"
    return f"{cpu_seconds:.1f} CPU seconds"


def _built_differently(contents: _Contents) -> list[tuple[str, str]]:
    built: dict[tuple[str, str], list[object]] = {}
    for run in contents.runs:
        found = built.setdefault((run.cell.variant, run.cell.environment), [])
        if run.result.get("built") not in (None, *found):
            found.append(run.result["built"])
    return [names for names, found in built.items() if len(found) > 1]
