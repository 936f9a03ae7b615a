"""The first program of each page learns: the return that it prints clearly beats random actions."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
# The return of random actions, and a return that no random agent reaches.
CARTPOLE, PENDULUM = (22, 150), (-1200, -600)
PAGES = {
    "../README": CARTPOLE,
    "quickstart": CARTPOLE,
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


def first_program(page: str) -> str:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize("page", PAGES)
def test_first_program_says_what_random_actions_reach(page):
    assert re.search(rf"random actions: {PAGES[page][0]}$", first_program(page), flags=re.MULTILINE)


# Several pages show the same program.
@pytest.mark.slow
@pytest.mark.parametrize("page", {first_program(page): page for page in PAGES}.values())
def test_first_program_beats_random_actions(page, tmp_path):
    if page.endswith(("qrdqn", "tqc", "crossq")):
        pytest.importorskip("sb3_contrib")
    command = [sys.executable, "-c", first_program(page)]
    paths = os.pathsep.join([str(DOCS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}

    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )

    # After a progress bar.
    printed = re.search(r"^mean return (-?\d+)\n\Z", done.stdout, flags=re.MULTILINE)
    assert printed is not None
    assert int(printed.group(1)) > PAGES[page][1]
