"""
Write the tables of the pages from ``benchmarks/results``: ``python -m benchmarks.tables``.

A page marks a table by a comment with a name of ``TABLES`` and its arguments, as in
``<!-- table: tasks minigrid dqn alpha1 -->``. The table below the comment is replaced.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import atari_100k, rows, verdicts
from benchmarks.cliffwalk import report as cliffwalk
from benchmarks.pack import PACKED
from benchmarks.verdicts import ALL, RESULTS, load, plain
from sb3_per.compare.report import as_text, markdown, table_of_runs
from sb3_per.compare.results import Results
from sb3_per.compare.statistics import pooled_mean

DOCS = Path("docs")
MARKED = re.compile(r"^<!-- table: (.+) -->\n(?:\|.*\n)*", flags=re.MULTILINE)


def main() -> None:
    """Write the tables of all pages."""
    for page in DOCS.rglob("*.md"):
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(text: str) -> str:
    """Return a page's text with the tables that follow from the results."""

    def written(found: re.Match[str]) -> str:
        name, *arguments = found[1].split()
        return f"<!-- table: {found[1]} -->\n{markdown(TABLES[name](*arguments))}\n"

    return MARKED.sub(written, text)


def variants(suite: str, base: str, *others: str) -> pd.DataFrame:
    """Return a row for each variant: P over the base, and final returns in each environment."""
    results, runs = _suite(suite)
    made = []
    for variant in (base, *others):
        row = {"": results.suite.label(variant), **_chances(runs, variant, base)}
        for environment in results.suite.environments:
            row[plain(environment)] = _final(runs, variant, environment)
        if len(results.suite.environments) == 1:
            reached = np.isfinite(runs[runs["variant"] == variant]["steps_to_threshold"])
            row["runs at the threshold"] = f"{reached.sum()} of {len(reached)}"
        made.append(row)
    return pd.DataFrame(made)


def tasks(suite: str, base: str, *others: str) -> pd.DataFrame:
    """Return a row for each environment: P over the base; of one variant, final returns, too."""
    results, runs = _suite(suite)
    runs = runs.assign(equal_time_score=verdicts.equal_time_scores(results, runs, base))
    environments = [*results.suite.environments]
    made = []
    for scope in (ALL, *environments) if len(environments) > 1 else environments:
        row = {"": scope if scope == ALL else plain(scope)}
        chosen = runs if scope == ALL else runs[runs["environment"] == scope]
        if len(others) == 1:
            for variant in (base, *others):
                final = "" if scope == ALL else _final(runs, variant, scope)
                row[results.suite.label(variant)] = final
        for variant in others:
            prefix = "" if len(others) == 1 else f"{results.suite.label(variant)}: "
            has_times = prefix == "" and variant.startswith("rainbow")  # slower than the base
            found = _chances(chosen, variant, base, has_times)
            row |= {f"{prefix}{name}": text for name, text in found.items()}
        made.append(row)
    return pd.DataFrame(made)


def pairs(suite: str, *names: str) -> pd.DataFrame:
    """
    Return P over all environments for each pair of variants.

    :param names: ``variant:base``, or ``variant:base:seed`` for the seeds from that one on.
    """
    results, runs = _suite(suite)
    made = []
    for variant, base, *first in (name.split(":") for name in names):
        label = f"{results.suite.label(variant)} over {results.suite.label(base)}"
        chosen = runs[runs["seed"] >= int(first[0])] if first else runs
        label += f", seeds from {first[0]}" if first else ""
        made.append({"": label, **_chances(chosen, variant, base)})
    return pd.DataFrame(made)


def updates(name: str, learner: str, *sizes: str) -> pd.DataFrame:
    """Return the updates that a learner needs on BlindCliffwalk, for some numbers of states."""
    runs = pd.read_json(RESULTS / f"{name}{PACKED}", lines=True)
    return cliffwalk.table(runs[runs["n"].isin(map(int, sizes))], learner)


def training() -> pd.DataFrame:
    """Return the steps a second over DQN's, for each task, and the time of DQN's step."""
    measured = _measured("train").set_index(["name", "task"])
    names, tasks = (measured.index.unique(level) for level in ("name", "task"))
    made = [{"over DQN": "DQN, microseconds a step"}]
    made[0] |= {task: f"{measured.loc[('DQN', task), 'us a step']:.0f}" for task in tasks}
    shown = [(name, name, "over DQN") for name in names[1:]]
    for label, name, base in [*shown, ("PERDQN over DQN with fused Adam", "PERDQN", "over fused")]:
        row = {"over DQN": label}
        for task in tasks:
            values = measured.loc[(name, task), [base, f"{base}, low", f"{base}, high"]]
            row[task] = "{:.2f} ({:.2f} to {:.2f})".format(*values)
        made.append(row)
    return pd.DataFrame(made)


def demonstrations() -> pd.DataFrame:
    """Return the success rate with demonstrations and without."""
    runs = pd.read_json(RESULTS / f"demonstrations{PACKED}", lines=True)
    success = runs.groupby("variant")["success"]
    each = success.agg(lambda rates: ", ".join(f"{rate:.0%}" for rate in rates))
    made = pd.DataFrame({"mean": success.mean().map("{:.0%}".format), "each seed": each})
    return made.sort_index(ascending=False).reset_index()


def atari() -> pd.DataFrame:
    """Return the returns in each game of Atari 100k."""
    ours = [atari_100k.RAINBOW, atari_100k.WITHOUT, atari_100k.HALF_UNIFORM]
    columns = ["random", *ours, "published", "human"]
    games = atari_100k.games_of(load("atari_100k"))
    games = games.sort_values("published, score", ascending=False)  # as in the picture
    texts = games[columns].map(
        lambda value: f"{value:,.{1 if value < 100 else 0}f}".replace(".0", "")
    )
    titles = ["paper's priorities", "without priorities", "half uniform"]
    names = {"random": "random play", **dict(zip(ours, titles, strict=True))}
    return texts.replace("nan", "").rename(columns=names).reset_index()


def atari_summary() -> pd.DataFrame:
    """Return summaries of the human-normalized scores."""
    results = load("atari_100k")
    games = atari_100k.games_of(results)
    return atari_100k.summary(games, atari_100k.episodes_of(results, [*games.index]))


@cache
def _suite(name: str) -> tuple[Results, pd.DataFrame]:
    results = load(name)
    return results, table_of_runs(results)


def _chances(
    runs: pd.DataFrame, variant: str, base: str, has_times: bool = False
) -> dict[str, str]:
    if variant == base:
        return dict.fromkeys(verdicts.MEASURES[:2], "")
    texts = verdicts.compared(runs, variant, base, has_times).texts()
    return dict(zip(verdicts.MEASURES, texts if has_times else texts[:2], strict=False))


def _final(runs: pd.DataFrame, variant: str, environment: str) -> str:
    chosen = runs[(runs["variant"] == variant) & (runs["environment"] == environment)]
    return as_text(pooled_mean([chosen["final_return"].to_numpy()])).partition(" ")[0]


def _measured(name: str) -> pd.DataFrame:
    return pd.read_json(RESULTS / f"speed_{name}{PACKED}", lines=True)


TABLES: dict[str, Callable[..., pd.DataFrame]] = {
    "variants": variants,
    "tasks": tasks,
    "pairs": pairs,
    "gains": lambda: verdicts.table(verdicts.GAINS),
    "others": lambda: verdicts.table(verdicts.OTHERS),
    "aims": verdicts.aims,
    "rule": verdicts.rule,
    "updates": updates,
    "training": training,
    "speed": lambda name: rows.shown(_measured(name)),
    "demonstrations": demonstrations,
    "atari": atari,
    "atari-summary": atari_summary,
}


if __name__ == "__main__":
    main()
