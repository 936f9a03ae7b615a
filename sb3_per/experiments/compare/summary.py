"""The comparisons of a suite's variants, and the claims that they allow."""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from sb3_per.experiments.compare.scores import Run
from sb3_per.experiments.compare.statistics import (
    LEAST_RUNS,
    Estimate,
    Strata,
    difference,
    improvement,
    pooled_mean,
)
from sb3_per.experiments.compare.suite import Cell, Suite

MARGIN = 0.05  # of the normalised score: a smaller loss counts as none
MEASURES: tuple[Literal["final", "area"], ...] = ("final", "area")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """
    A variant, or what it adds to another variant, by one measure over the whole suite.

    :param variant: The key of the variant or the contrast in the suite.
    :param label: Its name in tables and figures.
    :param n_seeds: Number of seeds that both variants have finished in every environment.
    :param score: Interquartile mean.
    :param difference: Difference from the baseline or the other variant; None for the baseline.
    :param improvement: Probability of improvement over it; None for the baseline.
    :param claim: The claim, in words.
    """

    variant: str
    label: str
    measure: str
    n_seeds: int
    score: Estimate
    difference: Estimate | None = None
    improvement: Estimate | None = None
    claim: str = ""


def select(runs: Sequence[Run], variant: str, environment: str) -> list[Run]:
    """Return the finished runs of a variant in an environment."""
    wanted = (variant, environment)
    return [run for run in runs if (run.cell.variant, run.cell.environment) == wanted]


def compare(suite: Suite, runs: Sequence[Run], missing: Sequence[Cell]) -> list[Comparison]:
    """
    Compare every variant with the baseline.

    :param runs: The finished cells.
    :param missing: The other cells of the grid.
    :return: For each measure, the baseline and each variant, if both have finished a common seed in
        every environment.
    """
    pairs = {
        name: _Pair(name, suite.baseline, suite.variant_label(name)) for name in suite.variants
    }
    return _comparisons(suite, runs, missing, pairs)


def contrasts(suite: Suite, runs: Sequence[Run], missing: Sequence[Cell]) -> list[Comparison]:
    """Compare what the suite's contrasts name, in the same way."""
    pairs = {
        name: _Pair(each.variant, each.over, each.label or name)
        for name, each in suite.contrasts.items()
    }
    return _comparisons(suite, runs, missing, pairs)


class _Pair(NamedTuple):
    variant: str
    over: str
    label: str


def _comparisons(
    suite: Suite, runs: Sequence[Run], missing: Sequence[Cell], pairs: Mapping[str, _Pair]
) -> list[Comparison]:
    unfinished = {cell.variant for cell in missing}
    comparisons = []
    for measure, (name, pair) in product(MEASURES, pairs.items()):
        scores, others = _scores(suite, runs, measure, pair)
        n_seeds = len(scores[0])
        if n_seeds == 0:
            continue
        comparison = Comparison(name, pair.label, measure, n_seeds, pooled_mean(scores))
        if pair.variant != pair.over:
            improved, differs = improvement(scores, others), difference(scores, others)
            worse_in = _worse_in([*suite.environments], scores, others)
            is_whole = unfinished.isdisjoint((pair.variant, pair.over))
            said = claim(improved, differs, worse_in, n_seeds, is_whole)
            comparison = dataclasses.replace(
                comparison, difference=differs, improvement=improved, claim=said
            )
        comparisons.append(comparison)
    return comparisons


def _scores(suite: Suite, runs: Sequence[Run], measure: str, pair: _Pair) -> tuple[Strata, Strata]:
    """
    Return the scores of two variants, for the seeds that both have finished in every environment.

    With all seeds of an unfinished grid, one variant might be measured on easier tasks.
    """
    found = {
        (run.cell.variant, run.cell.environment, run.cell.seed): getattr(run, measure)
        for run in runs
    }
    both = [*product((pair.variant, pair.over), suite.environments)]
    seeds = [seed for seed in suite.all_seeds if all((*each, seed) in found for each in both)]
    strata = [np.array([found[(*each, seed)] for seed in seeds]) for each in both]
    return strata[: len(suite.environments)], strata[len(suite.environments) :]


def _worse_in(environments: Sequence[str], scores: Strata, others: Strata) -> list[str]:
    """Return the environments, if there are several, in which a variant is worse than another."""
    return [
        environment
        for environment, own, other in zip(environments, scores, others, strict=True)
        # In a single one this is what the whole comparison says.
        if len(environments) > 1
        and improvement([own], [other]).high < 0.5
        and difference([own], [other]).low <= -MARGIN
    ]


def claim(
    improved: Estimate, differs: Estimate, worse_in: Sequence[str], n_seeds: int, is_whole: bool
) -> str:
    """
    Return the claim that the estimates allow, in words.

    :param improved: Probability of improvement over the baseline.
    :param differs: How much larger the interquartile mean is.
    :param worse_in: Environments in which the variant is worse, and maybe by more than the margin.
        The interquartile mean may leave them out, with the worst quarter of all runs.
    :param n_seeds: Number of seeds of either variant in every environment.
    :param is_whole: Whether both variants have all cells; a run that crashed may be a bad run.
    """
    if n_seeds < LEAST_RUNS:
        return f"no claim can be made: fewer than {LEAST_RUNS} seeds"
    if not is_whole:
        return "no claim can be made: runs are missing"
    loses_little = differs.low > -MARGIN and not worse_in
    if improved.low > 0.5:
        said = "better" if loses_little else "better, but not shown to be non-inferior"
    else:
        said = "worse" if improved.high < 0.5 else "no difference shown"
        said += ", non-inferior" if loses_little else ""
    return f"{said}; worse in {', '.join(worse_in)}" if worse_in else said
