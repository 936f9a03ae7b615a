"""
Who learns more: P over the base for each row of the verdict table, the rule and the aims.

``ROWS`` says which suites and variants make which row. The table of ``docs/should-i-use-it.md``,
its picture, and the aims of PERDQN's suites are made from it.

    python -m benchmarks.verdicts                   # from benchmarks/results
    python -m benchmarks.verdicts runs              # from run folders of all suites
"""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks.pack import PACKED, read_packed
from sb3_per.compare.report import as_text, markdown, table_of_runs
from sb3_per.compare.results import Result, Results, curve
from sb3_per.compare.statistics import Estimate, improvement
from sb3_per.compare.suite import FINAL_EVALUATIONS, Run, Score

ALL = "all"  # the name of all environments of a row together
RESULTS = Path("benchmarks/results")
FIVE_BY_FIVE, SIX_BY_SIX = "minigrid_one_step", "minigrid_one_step_6x6"
MANY = "MinAtar, 16 environments, no noisy layers"


class Row(NamedTuple):
    """A comparison of one algorithm with its base on one kind of task."""

    task: str
    algorithm: str
    suites: tuple[str, ...]
    variant: str
    base: str = "dqn"
    aim: float | None = None  # the least P by the area, written before the first run
    has_times: bool = False  # a step costs more than the base's, so equal time is another question


# A suite that has run gets a line. The picture shows the rows whose base is DQN.
ROWS = (
    Row("Rare rewards, n_steps=1", "PERDQN", (FIVE_BY_FIVE, SIX_BY_SIX), "alpha1", aim=0.90),
    Row("Rare rewards, n_steps=3", "PERDQN", ("minigrid",), "alpha1", aim=0.65),
    Row("Rare rewards, n_steps=3", "Rainbow", ("minigrid_parts",), "rainbow", has_times=True),
    Row("A quarter of the updates, n_steps=3", "PERDQN", ("few_updates",), "alpha1", aim=0.65),
    Row("A reward at every step", "PERDQN", ("confirm_dense",), "alpha1", aim=0.50),
    Row("MinAtar, one environment", "Rainbow", ("minatar_rainbow",), "rainbow", has_times=True),
    Row(MANY, "PERDQN", ("minatar_16_envs",), "per"),
    Row(MANY, "Rainbow", ("minatar_16_envs",), "rainbow_without_noise", has_times=True),
    Row("Rare rewards, the paper's settings", "PERQRDQN", ("sparse_qrdqn",), "per", "qrdqn"),
    Row("Goals with hindsight, the paper's settings", "PERDQN", ("goals_dqn",), "her_per", "her"),
    Row("Continuous actions", "PERSAC", ("continuous_sac",), "lap", "sac"),
    Row("Continuous actions", "PERTD3", ("continuous_td3",), "lap", "td3"),
)
# The rule for PERDQN's defaults: question, suites, variant, over which one, least P by the area.
RULE = (
    ("rare rewards", ("minigrid", FIVE_BY_FIVE), "alpha1", "per", 0.55),
    ("control tasks", ("confirm_dense",), "alpha1", "per", 0.45),
)
# All comparisons with rare rewards; behind a slash, one of a suite's environments.
DOORKEY = ("minigrid/DoorKey-5x5", FIVE_BY_FIVE, "few_updates/DoorKey-5x5")
OTHERS = (
    *(f"minigrid/{name}" for name in ("DoorKey-6x6", "LavaGap", "MultiRoom", "Unlock")),
    SIX_BY_SIX,
    "few_updates/Unlock",
)
RARE = {
    "nine comparisons": (*DOORKEY, *OTHERS),
    "of these, DoorKey-5x5": DOORKEY,
    "of these, the other six": OTHERS,
}
SAME = {"annealed": "per"}  # alpha 0.6 has two names


class Chances(NamedTuple):
    """P over the base, by each measure."""

    area: Estimate
    final: Estimate
    equal_time: Estimate | None = None  # by the final return, from as much CPU time as the base's

    def texts(self) -> list[str]:
        """Return P as a table shows it."""
        return ["" if chance is None else as_text(chance, 2) for chance in self]


def load(folder: Path, suite: str) -> Results:
    """Return the results of a suite: packed, or in a run folder."""
    packed = folder / f"{suite}{PACKED}"
    return read_packed(packed if packed.exists() else folder / suite)


def runs_of(folder: Path, suites: Sequence[str]) -> pd.DataFrame:
    """Return the finished runs of some suites; an environment of each suite is one of its own."""
    frames = []
    for suite, _, part in (name.partition("/") for name in suites):
        results = load(folder, suite)
        runs = table_of_runs(results)
        runs["equal_time_score"] = equal_time_scores(results, runs)
        runs = runs.replace({"variant": SAME})
        runs = runs[runs["environment"].str.contains(part)]
        frames.append(runs.assign(environment=f"{suite} " + runs["environment"]))
    return pd.concat(frames, ignore_index=True)


def equal_time_scores(results: Results, runs: pd.DataFrame) -> list[float]:
    """
    Return the final score of each run from as much CPU time as the baseline's training takes.

    NaN without an evaluation by then, or without a baseline on the same device. All steps of a run
    are taken to be equally long.

    :param runs: ``table_of_runs(results)``.
    """
    is_baseline = runs["variant"] == results.suite.baseline
    seconds = pd.Series([_training_seconds(*pair) for pair in results.finished])
    same = [runs["environment"], runs["device"]]
    budgets = seconds.where(is_baseline).groupby(same, dropna=False).transform("mean")
    # The baseline's own runs differ from their mean.
    shares = (budgets / seconds).mask(is_baseline, 1.0)
    scores = []
    for (run, result), share in zip(results.finished, shares, strict=True):
        steps, returns = curve(run, result)
        in_time = returns[steps <= share * steps[-1]][-FINAL_EVALUATIONS:]
        score = results.suite.environments[run.environment].score or Score(random=0, solved=1)
        final = float(in_time.mean()) if len(in_time) else math.nan
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

    times = chance("equal_time_score") if has_times else None
    return Chances(chance("area_score"), chance("final_score"), times)


def chances(row: Row, folder: Path = RESULTS) -> Iterator[tuple[str, Chances]]:
    """Yield P on each environment of a row, then on all together."""
    runs = runs_of(folder, row.suites)
    for environment, part in runs.groupby("environment", sort=False):
        yield plain(str(environment)), compared(part, row.variant, row.base, row.has_times)
    yield ALL, compared(runs, row.variant, row.base, row.has_times)


def plain(environment: str) -> str:
    """Return the name of an environment without its package and its version."""
    name = re.split(r"[ /]", environment)[-1]
    return re.sub(r"^MiniGrid-|-v\d+$", "", name)


def main(folder: str = str(RESULTS)) -> None:
    """Print the verdicts by task, the rule, and the comparisons with rare rewards."""
    columns = ["area", "final", "final, equal time"]
    rows: list[list[object]] = []
    for row in ROWS:
        for task, found in chances(row, Path(folder)):
            least = "" if task != ALL or row.aim is None else f"{row.aim:.2f}"
            rows.append([row.task, task, row.algorithm, *found.texts(), least])
    print(
        markdown(pd.DataFrame(rows, columns=["tasks", "task", "algorithm", *columns, "aim, area"]))
    )
    rows = [
        [
            f"rule: {name}",
            least,
            *compared(runs_of(Path(folder), suites), variant, over).texts()[:2],
        ]
        for name, suites, variant, over, least in RULE
    ]
    for name, suites in RARE.items():
        found = compared(runs_of(Path(folder), suites), "alpha1", "dqn")
        rows.append([f"rare rewards: {name}", "", *found.texts()[:2]])
    print()
    print(markdown(pd.DataFrame(rows, columns=["question", "least", *columns[:2]])))
    control = runs_of(Path(folder), ("confirm_dense",))
    landings = control[control["environment"].str.contains("LunarLander")]
    below = (landings["final_return"] < 0).groupby(landings["variant"]).sum().to_dict()
    print(f"\nLunarLander runs that end below 0, of ten: {below} (at most two for alpha1)")


if __name__ == "__main__":
    main(*sys.argv[1:])
