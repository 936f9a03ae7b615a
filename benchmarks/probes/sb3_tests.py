"""
Run SB3's own tests with our algorithms and buffers in the place of SB3's.

    git clone https://github.com/DLR-RM/stable-baselines3
    git -C stable-baselines3 checkout e05d2dbe
    cd stable-baselines3/tests
    python -m benchmarks.probes.sb3_tests test_her.py test_save_load.py ...

Arguments are pytest's. The tests of other algorithms are left out.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import stable_baselines3
from stable_baselines3 import her

import sb3_per

OUTCOMES = ("passed", "failed", "skipped")


class Count:
    """A plugin of pytest that counts results for each file."""

    def __init__(self) -> None:
        self.results: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.results[Path(report.fspath).stem, report.outcome] += 1


def main(*arguments: str) -> None:
    """Let ``from stable_baselines3 import SAC`` import PERSAC and so on, and print a table."""
    for name in ("DQN", "SAC", "TD3", "DDPG"):
        setattr(stable_baselines3, name, getattr(sb3_per, f"PER{name}"))
    for module in (stable_baselines3, her):
        module.HerReplayBuffer = sb3_per.PrioritizedHerReplayBuffer  # type: ignore[attr-defined]  # of modules in general
    # The names of test cases hold those of the classes that a test is parametrized with.
    others = ["-k", "not PPO and not A2C", "-p", "no:cacheprovider"]
    count = Count()
    pytest.main([*arguments, *others], plugins=[count])
    rows = {file: [count.results[file, each] for each in OUTCOMES] for file, _ in count.results}
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    print("| file | passed | failed | skipped |\n|---|--:|--:|--:|")
    for file, row in rows.items():
        print(f"| {file} | {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
