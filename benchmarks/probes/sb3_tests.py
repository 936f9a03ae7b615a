"""
Run SB3's own tests with our algorithms and buffers in the place of SB3's.

    git clone https://github.com/DLR-RM/stable-baselines3
    git -C stable-baselines3 checkout e05d2dbe
    python -m benchmarks.probes.sb3_tests stable-baselines3/tests
    python -m benchmarks.probes.sb3_tests rainbow stable-baselines3/tests

With ``rainbow``, Rainbow takes the place of DQN, and nothing else is replaced. The other arguments
are pytest's. The tests of PPO and A2C are left out. The table counts tests that made a
buffer of ours, alone or in a model; the others would pass without this library.
"""

import sys
from collections import Counter
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import stable_baselines3
from stable_baselines3 import her
from stable_baselines3.common import buffers

import sb3_per
from sb3_per import PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer

OUTCOMES = ("passed", "failed", "skipped")


class Count:
    """A plugin of pytest that runs SB3's tests and counts those that made a buffer of ours."""

    def __init__(self) -> None:
        self.results: Counter[tuple[str, str]] = Counter()
        self.n_others = 0
        self.has_made_buffer = False
        make = PrioritizedReplayBuffer.__init__

        @wraps(make)
        def noted(*args: Any, **kwargs: Any) -> None:
            self.has_made_buffer = True
            make(*args, **kwargs)

        setattr(PrioritizedReplayBuffer, "__init__", noted)  # noqa: B010  # mypy forbids the other

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        # The names of test cases hold those of the classes that a test is parametrized with. Not by
        # `-k "not PPO"`, which leaves out MlpPolicy, too.
        items[:] = [item for item in items if "PPO" not in item.name and "A2C" not in item.name]

    def pytest_runtest_setup(self) -> None:
        self.has_made_buffer = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        if self.has_made_buffer:
            self.results[Path(report.fspath).stem, report.outcome] += 1
        else:
            self.n_others += 1


def main(*arguments: str) -> None:
    """Make ``from stable_baselines3 import SAC`` import PERSAC and so on, and print a table."""
    count = Count()
    if arguments[:1] == ("rainbow",):
        setattr(stable_baselines3, "DQN", sb3_per.Rainbow)  # noqa: B010  # mypy forbids the other
        arguments = arguments[1:]
    else:
        _replace_algorithms_and_buffers()
    pytest.main([*arguments, "-p", "no:cacheprovider"], plugins=[count])
    rows = {file: [count.results[file, name] for name in OUTCOMES] for file, _ in count.results}
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    print("| file | passed | failed | skipped |\n|---|--:|--:|--:|")
    for file, row in rows.items():
        print(f"| {file} | {' | '.join(map(str, row))} |")
    print(f"{count.n_others} tests make no buffer of ours")


def _replace_algorithms_and_buffers() -> None:
    for name in ("DQN", "SAC", "TD3", "DDPG"):
        setattr(stable_baselines3, name, getattr(sb3_per, f"PER{name}"))
    for module in (stable_baselines3, her):
        module.HerReplayBuffer = PrioritizedHerReplayBuffer  # type: ignore[attr-defined]  # of modules in general
    # A copy of the module: SB3's own classes find each other by name in the original.
    copy: Any = ModuleType(buffers.__name__)
    copy.__dict__.update(buffers.__dict__)
    copy.ReplayBuffer = copy.NStepReplayBuffer = PrioritizedReplayBuffer
    copy.DictReplayBuffer = PrioritizedDictReplayBuffer
    sys.modules[buffers.__name__] = copy


if __name__ == "__main__":
    main(*sys.argv[1:])
