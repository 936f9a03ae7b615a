import argparse

import pytest

from sb3_per.experiments.bench import command as bench
from sb3_per.experiments.cliffwalk import command as cliffwalk
from sb3_per.experiments.common.command_line import Distinct, whole_number


@pytest.mark.parametrize(("low", "high"), [(2, None), (2, 2), (0, 2)])
def test_a_number_within_its_limits_is_taken(low, high):
    assert whole_number(low, high)("2") == 2


@pytest.mark.parametrize(
    ("low", "high", "text", "message"),
    [
        (1, None, "0", "must be at least 1, got 0"),
        (2, 20, "1", r"must lie in \[2, 20\], got 1"),
        (2, 20, "21", r"must lie in \[2, 20\], got 21"),
        (1, None, "1.5", "must be a whole number, got '1.5'"),
    ],
)
def test_another_number_is_refused_with_the_rule(low, high, text, message):
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{message}$"):
        whole_number(low, high)(text)


@pytest.mark.parametrize(
    "line",
    [
        "ops --rounds 0",
        "ops --images -1",
        "ops --batches 0",
        "train --rounds 0",
        "memory --steps 0",
    ],
)
def test_bench_measures_nothing_with_a_number_that_makes_no_sense(monkeypatch, capsys, line):
    monkeypatch.setattr("sys.argv", ["sb3-per bench", *line.split()])

    with pytest.raises(SystemExit, match="2"):
        bench.main()
    assert "must be at least" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "line"), [(bench.main, "memory"), (cliffwalk.main, "--n 2 --seeds 1")]
)
def test_results_that_have_no_place_are_not_made(monkeypatch, tmp_path, main, line):
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["sb3-per", *line.split(), "--out", str(tmp_path / "file")])

    with pytest.raises(SystemExit, match=r"--out must be a folder, or a new one: .*file"):
        main()


def test_what_is_asked_for_twice_is_done_once():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, nargs="+", action=Distinct, default=(1, 1))

    assert parser.parse_args(["--n", "3", "2", "3"]).n == [3, 2]
    assert parser.parse_args([]).n == (1, 1)
