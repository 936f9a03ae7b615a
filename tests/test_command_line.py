import argparse

import pytest

from sb3_per.bench import command
from sb3_per.command_line import whole_number


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
        command.main()
    assert "must be at least" in capsys.readouterr().err
