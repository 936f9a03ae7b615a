"""The report of Atari 100k, from made-up results."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import atari_100k
from benchmarks.pack import pack
from sb3_per.compare.results import Results
from sb3_per.compare.suite import load, runs_of

SUITE = load(atari_100k.PUBLISHED.parent / "suites" / "atari_100k.yml")


def results(returns):
    """Results of all games: 20 episodes with a return of ``returns(variant, game, score)``."""
    finished, missing = [], []
    for run in runs_of(SUITE):
        score = SUITE.environments[run.environment].score
        value = returns(run.variant, run.environment.removesuffix("NoFrameskip-v4"), score)
        if value is None:
            missing.append(run)
            continue
        result = {
            "settings": run.settings,
            "steps": [100_000],
            "returns": [[value - 1, value + 1] * 10],
            "trained": 100_000,
            "seconds": {"wall": 120.0, "cpu": 60.0, "training_wall": 100.0, "training_cpu": 50.0},
            "versions": {"device": "cpu"},
        }
        finished.append((run, result))
    return Results(SUITE, finished, missing)


def published(variant, game, score):
    games = pd.read_csv(atari_100k.PUBLISHED, comment="#", index_col="game")
    return games["der_mean"][game] if variant == atari_100k.RAINBOW else None


def test_published_returns_have_the_published_summary():
    made = results(published)
    games = atari_100k.games_of(made)

    rows = atari_100k.summary(games, atari_100k.episodes_of(made, [*games.index]))

    assert rows["published"].astype(float).tolist() == list(atari_100k.AIMS.values())
    for column in ("ours, interval over games", "ours, interval over episodes"):
        assert [text.split()[0] for text in rows[column]] == [*rows["published"]]
    assert atari_100k.better(games, atari_100k.RAINBOW, atari_100k.WITHOUT) == "no game has both"


def test_interval_over_episodes_knows_no_other_games():
    made = results(lambda variant, game, score: score.random + 0.1 * (score.solved - score.random))
    games = atari_100k.games_of(made)

    rows = atari_100k.summary(games, atari_100k.episodes_of(made, [*games.index]))

    assert set(rows["ours, interval over games"]) == {"0.100 [0.100, 0.100]"}
    assert rows["ours, interval over episodes"][0] != "0.100 [0.100, 0.100]"


@pytest.mark.parametrize(("gain", "share"), [(5.0, "1.00"), (0.0, "0.50"), (-5.0, "0.00")])
@pytest.mark.parametrize(
    ("variant", "base"),
    [(atari_100k.RAINBOW, atari_100k.WITHOUT), (atari_100k.HALF_UNIFORM, atari_100k.RAINBOW)],
)
def test_better_counts_games_and_half_of_the_ties(variant, base, gain, share):
    games = atari_100k.games_of(results(lambda made, *_: 10.0 + gain * (made == variant)))

    assert atari_100k.better(games, variant, base) == f"{share} [{share}, {share}] over 26 games"


def test_report_of_some_games_is_printed(tmp_path, capsys):
    def some(variant, game, _):
        return 100.0 if game in ("Krull", "Pong") and variant != atari_100k.WITHOUT else None

    pack(results(some), tmp_path / "some.jsonl.gz")

    atari_100k.main(str(tmp_path / "some.jsonl.gz"))

    printed = capsys.readouterr().out
    assert "2 of 26 games" in printed
    assert "better than none), aim 0.55: no game has both" in printed
    assert "than the paper's priorities), rule 0.60: 0.50 over 2 games" in printed
    assert "| cpu | 2.0 | 1.0 | 1000.0 | 2000.0 | 4 |" in printed
    assert np.isnan(atari_100k.games_of(results(some))[atari_100k.RAINBOW]["Boxing"])
