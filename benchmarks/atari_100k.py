"""
Print the scores of Atari 100k next to the published ones, from finished runs of its suite.

    python -m benchmarks.atari_100k runs/atari_100k

There is one seed a game. Intervals show what other games, or other episodes of the evaluation,
would change. What other seeds would change is not known.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.pack import read_packed
from benchmarks.rows import as_text as as_table
from sb3_per.compare.report import as_text, markdown, table_of_runs
from sb3_per.compare.results import Results
from sb3_per.compare.statistics import LEAST_RUNS, Estimate, interquartile_mean, interval

PUBLISHED = Path(__file__).with_suffix(".csv")
RAINBOW, WITHOUT = "rainbow", "rainbow_without_priorities"
HALF_UNIFORM = "rainbow_half_uniform"
FloatArray = NDArray[np.float64]
SUMMARIES: dict[str, Callable[..., FloatArray]] = {
    "mean": np.mean,
    "median": np.median,
    "interquartile mean": interquartile_mean,
}
AIMS = {"mean": 0.285, "median": 0.161, "interquartile mean": 0.142}
PAIRS = {
    "P(the paper's priorities better than none), aim 0.55": (RAINBOW, WITHOUT),
    "P(half uniform better than the paper's priorities), rule 0.60": (HALF_UNIFORM, RAINBOW),
    "P(half uniform better than none)": (HALF_UNIFORM, WITHOUT),
}


def main(path: str) -> None:
    """Print a table of the games, their summary, each P, and what runs cost."""
    results = read_packed(Path(path))
    games = games_of(results)
    finished = games[games[RAINBOW].notna()]
    print(as_table(games.reset_index()))
    print(f"\nHuman-normalized scores, {len(finished)} of {len(games)} games:\n")
    print(markdown(summary(finished, episodes_of(results, [*finished.index]))))
    print("\n", *(f"{text}: {better(games, *pair)}\n" for text, pair in PAIRS.items()), sep="")
    print(markdown(costs(results)))


def games_of(results: Results) -> pd.DataFrame:
    """Return published returns, returns of each variant, and all of them normalized, by game."""
    games = pd.read_csv(PUBLISHED, comment="#", index_col="game").rename(
        columns={"der_mean": "published"}
    )
    runs = table_of_runs(results)
    runs["game"] = runs["environment"].map(_game)
    returns = runs.pivot_table("final_return", "game", "variant")
    variants = [RAINBOW, WITHOUT, HALF_UNIFORM]
    games = games.join(returns.reindex(columns=variants))
    for name in ("published", *variants):
        scale = games["human"] - games["random"]
        games[f"{name}, score"] = (games[name] - games["random"]) / scale
    return games


def episodes_of(results: Results, games: list[str]) -> list[FloatArray]:
    """Return the normalized scores of the evaluation's episodes of Rainbow in some games."""
    episodes = {}
    for run, result in results.finished:
        score = results.suite.environments[run.environment].score
        if run.variant == RAINBOW and score is not None:
            last = np.array(result["returns"][-1])
            episodes[_game(run.environment)] = (last - score.random) / (score.solved - score.random)
    return [episodes[game] for game in games]


def summary(games: pd.DataFrame, episodes: list[FloatArray]) -> pd.DataFrame:
    """Return mean, median and interquartile mean over games: ours, published, and the aims."""
    ours = games[f"{RAINBOW}, score"].to_numpy()
    rows = []
    for name, statistic in SUMMARIES.items():

        def of_episodes(
            *parts: FloatArray,
            axis: int = -1,
            statistic: Callable[..., FloatArray] = statistic,
        ) -> FloatArray:
            means = np.stack([part.mean(axis=axis) for part in parts], axis=-1)
            return statistic(means, axis=-1)

        rows.append(
            {
                "": name,
                "ours, interval over games": as_text(_estimate([ours], statistic), 3),
                "ours, interval over episodes": as_text(_estimate(episodes, of_episodes), 3),
                "published": f"{statistic(games['published, score'].to_numpy()):.3f}",
                "aim over 26 games": AIMS[name],
            }
        )
    return pd.DataFrame(rows)


def better(games: pd.DataFrame, variant: str, base: str) -> str:
    """Return the share of games in which a variant's return is above the base's."""
    pairs = games[[variant, base]].dropna()
    if pairs.empty:
        return "no game has both"
    wins = (np.sign(pairs[variant] - pairs[base]) + 1) / 2  # ties count half
    return f"{as_text(_estimate([wins.to_numpy()], np.mean), 2)} over {len(pairs)} games"


def _estimate(samples: list[FloatArray], statistic: Callable[..., FloatArray]) -> Estimate:
    value = float(statistic(*samples, axis=-1))
    if len(samples[0]) < LEAST_RUNS:
        return Estimate(value, np.nan, np.nan)
    low, high = interval(samples, statistic, axis=-1)
    return Estimate(value, float(low), float(high))


def costs(results: Results) -> pd.DataFrame:
    """Return the medians of a run's minutes and steps a second, by device."""
    rows = [
        {
            "device": result["versions"]["device"],
            "minutes": result["seconds"]["wall"] / 60,
            "CPU minutes": result["seconds"]["cpu"] / 60,
            "steps/s": result["trained"] / result["seconds"]["training_wall"],
            "steps/CPU s": result["trained"] / result["seconds"]["training_cpu"],
        }
        for _, result in results.finished
    ]
    groups = pd.DataFrame(rows).groupby("device")
    return groups.median().round(1).assign(runs=groups.size()).reset_index()


def _game(environment: str) -> str:
    return environment.removesuffix("NoFrameskip-v4")


if __name__ == "__main__":
    main(*sys.argv[1:])
