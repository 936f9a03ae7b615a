"""
Who learns more: P over the base for each row of the verdict tables, the rule and the aims.

``GAINS`` and ``OTHERS`` say which suites and variants make which row. ``benchmarks.tables`` and
``benchmarks.figures`` put them on the pages.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.pack import PACKED, read_packed
from sb3_per.compare.report import as_text, table_of_runs
from sb3_per.compare.results import Result, Results, curve
from sb3_per.compare.statistics import LEAST_RUNS, Estimate, improvement
from sb3_per.compare.suite import FINAL_EVALUATIONS, Run, Score

ALL = "all"  # the name of all environments of a row together
MEASURES = ("P, area", "P, final", "P, final, same CPU time")
RESULTS = Path("benchmarks/results")
ONE, MANY = "MinAtar, one environment", "MinAtar, 16 environments"
FIVE_BY_FIVE, SIX_BY_SIX = "minigrid_one_step", "minigrid_one_step_6x6"


class Row(NamedTuple):
    """A comparison of one algorithm with its base on one kind of task."""

    task: str
    algorithm: str
    suites: tuple[str, ...]
    variant: str
    base: str = "dqn"
    aim: float | None = None  # the least P by the area, written before the first run
    has_times: bool = False  # a step costs more than the base's, so equal time is another question


# What somebody decides by: the guide's table and picture. A suite that has run gets a line.
GAINS = (
    Row("Rare rewards, n_steps=1", "PERDQN", (FIVE_BY_FIVE, SIX_BY_SIX), "alpha1", aim=0.90),
    Row("Rare rewards, n_steps=3", "PERDQN", ("minigrid",), "alpha1", aim=0.65),
    Row(
        "Rare rewards, n_steps=3",
        "Rainbow",
        ("rainbow_priorities_minigrid",),
        "rainbow",
        has_times=True,
    ),
    Row("Few updates", "PERDQN", ("few_updates",), "alpha1", aim=0.65),
    Row(ONE, "Rainbow", ("minatar_rainbow",), "rainbow", "dqn_three_steps", has_times=True),
    Row(MANY, "Rainbow", ("rainbow_priorities",), "rainbow_half_uniform", has_times=True),
)
# No gain is shown: the table of the results.
OTHERS = (
    Row("A reward at every step", "PERDQN", ("confirm_dense",), "alpha1", aim=0.50),
    Row(MANY, "PERDQN", ("minatar_16_envs",), "per"),
    Row("Rare rewards, the paper's settings", "PERQRDQN", ("sparse_qrdqn",), "per", "qrdqn"),
    Row("Goals with hindsight, the paper's settings", "PERDQN", ("goals_dqn",), "her_per", "her"),
    Row("Continuous actions", "PERSAC", ("continuous_sac",), "lap", "sac"),
    Row("Continuous actions", "PERTD3", ("continuous_td3",), "lap", "td3"),
)
# The rule for PERDQN's defaults: question, suites, variant, over which one, least P by the area.
RULE = (
    ("rare rewards", ("minigrid", FIVE_BY_FIVE), "alpha1", "per", 0.55),
    ("a reward at every step", ("confirm_dense",), "alpha1", "per", 0.45),
)
SAME = {"annealed": "per"}  # alpha 0.6 has two names
# Plain names of environments whose settings say more than their id.
TITLES = {
    "FrozenLake-v1": "FrozenLake 8x8, no slipping",
    "FrozenLake8x8-v1": "FrozenLake 8x8, slippery",
}


class Chances(NamedTuple):
    """P over the base, by each measure."""

    area: Estimate
    final: Estimate
    equal_time: Estimate | None = None  # by the final return, from as much CPU time as the base's

    def texts(self) -> list[str]:
        """Return P as a table shows it: bold if the interval does not contain 0.5."""
        return ["" if chance is None else _emphasized(chance) for chance in self]


def _emphasized(chance: Estimate) -> str:
    text = as_text(chance, 2).replace(", ", ",\N{NO-BREAK SPACE}")
    is_clear = round(chance.low, 2) > 0.5 or round(chance.high, 2) < 0.5
    return f"**{text}**" if is_clear else text


def load(suite: str) -> Results:
    """Return the results of a suite."""
    return read_packed(RESULTS / f"{suite}{PACKED}")


def runs_of(suites: Sequence[str], base: str = "dqn") -> pd.DataFrame:
    """Return the finished runs of some suites; an environment of each suite is one of its own."""
    frames = []
    for suite in suites:
        results = load(suite)
        runs = table_of_runs(results)
        runs["equal_time_score"] = equal_time_scores(results, runs, base)
        runs = runs.replace({"variant": SAME})
        frames.append(runs.assign(environment=f"{suite} " + runs["environment"]))
    return pd.concat(frames, ignore_index=True)


def equal_time_scores(results: Results, runs: pd.DataFrame, base: str) -> list[float]:
    """
    Return the final score of each run from as much CPU time as the base's training takes.

    The time is the mean of the base's runs on the same device and platform; NaN without such a
    run. A run without an evaluation by then has no score: -inf. All steps of a run are taken to be
    equally long.

    :param runs: ``table_of_runs(results)``.
    """
    is_base = runs["variant"] == base
    seconds = pd.Series([_training_seconds(*pair) for pair in results.finished])
    platforms = pd.Series([result["versions"].get("platform") for _, result in results.finished])
    same = [runs["environment"], runs["device"], platforms]
    budgets = seconds.where(is_base).groupby(same, dropna=False).transform("mean")
    # The base's own runs differ from their mean.
    shares = (budgets / seconds).mask(is_base, 1.0)
    scores = []
    for (run, result), share in zip(results.finished, shares, strict=True):
        steps, returns = curve(run, result)
        in_time = returns[steps <= share * steps[-1]][-FINAL_EVALUATIONS:]
        score = results.suite.environments[run.environment].score or Score(random=0, solved=1)
        final = float(in_time.mean()) if len(in_time) else -math.inf
        final = math.nan if math.isnan(share) else final
        # Rounded, so that equal returns are ties.
        scores.append(round((final - score.random) / (score.solved - score.random), 9))
    return scores


def _training_seconds(run: Run, result: Result) -> float:
    """Return the CPU time of a run's steps; a training may end after more, with a whole rollout."""
    share = min(1.0, run.settings["steps"] / result["trained"])
    return float(result["seconds"]["training_cpu"] * share)


def compared(runs: pd.DataFrame, variant: str, over: str, has_times: bool = False) -> Chances:
    """Return P over the environments and seeds that both variants have run in."""
    keys = ["environment", "seed"]
    both = [runs[runs["variant"] == name].set_index(keys) for name in (variant, over)]
    common = both[0].index.intersection(both[1].index)
    if lost := {*runs["environment"]} - {*common.get_level_values("environment")}:
        raise ValueError(
            f"{variant} and {over} have no seed in common in {', '.join(sorted(lost))}"
        )

    def chance(measure: str) -> Estimate:
        # The order of the suite decides the random draws of an interval, as in `sb3-per compare`.
        groups = [part.loc[common].groupby("environment", sort=False) for part in both]
        left, right = ([scores.to_numpy() for _, scores in group[measure]] for group in groups)
        return improvement(left, right)

    # Without a run of the base on the same device and platform, nothing is known.
    has_times = has_times and both[0].loc[common, "equal_time_score"].notna().all()
    times = chance("equal_time_score") if has_times else None
    return Chances(chance("area_score"), chance("final_score"), times)


def chances(row: Row) -> Iterator[tuple[str, Chances]]:
    """Yield P on each environment of a row, then on all together."""
    runs = runs_of(row.suites, row.base)
    for environment, part in runs.groupby("environment", sort=False):
        yield plain(str(environment)), compared(part, row.variant, row.base, row.has_times)
    yield ALL, compared(runs, row.variant, row.base, row.has_times)


def plain(environment: str) -> str:
    """Return the name of an environment without its package and its version."""
    name = re.split(r"[ /]", environment)[-1]
    return TITLES.get(name) or re.sub(r"^MiniGrid-|-v\d+$", "", name)


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return P over all tasks of each row."""
    made = []
    for row in rows:
        runs = runs_of(row.suites, row.base)
        counts = {*runs[runs["variant"] == row.variant].groupby("environment").size()}
        line = {"tasks": row.task, "with": row.algorithm, "seeds": _listed(counts)}
        texts = compared(runs, row.variant, row.base, row.has_times).texts()
        made.append(line | dict(zip(MEASURES, texts, strict=True)))
    lines = pd.DataFrame(made)
    return lines.loc[:, (lines != "").any()]


def _listed(counts: set[int]) -> str:
    listed = " or ".join(map(str, sorted(counts)))
    return listed if min(counts) >= LEAST_RUNS else f"{listed} (few)"


def aims() -> pd.DataFrame:
    """Return P over DQN, and the aims that were set before the first run."""
    made = []
    for row in (*GAINS, *OTHERS):
        if row.aim is not None:
            found = compared(runs_of(row.suites), row.variant, row.base)
            verdict = "met" if found.area.value >= row.aim else "**missed**"
            made.append([row.task, f"{row.aim:.2f}", *found.texts()[:2], verdict])
    return pd.DataFrame(made, columns=["over DQN", "aim, area", *MEASURES[:2], ""])


def rule() -> pd.DataFrame:
    """Return P of PERDQN's defaults over alpha 0.6, and the least that the rule asks for."""
    made = []
    for name, suites, variant, over, least in RULE:
        texts = compared(runs_of(suites), variant, over).texts()[:2]
        made.append([name, f"{least:.2f}", *texts])
    return pd.DataFrame(made, columns=["over alpha 0.6", "least, area", *MEASURES[:2]])
