"""
Run SB3's own tests with our algorithms and buffers in the place of SB3's.

    git clone https://github.com/DLR-RM/stable-baselines3
    git -C stable-baselines3 checkout e05d2dbe
    python -m sb3_per.experiments.probes.sb3_tests stable-baselines3/tests

It needs pytest. Further arguments are pytest's. The tests of other algorithms are left out.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import stable_baselines3
from stable_baselines3 import her

import sb3_per
from sb3_per.rules import require

# The files with tests of algorithms or of what they are made of.
FILES = (
    "test_her",
    "test_n_step_replay",
    "test_dict_env",
    "test_save_load",
    "test_run",
    "test_train_eval_mode",
    "test_cnn",
    "test_callbacks",
    "test_predict",
    "test_sde",
    "test_spaces",
    "test_vec_normalize",
    "test_tensorboard",
    "test_deterministic",
    "test_custom_policy",
    "test_identity",
    "test_utils",
    "test_logger",
    "test_gae",
    "test_monitor",
)


def replace() -> None:
    """Let ``from stable_baselines3 import SAC`` import PERSAC, and likewise for the others."""
    for name in ("DQN", "SAC", "TD3", "DDPG"):
        setattr(stable_baselines3, name, getattr(sb3_per, f"PER{name}"))
    for module in (stable_baselines3, her):
        module.HerReplayBuffer = sb3_per.PrioritizedHerReplayBuffer  # type: ignore[attr-defined]  # of modules in general


class Count:
    """A plugin of pytest that counts results for each file."""

    def __init__(self) -> None:
        self.results: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.results[Path(report.fspath).stem, report.outcome] += 1

    def table(self) -> str:
        """Return a table in Markdown."""
        outcomes = ("passed", "failed", "skipped")
        rows = [[self.results[name, outcome] for outcome in outcomes] for name in FILES]
        total = [sum(column) for column in zip(*rows, strict=True)]
        lines = ["| file | passed | failed | skipped |", "|---|--:|--:|--:|"]
        for name, row in zip((*FILES, "all"), (*rows, total), strict=True):
            lines.append(f"| {name} | {' | '.join(map(str, row))} |")
        return "\n".join(lines)


def main(folder: str, *options: str) -> int:
    """
    Run the tests and print a table; return pytest's exit code.

    :raises ValueError: for a folder without any of the files.
    """
    import pytest

    paths = [Path(folder) / f"{name}.py" for name in FILES]
    files = [str(path) for path in paths if path.exists()]
    require(bool(files), "the folder must be that of SB3's tests", folder)
    replace()
    count = Count()
    # The names of test cases hold those of the classes that a test is parametrized with.
    others = ["-k", "not PPO and not A2C", "-p", "no:cacheprovider"]
    code = pytest.main([*files, *others, *options], plugins=[count])
    print(count.table())
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
