"""The published numbers are those of the data in the repository."""

import gzip
import re
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import figures, pack, tables, verdicts
from benchmarks.cliffwalk import report as cliffwalk
from benchmarks.pack import PACKED, read_packed
from benchmarks.speed import __main__ as speed
from sb3_per.compare.report import table, table_of_runs
from sb3_per.compare.results import run_folder
from sb3_per.compare.run import check
from sb3_per.compare.suite import load, runs_of

ROOT = Path(__file__).parents[2]
RESULTS, SUITES = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "suites"
# The page of each suite.
PAGES = {
    "ablation": "ablation",
    "classic": "classic",
    "confirm_dense": "recipes",
    "confirm_rare": "recipes",
    "continuous_sac": "continuous",
    "continuous_td3": "continuous",
    "few_updates": "minigrid",
    "goals_dqn": "goals",
    "goals_sac": "goals",
    "minatar": "minatar",
    "minatar_16_envs": "minatar",
    "minatar_rainbow": "minatar",
    "minigrid": "minigrid",
    "minigrid_one_step": "minigrid",
    "minigrid_one_step_6x6": "minigrid",
    "minigrid_parts": "minigrid",
    "recipes": "recipes",
    "sparse": "sparse",
    "sparse_qrdqn": "sparse",
}
WITHOUT_INTERVALS = {"minatar_rainbow", "minigrid_parts", "recipes"}
WITH_INTERVALS = sorted({*PAGES} - WITHOUT_INTERVALS)
# Packages that gymnasium needs for the environments of a suite.
PACKAGES = {"MiniGrid": "minigrid", "MinAtar": "minatar", "Lunar": "Box2D", "Hopper": "mujoco"}
PACKAGES |= {"NoFrameskip": "ale_py"}


def page(name):
    """Return the text of a result page, on one line and without emphasis."""
    text = (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")
    return " ".join(text.replace("**", "").split())


def results_of(name):
    return read_packed(RESULTS / f"{name}{PACKED}")


def rows_of(name):
    made = results_of(name)
    return table(made.suite, table_of_runs(made))


def test_results_have_a_suite_and_a_page():
    # A suite is committed before its first run.
    assert {path.stem for path in SUITES.glob("*.yml")} >= {*PAGES}
    for name in PAGES:
        assert results_of(name).missing == []


@pytest.mark.parametrize("name", WITH_INTERVALS)
def test_probabilities_of_improvement_are_those_of_the_page(name):
    rows, text = rows_of(name), page(PAGES[name])

    scope = rows["environment"].iloc[0]  # all, or the only one
    found = rows[(rows["environment"] == scope) & (rows["P final"] != "")]
    assert len(found) >= 1
    for _, row in found[~found["variant"].str.contains(" over ")].iterrows():
        assert row["P final"] in text
        assert row["P area"] in text


@pytest.mark.parametrize("row", verdicts.ROWS, ids=lambda row: f"{row.algorithm} {row.task}")
def test_verdict_is_that_of_the_results(row):
    text = (ROOT / "docs" / "should-i-use-it.md").read_text(encoding="utf-8").replace("`", "")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    table = {(line[0], line[1]): line[-3:] for line in cells if len(line) == 6}
    together = dict(verdicts.chances(row, RESULTS))[verdicts.ALL]

    assert table[row.task, row.algorithm] == together.texts()
    # A P without a row of its own would be nobody's.
    listed = {key for key, line in table.items() if line[0][:2] in ("0.", "1.")}
    assert listed == {(row.task, row.algorithm) for row in verdicts.ROWS}
    if row.aim is not None:
        area, final = together.texts()[:2]
        verdict = "met" if together.area.value >= row.aim else "missed"
        assert f"| {row.aim:.2f} | {verdict} | {area} | {final} |" in page("recipes")


@pytest.mark.parametrize("question", verdicts.RULE, ids=lambda question: question[0])
def test_answer_of_the_rule_is_that_of_its_page(question):
    _, suites, variant, over, least = question
    found = verdicts.compared(verdicts.runs_of(RESULTS, suites), variant, over)

    assert f"| {least} | {' | '.join(found.texts()[:2])} |" in page("recipes")


@pytest.mark.parametrize("name", verdicts.RARE)
def test_comparisons_with_rare_rewards_are_those_of_the_page(name):
    runs = verdicts.runs_of(RESULTS, verdicts.RARE[name])

    found = verdicts.compared(runs, "alpha1", "dqn")
    assert f"| {' | '.join(found.texts()[:2])} |" in page("minigrid")


@pytest.mark.parametrize("name", ["minatar_rainbow", "minigrid_parts"])
def test_rows_of_three_seeds_are_those_of_the_page(name):
    suite = results_of(name).suite
    rows = rows_of(name).set_index(["environment", "variant"])
    for label in map(suite.label, suite.variants):
        over_all = rows.loc[("all", label)]
        finals = [rows.loc[(environment, label), "final"] for environment in suite.environments]
        listed = ["", label, over_all["P final"], over_all["P area"], *finals, ""]
        assert " ".join(" | ".join(listed).split()) in page(PAGES[name])


def test_equal_time_of_rainbow_on_minigrid_is_that_of_the_page():
    (row,) = (row for row in verdicts.ROWS if row.suites == ("minigrid_parts",))
    over_all = dict(verdicts.chances(row, RESULTS))[verdicts.ALL]
    assert re.search(rf"\| Rainbow \|[^R]* \| {over_all.equal_time.value:.2f} \|", page("minigrid"))


def test_games_with_16_environments_are_those_of_the_page():
    suite, text = results_of("minatar_16_envs").suite, page("minatar")
    rows = rows_of("minatar_16_envs").set_index(["environment", "variant"])
    labels = {
        suite.label(name): suite.label(name).replace(" without noisy layers", "")
        for name in suite.variants
    }
    labels["Rainbow without noisy layers or priorities"] = "Rainbow without priorities"
    for name in suite.environments:
        chances = [
            rows.loc[(name, label), f"P {measure}"]
            for label in ("PERDQN", "Rainbow without noisy layers")
            for measure in ("area", "final")
        ]
        assert f"| {verdicts.plain(name)} | {' | '.join(chances)} |" in text
    for label, short in labels.items():
        finals = [rows.loc[(name, label), "final"].split()[0] for name in suite.environments]
        assert f"| {short} | {' | '.join(finals)} |" in text
    priorities = rows.loc["all"].filter(like="Priorities", axis="index").iloc[0]
    assert f"{priorities['P area']} by the area and {priorities['P final']} by" in text


def test_pairs_of_rainbow_are_those_of_the_page():
    rows, text = rows_of("minatar_rainbow"), page("minatar")
    rows = rows[rows["P area"] != ""]
    aimed = 0
    for name, pair in rows.groupby("variant"):
        over_all, *each = pair[["P area", "P final"]].to_numpy().tolist()
        assert f"| {' | '.join(f'{area} ({final})' for area, final in each)} |" in text
        if name == "Rainbow" or name.startswith(("Rainbow (", "Priorities (")):
            aimed += 1
            assert f"| {' | '.join(over_all)} |" in text
    assert aimed == 3


def test_scores_of_atari_100k_are_the_published_ones():
    published = pd.read_csv(ROOT / "benchmarks" / "atari_100k.csv", comment="#")
    environments = load(SUITES / "atari_100k.yml").environments

    listed = published[["game", "random", "human"]].to_numpy().tolist()
    ours = [
        [name.removesuffix("NoFrameskip-v4"), environment.score.random, environment.score.solved]
        for name, environment in environments.items()
    ]
    assert sorted(ours) == sorted(listed)


@pytest.mark.parametrize("name", PAGES)
def test_suite_describes_what_was_measured(name):
    measured = results_of(name).suite

    assert load(SUITES / f"{name}.yml").model_copy(update={"seeds": measured.seeds}) == measured


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAGES, "atari_100k"])
def test_suite_can_be_run(name):
    declared = load(SUITES / f"{name}.yml")
    for part, package in PACKAGES.items():
        if any(part in environment for environment in declared.environments):
            pytest.importorskip(package)
    if "qrdqn" in name and find_spec("sb3_contrib") is None:
        pytest.skip("sb3-contrib is not installed")

    check(runs_of(declared))


def test_packed_files_are_small_and_reproducible(tmp_path):
    pack.pack(results_of("sparse"), tmp_path / "again.jsonl.gz")

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


@pytest.mark.parametrize("name", ["cliffwalk", "cliffwalk_networks"])
def test_updates_on_the_cliffwalk_are_those_of_the_page(name):
    runs = pd.read_json(RESULTS / f"{name}{PACKED}", lines=True)
    text = (ROOT / "docs" / "results" / "cliffwalk.md").read_text(encoding="utf-8")

    for learner in cliffwalk.in_order(runs["learner"]):
        title, _, header, _, *rows = cliffwalk.table(runs, learner).splitlines()
        listed = text.partition(f"{title}\n\n{header}\n")[2].partition("\n\n")[0].splitlines()[1:]
        assert len(listed) == 3
        assert {*listed} <= {*rows}


def rows_of_speed(name):
    return pd.read_json(RESULTS / f"speed_{name}{PACKED}", lines=True)


def test_paces_of_training_are_those_of_the_page():
    rows = rows_of_speed("train")
    rows = rows[rows["name"].isin(["PERDQN", "PERDQN, the paper's settings"])]
    assert len(rows) == 6
    for _, row in rows.iterrows():
        low, high = row["over DQN, low"], row["over DQN, high"]
        assert f"{row['over DQN']:.2f} ({low:.2f} to {high:.2f})" in page("speed")


def test_steps_of_rainbow_are_those_of_the_page():
    for row in tables.as_text(rows_of_speed("rainbow")).splitlines():
        assert row in page("speed")


def test_memory_is_that_of_the_page():
    for name, column, form in (
        ("memory", "bytes a slot", ".1f"),
        ("images", "bytes a transition", ".0f"),
    ):
        for value in rows_of_speed(name)[column]:
            assert f"{value:{form}}" in page("speed")


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
        "gradient-steps --algorithms per_dqn --rounds 1",
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
