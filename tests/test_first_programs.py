"""The first program of each page learns: the return that it prints clearly beats random actions."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
# The return of random actions, and a return that no random agent reaches.
DOORKEY, CARTPOLE, PENDULUM = (0.03, 0.5), (22, 150), (-1200, -600)
PAGES = {
    "../README": DOORKEY,
    "quickstart": DOORKEY,
    "buffer": CARTPOLE,
    "algorithms/per_dqn": CARTPOLE,
    "algorithms/rainbow": CARTPOLE,
    "algorithms/per_qrdqn": CARTPOLE,
    "algorithms/per_sac": PENDULUM,
    "algorithms/per_td3": PENDULUM,
    "algorithms/per_ddpg": PENDULUM,
    "algorithms/per_tqc": PENDULUM,
    "algorithms/per_crossq": PENDULUM,
}


def programs(page: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def first_program(page: str) -> str:
    return programs(page)[0]


@pytest.mark.parametrize("page", PAGES)
def test_first_program_says_what_random_actions_reach(page):
    assert re.search(rf"random actions: {PAGES[page][0]}$", first_program(page), flags=re.MULTILINE)


def printed_by(program: str, folder: Path) -> str:
    command = [sys.executable, "-c", program]
    paths = os.pathsep.join([str(DOCS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout


# Several pages show the same program.
@pytest.mark.slow
@pytest.mark.parametrize("page", {first_program(page): page for page in PAGES}.values())
def test_first_program_beats_random_actions(page, tmp_path):
    if page.endswith(("qrdqn", "tqc", "crossq")):
        pytest.importorskip("sb3_contrib")
    if "minigrid" in first_program(page):
        pytest.importorskip("minigrid")

    printed = re.search(
        r"^mean return (-?[\d.]+)\n\Z",
        printed_by(first_program(page), tmp_path),
        flags=re.MULTILINE,
    )

    assert printed is not None
    assert float(printed.group(1)) > PAGES[page][1]


@pytest.mark.slow
def test_rainbow_gains_over_dqn_in_the_quickstart(tmp_path):
    pytest.importorskip("minatar")
    (program,) = (program for program in programs("quickstart") if "minatar" in program)

    lines = [line.split() for line in printed_by(program, tmp_path).splitlines()]

    means = {words[0]: sum(map(float, words[1:])) / 5 for words in lines if len(words) == 6}
    assert means["Rainbow"] > means["DQN"] > 0.5  # random actions: 0.5
