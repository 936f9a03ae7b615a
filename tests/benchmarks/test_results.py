"""Tables and figures of the pages are those of the results in the repository."""

import gzip
import re
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import figures, pack, tables
from benchmarks.pack import PACKED, read_packed
from benchmarks.speed import __main__ as speed
from sb3_per.compare.results import run_folder
from sb3_per.compare.run import check
from sb3_per.compare.suite import load, runs_of

ROOT = Path(__file__).parents[2]
RESULTS, SUITES = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "suites"
NAMES = sorted(path.stem for path in SUITES.glob("*.yml"))
MEASURED = [name for name in NAMES if (RESULTS / f"{name}{PACKED}").exists()]
# Packages that gymnasium needs for the environments of a suite.
PACKAGES = {"MiniGrid": "minigrid", "MinAtar": "minatar", "Lunar": "Box2D", "Hopper": "mujoco"}
PACKAGES |= {"NoFrameskip": "ale_py"}


def test_pairs_from_a_seed_on_leave_out_the_seeds_before():
    names = (f"rainbow_half_uniform:dqn{first}" for first in ("", ":100", ":105"))

    every, same, later = tables.pairs("rainbow_priorities", *names)["P, area"]

    assert every == same != later


def test_tables_of_the_pages_are_current(monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = {path: path.read_text(encoding="utf-8") for path in Path("docs").rglob("*.md")}
    stale = [path.name for path, text in pages.items() if tables.with_tables(text) != text]

    assert stale == [], "python -m benchmarks.tables"
    assert sum(len(tables.MARKED.findall(text)) for text in pages.values()) > 20


@pytest.mark.parametrize("name", MEASURED)
def test_suite_describes_what_was_measured(name):
    results = read_packed(RESULTS / f"{name}{PACKED}")
    declared = load(SUITES / f"{name}.yml")

    assert declared.model_copy(update={"seeds": results.suite.seeds}) == results.suite


def test_scores_of_atari_100k_are_the_published_ones():
    published = pd.read_csv(ROOT / "benchmarks" / "atari_100k.csv", comment="#")
    environments = load(SUITES / "atari_100k.yml").environments

    listed = published[["game", "random", "human"]].to_numpy().tolist()
    ours = [
        [name.removesuffix("NoFrameskip-v4"), environment.score.random, environment.score.solved]
        for name, environment in environments.items()
    ]
    assert sorted(ours) == sorted(listed)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_suite_can_be_run(name):
    declared = load(SUITES / f"{name}.yml")
    for part, package in PACKAGES.items():
        if any(part in environment for environment in declared.environments):
            pytest.importorskip(package)
    if "qrdqn" in name and find_spec("sb3_contrib") is None:
        pytest.skip("sb3-contrib is not installed")

    check(runs_of(declared))


def test_packed_files_are_small_and_reproducible(tmp_path):
    pack.pack(read_packed(RESULTS / f"sparse{PACKED}"), tmp_path / "again.jsonl.gz")

    again, before = tmp_path / "again.jsonl.gz", RESULTS / "sparse.jsonl.gz"
    # Not the compressed bytes, which depend on Python's version and zlib's.
    assert gzip.decompress(again.read_bytes()) == gzip.decompress(before.read_bytes())
    assert again.read_bytes()[4:8] == bytes(4)  # no time, so that equal results give equal files
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 1_000_000


def test_unpacked_suite_continues_where_it_ended(tmp_path):
    packed, folder = RESULTS / f"sparse{PACKED}", tmp_path / "sparse"
    pack.main(str(packed), str(folder))
    lost, *_ = folder.rglob("result.json")
    lost.unlink()

    unpacked = read_packed(folder)
    assert len(unpacked.missing) == 1
    assert run_folder(folder, unpacked.missing[0]) == lost.parent
    pack.main(str(folder), str(tmp_path / f"again{PACKED}"))
    rows = gzip.decompress(packed.read_bytes()).splitlines()
    again = gzip.decompress((tmp_path / f"again{PACKED}").read_bytes()).splitlines()
    assert len(again) == len(rows) - 1
    assert {*again} < {*rows}
    assert read_packed(tmp_path / f"again{PACKED}").missing == unpacked.missing


def test_every_figure_is_drawn_and_shown():
    shown = {
        name
        for path in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"!\[[^]]+\]\([./a-z]*?(\w+)\.svg\)", path.read_text("utf-8"))
    }

    assert shown == {*figures.SUITES, *figures.ROWS, *figures.PICTURES}
    for folder in (figures.PAGES, figures.GUIDE):
        shown -= {path.stem for path in (ROOT / folder).glob("*.svg")}
    assert not shown


@pytest.mark.parametrize("name", figures.PICTURES)
def test_figure_is_that_of_the_page(name, tmp_path, monkeypatch):
    published = (ROOT / figures.GUIDE / f"{name}.svg").read_text()
    monkeypatch.setattr(figures, "GUIDE", tmp_path)
    monkeypatch.chdir(ROOT)

    figures.main(name)

    drawn = (tmp_path / f"{name}.svg").read_text()
    text = ">([^<>]*[^<>\\s][^<>]*)</text>"
    assert re.findall(text, drawn) == re.findall(text, published)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "ops --capacities 100 --images 0 --batches 8 --rounds 2 --only SB3\u00a0uniform",
        "rainbow --rounds 1",
        "memory --capacity 1000 --steps 100",
    ],
)
def test_speed_is_measured_and_printed_again(command, tmp_path, capsys):
    what, *options = command.split(" ")
    out = tmp_path / "rows.jsonl.gz"
    speed.main([what, *(option.replace("\u00a0", " ") for option in options), "--out", str(out)])
    measured = capsys.readouterr().out

    speed.main([what, "--results", str(out)])

    assert capsys.readouterr().out == measured
    assert measured.count("|") > 10
