"""How a grid is run and watched, with an engine that trains nothing."""

import io
import json
import re

import grids
import pytest
from rich.console import Console

from sb3_per.experiments.compare import run_folder
from sb3_per.experiments.compare.engine import EndedCell, LostCell, Remark, StartedCell, run
from sb3_per.experiments.compare.local import LocalEngine
from sb3_per.experiments.compare.progress import RunDisplay
from sb3_per.experiments.compare.run_folder import DamagedResult, MixedResults
from sb3_per.experiments.compare.suite import Variant, cells


class FakeEngine:
    """Ends cells in the order in which they came."""

    def __init__(self, *, fails=(), cannot_start=(), interrupted_at=None):
        self.running, self.started, self.submitted, self.most = [], [], [], 0
        self.fails, self.interrupted_at, self.is_closed = fails, interrupted_at, False
        self.cannot_start = cannot_start

    def submit(self, cell):
        if cell.seed in self.cannot_start:
            raise OSError("no space left")
        self.running.append(cell)
        self.submitted.append(cell)
        self.started.append(StartedCell(cell))
        self.most = max(self.most, len(self.running))

    def collect(self):
        if self.started:
            return self.started.pop(0)
        if len(self.submitted) == self.interrupted_at:
            raise KeyboardInterrupt
        cell = self.running.pop(0)
        return EndedCell(cell, "Traceback: it broke" if cell.seed in self.fails else None)

    def close(self):
        self.is_closed = True


class Silence:
    def show(self, event): ...


AGAIN = "Delete it, and its cell is trained again"
GRID = cells(grids.suite(environments=("A-v0", "B-v0"), seeds=3))


@pytest.mark.parametrize("jobs", [1, 3, 100])
def test_every_cell_runs_once_and_no_more_than_jobs_at_a_time(jobs):
    engine = FakeEngine()

    failed = run(GRID, engine, jobs, Silence())

    assert engine.submitted == GRID
    assert engine.most == min(jobs, len(GRID))
    assert not failed
    assert engine.is_closed


def test_a_cell_that_fails_does_not_stop_the_others():
    engine = FakeEngine(fails=(1,))

    failed = run(GRID, engine, 2, Silence())

    assert engine.submitted == GRID
    assert [outcome.cell for outcome in failed] == [cell for cell in GRID if cell.seed == 1]


@pytest.mark.parametrize("seeds", [(1,), (0, 1, 2)])
def test_a_cell_that_cannot_start_does_not_stop_the_others(seeds):
    engine = FakeEngine(cannot_start=seeds)

    failed = run(GRID, engine, 2, Silence())

    assert engine.submitted == [cell for cell in GRID if cell.seed not in seeds]
    assert [outcome.cell for outcome in failed] == [cell for cell in GRID if cell.seed in seeds]
    assert failed[0].error.startswith("Traceback (most recent call last)")
    assert failed[0].error.endswith("OSError: no space left")


def test_a_cell_whose_output_is_gone_has_failed_like_any_other(tmp_path):
    here = LocalEngine(tmp_path, "cpu", work=grids.end_with_status_3)
    here.submit(GRID[0])

    assert here.collect() == StartedCell(GRID[0])
    outcome = here.collect()

    assert outcome.cell == GRID[0]
    assert outcome.error.startswith("exit status 3, all output in ")
    assert "it cannot be read: " in outcome.error


def test_a_cell_whose_result_is_none_has_failed_like_any_other(tmp_path):
    result = run_folder.cell_folder(tmp_path, GRID[0]) / "result.json"
    here = LocalEngine(tmp_path, "cpu", work=grids.write_a_damaged_result)

    here.submit(GRID[0])
    here.collect()

    assert here.collect() == (GRID[0], f"{result}: it must hold an object, got []. {AGAIN}")


def test_a_process_trains_cells_until_one_fails_and_each_has_its_own_output(tmp_path):
    grid = cells(grids.suite(variants=("dqn",), seeds=5))

    failed = run(grid, LocalEngine(tmp_path, "cpu", work=grids.write_the_process), 1, Silence())

    outputs = [(run_folder.cell_folder(tmp_path, cell) / "output.txt").read_text() for cell in grid]
    said = [re.match(r"seed (\d) in (\d+)", output).groups() for output in outputs]
    assert [int(seed) for seed, _ in said] == [0, 1, 2, 3, 4]
    first, second = said[0][1], said[3][1]
    assert [process for _, process in said] == [first, first, first, second, second]
    assert first != second
    assert [ended.cell.seed for ended in failed] == [2]
    assert failed[0].error.startswith("exit status 1, all output in ")
    assert failed[0].error.endswith("RuntimeError: this seed always fails")
    assert [cell.seed for cell in run_folder.unfinished(tmp_path, grid)] == [2]


@pytest.mark.slow
def test_a_cell_runs_the_code_of_its_run_not_that_of_the_current_folder(tmp_path, monkeypatch):
    other = tmp_path / "sb3_per"
    other.mkdir()
    (other / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    here = LocalEngine(tmp_path / "out", "cpu")

    here.submit(GRID[0])  # of an environment that there is none of
    here.collect()

    assert here.collect().error.endswith("KeyError: 'A-v0'")


def test_files_that_no_run_has_left_stay(tmp_path):
    agent = run_folder.cell_folder(tmp_path, GRID[0]) / "agent.zip"
    agent.parent.mkdir(parents=True)
    agent.write_text("of a user")

    with pytest.raises(FileExistsError, match=rf"move these folders away: {agent.parent}$"):
        run_folder.check_places(tmp_path, GRID)
    with pytest.raises(FileExistsError, match="must be empty or marked by"):
        LocalEngine(tmp_path, "cpu").submit(GRID[0])
    with pytest.raises(FileExistsError, match="must be empty or marked by"):
        run_folder.clear(tmp_path, GRID[0])

    assert agent.read_text() == "of a user"
    assert [*agent.parent.iterdir()] == [agent]
    run_folder.check_places(tmp_path, GRID[1:])


def test_what_an_earlier_try_has_left_is_removed_except_its_output(tmp_path):
    place = run_folder.claim(tmp_path, GRID[0])
    (place / "A-v0").mkdir()
    (place / "A-v0" / "args.yml").touch()
    (place / "agent.zip").touch()
    (place / "output.txt").touch()

    assert run_folder.clear(tmp_path, GRID[0]) == place

    assert sorted(path.name for path in place.iterdir()) == [".sb3-per-cell", "output.txt"]


def test_an_interrupt_closes_the_engine():
    engine = FakeEngine(interrupted_at=5)

    with pytest.raises(KeyboardInterrupt):
        run(GRID, engine, 2, Silence())

    assert engine.is_closed
    assert len(engine.submitted) == 5


def test_a_result_makes_a_cell_a_finished_one(tmp_path):
    assert run_folder.unfinished(tmp_path, GRID) == GRID

    grids.finish(tmp_path, GRID[3], [1.0, 2.0, 3.0, 4.0])

    assert run_folder.unfinished(tmp_path, GRID) == [cell for cell in GRID if cell != GRID[3]]
    kept = run_folder.read(tmp_path, GRID[3])
    assert kept["settings"] == GRID[3].settings
    assert kept["evaluations"]["returns"] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]


def test_cells_do_not_share_a_folder(tmp_path):
    assert len({run_folder.cell_folder(tmp_path, cell) for cell in GRID}) == len(GRID)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 80}, "steps was 40 and is 80"),
        ({"env_kwargs": {"size": None}}, "env_kwargs.size was absent and is None"),
        ({"env_kwargs": {"size": 8}}, "env_kwargs.size was absent and is 8"),
        (
            {"hyperparameters": {"policy": "MlpPolicy", "learning_rate": 0.25}},
            "hyperparameters.learning_rate was 0.5 and is 0.25",
        ),
    ],
)
def test_results_of_other_settings_are_never_mixed_in(tmp_path, changes, message):
    before = grids.suite()
    grids.finish(tmp_path, cells(before)[0], [0.0] * 4)

    with pytest.raises(MixedResults) as error:
        run_folder.unfinished(tmp_path, cells(grids.changed(before, "A-v0", **changes)))

    assert str(error.value).startswith(str(run_folder.cell_folder(tmp_path, cells(before)[0])))
    assert message in str(error.value)


def test_a_changed_variant_is_noticed_and_a_new_one_is_only_run(tmp_path):
    before = grids.suite(seeds=1)
    for cell in cells(before):
        grids.finish(tmp_path, cell, [0.0] * 4)
    per = Variant(algorithm="dqn", overrides={"gamma": 0.5})

    changed = grids.replaced(before, variants=before.variants | {"per": per})
    added = grids.replaced(before, variants=before.variants | {"more": per})

    with pytest.raises(MixedResults, match=r"gamma was absent and is 0\.5"):
        run_folder.unfinished(tmp_path, cells(changed))
    assert [cell.variant for cell in run_folder.unfinished(tmp_path, cells(added))] == ["more"]


def test_more_seeds_only_add_cells(tmp_path):
    for cell in cells(grids.suite(seeds=2)):
        grids.finish(tmp_path, cell, [0.0] * 4)

    todo = run_folder.unfinished(tmp_path, cells(grids.suite(seeds=3)))

    assert {cell.seed for cell in todo} == {2}


def test_what_only_the_report_reads_may_change(tmp_path):
    suite = grids.suite()
    for cell in cells(suite):
        grids.finish(tmp_path, cell, [0.0] * 4)

    other = grids.changed(suite, "A-v0", threshold=1.0)

    assert not run_folder.unfinished(tmp_path, cells(other))


def test_settings_survive_json_as_they_are(tmp_path):
    suite = grids.changed(grids.suite(), "A-v0", hyperparameters={"train_freq": (1, "episode")})
    grids.finish(tmp_path, cells(suite)[0], [0.0] * 4)

    assert run_folder.read(tmp_path, cells(suite)[0]) is not None


def test_a_result_of_another_format_is_refused(tmp_path):
    grids.finish(tmp_path, GRID[0], [0.0] * 4)
    (path,) = tmp_path.glob("*/*/*/result.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))

    with pytest.raises(MixedResults, match="must have format 1, got 2"):
        run_folder.read(tmp_path, GRID[0])


DAMAGES = {
    "empty": (lambda text: "", "it must be JSON"),
    "cut short": (lambda text: text[:-20], "it must be JSON"),
    "no object": (lambda text: "[]", r"it must hold an object, got \[\]"),
    "nothing measured": (lambda text: text.replace("evaluations", "valuations"), "'evaluations'"),
    "no number": (lambda text: text.replace("2.0", "NaN"), "its numbers must be finite"),
    "text": (lambda text: text.replace("2.0", '"2"'), "it must hold what was measured"),
    "late": (lambda text: text.replace(" 30,", " 31,"), "evaluations must be 10 steps apart, 4 of"),
    "steps of text": (lambda text: text.replace(" 30,", '"30",'), "hold what was measured"),
    "one less": (lambda text: text.replace(" 30,", ""), "evaluations must be 10 steps apart, 4 of"),
    "an episode less": (lambda text: text.replace("1.0,\n", "", 1), "must be of 2 episodes each"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_result_is_named(tmp_path, damage, message):
    grids.finish(tmp_path, GRID[0], [1.0, 2.0, 3.0, 4.0])
    (path,) = tmp_path.glob("*/*/*/result.json")
    path.write_text(damage(path.read_text()))

    with pytest.raises(DamagedResult, match=message) as error:
        run_folder.read(tmp_path, GRID[0])
    assert str(error.value).startswith(f"{path}: ")
    assert str(error.value).endswith(AGAIN)


def test_a_result_whose_writing_fails_is_none(tmp_path, monkeypatch):
    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        grids.finish(tmp_path, GRID[0], [0.0] * 4)

    assert run_folder.read(tmp_path, GRID[0]) is None


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def lines_over_time(cells, *ends):
    """
    What a display without a terminal says.

    :param ends: The time of each cell's end, and whether it ended well; each starts at once.
    """
    clock, console = Clock(), Console(file=io.StringIO(), width=80)
    with RunDisplay(cells, 0, console, clock) as display:
        for cell in cells:
            display.show(StartedCell(cell))
        for cell, (clock.now, well) in zip(cells, ends, strict=False):
            display.show(EndedCell(cell, None if well else "Traceback"))
    return console.file.getvalue().splitlines()


def test_the_time_left_follows_from_the_steps_of_finished_cells():
    short, long = GRID[0], GRID[1]._replace(settings=GRID[1].settings | {"steps": 120})
    third, fourth = GRID[2:4]

    lines = lines_over_time([short, long, third, fourth], (10, True), (40, True), (50, True))

    assert short.settings["steps"] == 40
    # 40 of 240 steps after 10 seconds, 160 after 40, 200 after 50.
    assert [line.partition(" left")[0] for line in lines] == [
        "1 of 4 done, 3 running, 0 failed, 4 steps/s, 0:00:50",
        "2 of 4 done, 2 running, 0 failed, 4 steps/s, 0:00:20",
        "3 of 4 done, 1 running, 0 failed, 4 steps/s, 0:00:10",
    ]


def test_a_cell_that_fails_at_once_does_not_make_the_rest_look_short():
    cells = GRID[:3]

    lines = lines_over_time(cells, (1, False), (10, True), (20, True))

    assert [line.partition(" left")[0] for line in lines] == [
        "0 of 3 done, 2 running, 1 failed, ? steps/s, ?",
        "1 of 3 done, 1 running, 1 failed, 4 steps/s, 0:00:10",
        "2 of 3 done, 0 running, 1 failed, 4 steps/s, 0:00:00",
    ]


def test_a_lost_cell_does_not_run_until_it_starts_again_and_remarks_are_lines():
    console = Console(file=io.StringIO(), width=80)
    cell = GRID[0]
    with RunDisplay([cell], 0, console, Clock()) as display:
        display.show(StartedCell(cell, "node1"))
        display.show(Remark("node node2 is refused: [no markup]"))
        display.show(LostCell(cell, "WorkerCrashedError; try 2 of 4"))
        display.show(EndedCell(cell, "lost 2 times"))

    assert console.file.getvalue().splitlines() == [
        "node node2 is refused: [no markup]",
        f"{cell}: lost, tried again (WorkerCrashedError; try 2 of 4)",
        f"0 of 1 done, 0 running, 1 failed, ? steps/s, ? left | {cell}: failed",
    ]


def shown(*, is_terminal, fails=(), width=80):
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=width)
    with RunDisplay(GRID, 4, console) as display:
        run(GRID, FakeEngine(fails=fails), 2, display)
    return console.file.getvalue()


def test_without_a_terminal_there_is_a_plain_line_for_each_cell():
    lines = shown(is_terminal=False, fails=(1,)).splitlines()

    assert len(lines) == len(GRID)
    # rich rounds what is left up to whole seconds.
    counts = r"%d of 16 done, %d running, %d failed, [\d?]+ steps/s, (0:00:0[01]|\?) left \| %s"
    assert re.fullmatch(counts % (5, 1, 0, "dqn, A-v0, seed 0: 0:00:00"), lines[0])
    assert re.fullmatch(counts % (8, 1, 1, "dqn, A-v0, seed 1: failed"), lines[4])
    assert re.match(counts % (12, 0, 4, ""), lines[-1])
    # The counts are readable in 80 columns, whatever the names behind them.
    assert all(len(line.partition(" | ")[0]) <= 72 for line in lines)


def test_a_plain_line_is_never_broken():
    assert len(shown(is_terminal=False, width=30).splitlines()) == len(GRID)


def test_a_terminal_shows_what_is_done_running_failed_and_left():
    text = shown(is_terminal=True, fails=(1,))

    assert "4 of 16 done, 2 running, 0 failed" in text or "4 of 16 done, 0 running" in text
    assert "12 of 16 done, 0 running, 4 failed" in text
    assert "0:00:00 left" in text
    assert "dqn, A-v0, seed 1: failed" in text
