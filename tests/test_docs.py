"""The code of README and documentation runs, and every command that they show exists."""

import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from builders import BOX, TWO_ACTIONS

from sb3_per import __version__, cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted([*DOCS.glob("*.md"), *DOCS.glob("algorithms/*.md")])]


def blocks(page: Path, language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def pages_with(language: str) -> pytest.MarkDecorator:
    pages = [page for page in PAGES if blocks(page, language)]
    assert len(pages) >= 3
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.stem)


def shortened(program: str) -> str:
    """Return the program with few steps of training, and without a progress bar or a log."""
    program = re.sub(r"\.learn\([\d_]{4,}", ".learn(120", program)
    return re.sub(r"N_STEPS(.*?)= [\d_]+", r"N_STEPS\1= 600", program).replace(", verbose=1", "")


@pytest.mark.filterwarnings("ignore:rich is experimental")  # tqdm says so of its own bar
@pytest.mark.filterwarnings(
    "ignore:.*Overriding environment"
)  # MinAtar's, which two pages register
@pages_with("python")
def test_programs_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    program = shortened("\n".join(blocks(page, "python")))
    for package in ("minatar", "minigrid", "rl_zoo3", "sb3_contrib", "tensorboard"):
        if package in program or (package == "rl_zoo3" and "zoo" in page.stem):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, page.name, "exec"), {"__name__": "page"})


def test_priorities_of_your_own_are_not_clipped():
    page: dict[str, Any] = {}
    exec(shortened(blocks(DOCS / "coming-from-elsewhere.md", "python")[0]), page)
    options = page["model"].replay_buffer_kwargs
    buffer = page["RewardFirst"](8, BOX, TWO_ACTIONS, n_envs=2, **options)

    for reward in (1, 2, 5):
        pair = np.zeros((2, *BOX.shape))
        buffer.add(pair, pair, np.zeros(2), np.full(2, reward), np.zeros(2), [{}, {}])

    # Half of each batch is uniform.
    by_priority = 2 * buffer.probabilities(np.arange(6)) - 1 / 6
    assert np.allclose(by_priority * 16, [1, 1, 2, 2, 5, 5], rtol=1e-5)


def commands(block: str) -> list[list[str]]:
    """Return the words of each command of a block of shell code."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


@cache
def help_of(words: tuple[str, ...]) -> str:
    """Return what ``sb3-per ... --help`` prints."""
    printed, arguments = io.StringIO(), sys.argv
    try:
        with redirect_stdout(printed), pytest.raises(SystemExit) as end:
            cli.main([*words, "--help"])
    finally:
        sys.argv = arguments
    assert end.value.code in (0, None)
    return printed.getvalue()


def require_known(words: list[str]) -> None:
    """Check that a command of sb3-per, pip, make or Python can be typed as it stands."""
    while re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    if words[:3] == ["python", "-m", "sb3_per"]:
        words = ["sb3-per", *words[3:]]
    if words[0] in ("for", "ls", "done;", "done"):
        return
    if words[0] == "sb3-per":
        require_options(words[1:])
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert set(words[1:]) - {word for word in words if "=" in word} <= set(targets)
    elif words[:2] == ["pip", "install"]:
        extras = re.findall(r"\[(.*)\]", words[-1])
        project = (ROOT / "pyproject.toml").read_text()
        assert all(f"\n{name} = [" in project for extra in extras for name in extra.split(","))
    elif words[:2] == ["python", "-m"]:
        assert find_spec(words[2]) is not None
    else:
        assert words[0] == "python", f"an unknown command: {words}"
        assert (ROOT / words[1]).exists()


def require_options(words: list[str]) -> None:
    if words[0] == "configs":
        return
    command = words[:2] if words[0] == "compare" else words[:1]
    known = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", help_of(tuple(command))))
    asked = {word for word in words if re.match(r"--?[A-Za-z]", word)}
    assert asked <= known, f"sb3-per {' '.join(command)} has no {asked - known}"


@pytest.mark.filterwarnings("ignore")  # of RL-Zoo's imports
@pages_with("bash")
def test_commands_of_a_page_exist_with_their_options(page):
    pytest.importorskip("rl_zoo3")
    for block in blocks(page, "bash"):
        for words in commands(block):
            require_known(words)


def test_pictures_are_those_that_the_script_draws():
    script: dict[str, object] = {"__name__": "pictures"}
    exec((DOCS / "pictures" / "draw.py").read_text(encoding="utf-8"), script)

    drawn = script["pictures"]()  # type: ignore[operator]

    # `python -m benchmarks.figures` draws the others.
    pictures = {path.stem for path in DOCS.glob("pictures/*.svg")}
    assert pictures == {*drawn, "atari", "rare", "verdicts"}
    for name, content in drawn.items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == content
        assert ElementTree.fromstring(content).get("aria-label")


def test_version_is_the_same_everywhere():
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    citation = re.search(
        r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE
    )

    assert heading is not None
    assert citation is not None
    assert heading[1] == citation[1] == __version__.partition(".dev")[0]


def test_release_names_its_repository():
    address = re.search(
        r'^Repository = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )

    assert address is not None
    texts = [address[1], *(page.read_text(encoding="utf-8") for page in PAGES)]
    assert ".dev" in __version__ or not any("/OWNER/" in text for text in texts)
