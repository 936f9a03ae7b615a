"""What the runs say of each variant, and what may be claimed from it."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from sb3_per.compare.scores import Run
from sb3_per.compare.statistics import Estimate, Strata, difference, improvement, pooled_mean
from sb3_per.compare.suite import Cell, Suite

LEAST_SEEDS = 5  # with fewer, nothing is claimed
MARGIN = 0.05  # of the normalised score: a smaller loss counts as none
MEASURES: tuple[Literal["final", "area"], ...] = ("final", "area")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """
    One variant, or what it adds to another one, by one measure over the whole suite.

    :param variant: Its name, or that of the contrast.
    :param score: Interquartile mean.
    :param difference: From the baseline's, or the other's; None for the baseline itself.
    :param improvement: Probability of improvement over it; None for the baseline itself.
    :param claim: In words.
    """

    variant: str
    measure: str
    score: Estimate
    difference: Estimate | None
    improvement: Estimate | None
    claim: str


def select(runs: Sequence[Run], variant: str, environment: str) -> list[Run]:
    """:return: The finished runs of a variant in an environment."""
    wanted = (variant, environment)
    return [run for run in runs if (run.cell.variant, run.cell.environment) == wanted]


def compare(suite: Suite, runs: Sequence[Run], missing: Sequence[Cell]) -> list[Comparison]:
    """
    :param runs: The finished cells.
    :param missing: The others of the grid.
    :return: For each measure each variant that has a run in every environment, the baseline too.
    """
    comparisons = []
    for measure in MEASURES:
        whole = _scores(suite, runs, measure)
        baseline = whole.get(suite.baseline)
        for variant, scores in whole.items():
            against = None if variant == suite.baseline else baseline
            is_whole = not {variant, suite.baseline} & {cell.variant for cell in missing}
            comparisons.append(_comparison(variant, measure, scores, against, is_whole))
    return comparisons


def contrasts(suite: Suite, runs: Sequence[Run], missing: Sequence[Cell]) -> list[Comparison]:
    """:return: For each measure each contrast whose variants have a run in every environment."""
    comparisons = []
    for measure in MEASURES:
        whole = _scores(suite, runs, measure)
        for name, each in suite.contrasts.items():
            scores, others = whole.get(each.variant), whole.get(each.over)
            if scores is not None and others is not None:
                is_whole = not {each.variant, each.over} & {cell.variant for cell in missing}
                comparisons.append(_comparison(name, measure, scores, others, is_whole))
    return comparisons


def _scores(suite: Suite, runs: Sequence[Run], measure: str) -> dict[str, Strata]:
    """Of the variants that have a run in every environment."""
    scores = {
        variant: [
            np.array([getattr(run, measure) for run in select(runs, variant, environment)])
            for environment in suite.environments
        ]
        for variant in suite.variants
    }
    return {variant: strata for variant, strata in scores.items() if all(map(len, strata))}


def _comparison(
    variant: str, measure: str, scores: Strata, baseline: Strata | None, is_whole: bool
) -> Comparison:
    if baseline is None:
        return Comparison(variant, measure, pooled_mean(scores), None, None, "")
    improved, differs = improvement(scores, baseline), difference(scores, baseline)
    n_seeds = min(map(len, [*scores, *baseline]))
    return Comparison(
        variant=variant,
        measure=measure,
        score=pooled_mean(scores),
        difference=differs,
        improvement=improved,
        claim=claim(improved, differs, n_seeds, is_whole),
    )


def claim(improved: Estimate, differs: Estimate, n_seeds: int, is_whole: bool) -> str:
    """
    :param improved: Probability of improvement over the baseline.
    :param differs: How much larger the interquartile mean is.
    :param n_seeds: The fewest in any environment, of either variant.
    :param is_whole: Whether no cell of the two is missing: a run that crashes may be a bad one.
    :return: What may be said.
    """
    if n_seeds < LEAST_SEEDS:
        return f"no claim can be made: fewer than {LEAST_SEEDS} seeds"
    if not is_whole:
        return "no claim can be made: cells are missing"
    if improved.low > 0.5:
        return "better"
    if improved.high < 0.5:
        return "worse"
    return f"no difference shown{', non-inferior' if differs.low > -MARGIN else ''}"
