"""
The rule by which PERDQN's defaults are chosen, the aims of its suites, and P with rare rewards.

    python -m benchmarks.default_rule                   # from benchmarks/results
    python -m benchmarks.default_rule runs              # from run folders of all suites
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sb3_per.compare.report import as_text, markdown, table_of_runs
from sb3_per.compare.results import PACKED, read
from sb3_per.compare.statistics import improvement

FIVE_BY_FIVE, SIX_BY_SIX = "minigrid_one_step", "minigrid_one_step_6x6"
CONTROL = ("confirm_dense",)
# The suites of the comparisons with rare rewards; behind a slash, one of a suite's environments.
DOORKEY = ("minigrid/DoorKey-5x5", FIVE_BY_FIVE, "few_updates/DoorKey-5x5")
OTHERS = (
    "minigrid/DoorKey-6x6",
    "minigrid/LavaGap",
    "minigrid/MultiRoom",
    "minigrid/Unlock",
    SIX_BY_SIX,
    "few_updates/Unlock",
)
# Question, suites, variant, over which one, and the least P by the area.
QUESTIONS = (
    ("rule: rare rewards", ("minigrid", FIVE_BY_FIVE), "alpha1", "per", 0.55),
    ("rule: control tasks", CONTROL, "alpha1", "per", 0.45),
    ("aim: one-step returns", (FIVE_BY_FIVE, SIX_BY_SIX), "alpha1", "dqn", 0.90),
    ("aim: three-step returns", ("minigrid",), "alpha1", "dqn", 0.65),
    ("aim: few updates", ("few_updates",), "alpha1", "dqn", 0.65),
    ("aim: control tasks", CONTROL, "alpha1", "dqn", 0.50),
    ("rare rewards, nine comparisons", (*DOORKEY, *OTHERS), "alpha1", "dqn", ""),
    ("of these, DoorKey-5x5", DOORKEY, "alpha1", "dqn", ""),
    ("of these, the other six", OTHERS, "alpha1", "dqn", ""),
)
SAME = {"annealed": "per"}  # alpha 0.6 has two names


def runs_of(folder: Path, suites: Sequence[str]) -> pd.DataFrame:
    """Return the finished runs of some suites; an environment of each suite is one of its own."""
    frames = []
    for suite, _, part in (name.partition("/") for name in suites):
        packed = folder / f"{suite}{PACKED}"
        path = packed if packed.exists() else folder / suite
        runs = table_of_runs(read(path)).replace({"variant": SAME})
        runs = runs[runs["environment"].str.contains(part)]
        frames.append(runs.assign(environment=f"{suite} " + runs["environment"]))
    return pd.concat(frames)


def compared(runs: pd.DataFrame, variant: str, over: str) -> dict[str, object]:
    """Return P by the area and by the final score, over the environments that both have run in."""
    row: dict[str, object] = {}
    # The order of the suite decides the random draws of an interval, as in `sb3-per compare`.
    for measure in ("area", "final"):
        scores = {
            name: [
                group[f"{measure}_score"].to_numpy()
                for _, group in part.groupby("environment", sort=False)
            ]
            for name, part in _paired(runs, variant, over)
        }
        row[measure] = as_text(improvement(scores[variant], scores[over]), 2)
        row["runs"] = sum(map(len, scores[variant]))
    return row


def _paired(runs: pd.DataFrame, *names: str) -> list[tuple[str, pd.DataFrame]]:
    """Return the runs of variants on the environments and seeds that all of them have."""
    keyed = [runs[runs["variant"] == name].set_index(["environment", "seed"]) for name in names]
    common = keyed[0].index
    for part in keyed[1:]:
        common = common.intersection(part.index)
    return [(name, part.loc[common]) for name, part in zip(names, keyed, strict=True)]


def main(folder: str = "benchmarks/results") -> None:
    rows = []
    for question, suites, *pair, least in QUESTIONS:
        row: dict[str, object] = {"question": question, "least": least}
        rows.append(row | compared(runs_of(Path(folder), suites), *pair))
    print(markdown(pd.DataFrame(rows)))
    control = runs_of(Path(folder), CONTROL)
    landings = control[control["environment"].str.contains("LunarLander")]
    below = (landings["final_return"] < 0).groupby(landings["variant"]).sum().to_dict()
    print(f"\nLunarLander runs that end below 0, of ten: {below} (at most two for alpha1)")


if __name__ == "__main__":
    main(*sys.argv[1:])
