import itertools
import json
import sys
from collections import Counter
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per import PrioritizedReplayBuffer
from sb3_per.experiments.bench import (
    command,
    contestants,
    gradient_steps,
    image_memory,
    ops,
    peers,
    profile,
    quartiles,
    slot_memory,
    train,
)
from sb3_per.experiments.bench.quartiles import Quartiles
from sb3_per.experiments.common.drawing import distinct_colours
from sb3_per.experiments.common.tables import markdown
from sb3_per.zoo import ALGORITHMS


def test_quartiles_cut_five_numbers_at_the_second_third_and_fourth():
    assert quartiles.quartiles_of([50.0, 10.0, 30.0, 20.0, 40.0]) == (20.0, 30.0, 40.0)


def test_columns_of_a_table_line_up():
    rows = [("a", "1"), ("longer", "1000")]

    assert markdown(("name", "us"), rows, is_aligned=True).splitlines() == [
        "| name   |   us |",
        "| ------ | ---: |",
        "| a      |    1 |",
        "| longer | 1000 |",
    ]


class Clock:
    """Time that passes only where somebody says so."""

    now = 0.0

    def perf_counter(self):
        return self.now


class Slow(NamedTuple):
    """A contestant that notes what is asked of it, and takes as many microseconds as it costs."""

    clock: Clock
    costs: dict
    calls: list

    def sample(self, batch_size):
        self._note("sample", batch_size)
        return "drawn"

    def update(self, drawn, td_errors):
        self._note("update", drawn, len(td_errors))

    def add(self):
        self._note("add")

    def _note(self, operation, *arguments):
        self.calls.append((operation, *arguments))
        self.clock.now += 1e-6 * self.costs[operation]


def test_a_step_is_a_sample_an_update_and_four_additions(monkeypatch):
    monkeypatch.setattr(ops, "time", clock := Clock())
    slow, fast = {"sample": 5, "update": 1, "add": 0.5}, {"sample": 2, "update": 0, "add": 0.5}
    entered = {ops.UNIFORM: Slow(clock, fast, []), "other": Slow(clock, slow, [])}

    uniform, other, *_ = ops.measure(contestants.flat(10), entered, batches=[32, 64], n_rounds=5)

    step = [("sample", 32), ("update", "drawn", 32), *[("add",)] * 4]
    assert entered["other"].calls[:6] == step
    assert entered["other"].calls == entered[ops.UNIFORM].calls
    assert len(entered["other"].calls) == 5 * 2 * len(step)
    assert uniform.step_over_uniform is None
    assert other.step.median == pytest.approx(5 + 1 + 4 * 0.5)
    assert other.step_over_uniform.median == pytest.approx(8 / 4)


def test_nobody_runs_after_the_same_one_every_time(monkeypatch):
    monkeypatch.setattr(ops, "time", clock := Clock())
    costs, order = {"sample": 1, "update": 1, "add": 1}, []
    entered = {name: Slow(clock, costs, []) for name in "abc"}
    monkeypatch.setattr(ops, "_step", lambda one, *_: order.append(one) or (1.0, 1.0, 1.0))

    ops.measure(contestants.flat(10), entered, batches=[32], n_rounds=30)

    names = [next(name for name, each in entered.items() if each is one) for one in order]
    rounds = {tuple(names[i : i + 3]) for i in range(0, 90, 3)}
    assert len(rounds) == 6


@pytest.mark.parametrize("workload", [contestants.flat(64), contestants.images(64)])
def test_all_of_ours_take_part_full(workload):
    entered, left_out = ops.enter(workload)

    costs = ops.measure(workload, entered, batches=[8], n_rounds=3)

    ours = {
        f"sb3-per {kind}{end}" for kind in ("proportional", "rank-based") for end in ("", ", bare")
    }
    if workload.observations.dtype == np.uint8:
        ours.add("sb3-per n_stack=4")
    assert {cost.name for cost in costs} >= ours | {"SB3 uniform", "SB3 uniform again"}
    assert {cost.name for cost in costs} | set(left_out) >= {"cpprb", "torchrl's trees, bare"}
    assert all(each.buffer.full for each in entered.values() if isinstance(each, contestants.OfSB3))
    assert all(cost.sample.median > 0 and cost.add.median > 0 for cost in costs)


def test_what_cannot_be_imported_is_left_out_by_name(monkeypatch):
    def missing():
        raise ImportError("No module named 'other'")

    monkeypatch.setattr(ops, "peers", lambda workload: [("Other", "other", missing)])

    entered, left_out = ops.enter(contestants.flat(16))

    assert "Other" not in entered
    assert left_out == {"Other": "other cannot be imported: No module named 'other'"}


@pytest.mark.parametrize(
    "name", ["cpprb", "Tianshou", "torchrl's trees, bare", "Tianshou's tree, bare"]
)
def test_a_peer_draws_what_was_updated(name):
    make = {each: make for each, _, make in peers.peers(contestants.flat(64))}[name]
    try:
        peer = make()
    except ImportError as problem:
        pytest.skip(f"{name} is not there: {problem}")

    for _ in range(20):
        peer.update(np.arange(64), np.where(np.arange(64) == 7, 1e6, 1e-6).astype(np.float32))

    assert (np.asarray(peer.sample(32)) == 7).mean() > 0.9


def test_images_are_not_asked_of_peers():
    _, left_out = ops.enter(contestants.images(16))

    assert set(left_out) == {name for name, _, _ in peers.peers(contestants.images(16))}


PACE = train.Pace(
    "CartPole",
    "DQN",
    Quartiles(1900.0, 2000.0, 2100.0),
    Quartiles(1.104, 1.206, 1.306),
    Quartiles(0.95, 1.05, 1.15),
)


class Paced(NamedTuple):
    """A model whose slices take so many CPU seconds, as the clock is told."""

    clock: list
    seconds: float

    def learn(self, n_steps, reset_num_timesteps=True):
        self.clock[0] += self.seconds


def test_a_model_that_needs_half_the_time_makes_twice_the_steps(monkeypatch):
    clock = [0.0]
    seconds = {"DQN": 0.8, "PERDQN": 0.4, "DQN, fused Adam": 0.6}
    models = [(name, Paced(clock, each)) for name, each in seconds.items()]
    monkeypatch.setattr(train, "contestants", lambda task, device: models)
    monkeypatch.setattr(train.time, "process_time", lambda: clock[0])

    stock, ours, _ = train.measure("CartPole", n_rounds=3)

    assert stock.over_stock == (1.0, 1.0, 1.0)
    assert ours.over_stock.median == pytest.approx(2.0)
    assert ours.over_fused.median == pytest.approx(1.5)
    assert ours.microseconds.median == pytest.approx(0.4e6 / 400)


def test_no_model_trains_after_the_same_one_every_time(monkeypatch):
    turns = []

    class Noting(NamedTuple):
        name: str

        def learn(self, n_steps, reset_num_timesteps=True):
            turns.append(self.name)

    names = ["DQN", "PERDQN", "DQN, fused Adam"]
    models = [(name, Noting(name)) for name in names]
    monkeypatch.setattr(train, "contestants", lambda task, device: models)
    monkeypatch.setattr(train.time, "process_time", itertools.count(1).__next__)

    train.measure("CartPole", n_rounds=30)

    pairs = Counter(itertools.pairwise(turns[3:]))
    assert {pair for pair in pairs if pair[0] != pair[1]} == {*itertools.permutations(names, 2)}
    assert max(pairs.values()) < 30


class Stepping(NamedTuple):
    """A model whose slices of gradient steps take so many CPU seconds."""

    clock: list
    seconds: float
    batch_size: int = 8

    def train(self, gradient_steps, batch_size):
        self.clock[0] += self.seconds


def test_gradient_steps_are_compared_with_those_of_the_base(monkeypatch):
    clock, seconds = [0.0], {"SAC": 0.4, "PERSAC": 0.5}
    monkeypatch.setattr(
        gradient_steps, "make", lambda kind, discrete: Stepping(clock, seconds[kind.__name__])
    )
    monkeypatch.setattr(gradient_steps.time, "process_time", lambda: clock[0])

    cost = gradient_steps.measure("per_sac", n_rounds=3)

    assert (cost.algorithm, cost.again) == ("PERSAC", pytest.approx((1.0, 1.0, 1.0)))
    assert cost.over_base.median == pytest.approx(1.25)
    assert cost.base.median == pytest.approx(1e3 * 0.4 / gradient_steps.STEPS_IN_A_SLICE)
    assert gradient_steps.summary([cost]).splitlines()[2].split("|")[4].strip() == "1.250"


@pytest.mark.parametrize("name", gradient_steps.bases())
def test_gradient_steps_of_each_algorithm_and_its_base_can_be_measured(name, monkeypatch):
    monkeypatch.setattr(gradient_steps, "N_STORED", 50)
    base, discrete = gradient_steps.bases()[name], name in ("per_dqn", "per_qrdqn")

    models = [gradient_steps.make(kind, discrete) for kind in (base, ALGORITHMS[name])]
    for model in models:
        model.train(1, model.batch_size)

    ours, theirs = models[1].replay_buffer, models[0].replay_buffer
    assert isinstance(ours, PrioritizedReplayBuffer)
    assert type(theirs) is ReplayBuffer
    adam = [
        optimizer.param_groups[0]["fused"]
        for model in models
        for optimizer in [getattr(model, "critic", model.policy).optimizer]
    ]
    assert not any(adam)


def test_contestants_of_a_task_differ_in_nothing_but_their_name_adam_and_prioritization():
    models = dict(train.contestants(train.TASKS["CartPole"], "cpu"))

    adam = {name: model.policy.optimizer.param_groups[0]["fused"] for name, model in models.items()}
    assert adam == {
        "DQN": None,
        "DQN again": None,
        "DQN, fused Adam": True,
        "PERDQN": True,
        "PERDQN, recommended": True,
        "PERDQN, plain Adam": False,
    }
    assert (
        len(
            {(model.batch_size, model.train_freq, model.learning_rate) for model in models.values()}
        )
        == 1
    )
    shares = {
        name: model.replay_buffer.uniform_share
        for name, model in models.items()
        if name.startswith("PERDQN")
    }
    assert shares == {"PERDQN": 0.0, "PERDQN, recommended": 0.5, "PERDQN, plain Adam": 0.0}


@pytest.fixture
def short_slices(monkeypatch):
    """CartPole in slices of 60 steps: an update a step after the first 100, and seconds in all."""
    monkeypatch.setitem(train.TASKS, "CartPole", train.TASKS["CartPole"]._replace(slice_steps=60))


@pytest.mark.usefixtures("short_slices")
def test_a_profile_finds_the_time_of_every_job():
    jobs = profile.profile("CartPole", n_steps=60)

    for algorithm in ("DQN", "PERDQN"):
        common = set(jobs[algorithm]) - {
            "update_priorities",
            "zero_grad",
        }  # PERDQN has its own loop
        assert all(jobs[algorithm][job] > 0 for job in common), jobs[algorithm]
        assert jobs[algorithm]["all"] > jobs[algorithm]["train() in all"]
    assert jobs["PERDQN"]["update_priorities"] > 0 == jobs["DQN"]["update_priorities"]


def test_ops_prints_tables_and_writes_json_and_a_plot(monkeypatch, tmp_path, capsys):
    arguments = [
        "ops",
        "--capacities",
        "32",
        "64",
        "--batches",
        "4",
        "--images",
        "32",
        "--rounds",
        "3",
        "--out",
    ]
    monkeypatch.setattr(sys, "argv", ["sb3-per bench", *arguments, str(tmp_path)])

    command.main()

    assert "## 84 x 84 x 4 images, 32 stored" in capsys.readouterr().out
    results = json.loads((tmp_path / "ops.json").read_text())
    assert {cost["capacity"] for cost in results["results"]} == {32, 64}
    assert "numba" in results["versions"]
    assert (tmp_path / "ops.png").stat().st_size > 10_000
    assert "</svg>" in (tmp_path / "ops.svg").read_text()


def test_without_matplotlib_the_install_that_brings_it_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = [
        "ops",
        "--capacities",
        "32",
        "--batches",
        "4",
        "--images",
        "0",
        "--rounds",
        "3",
        "--out",
    ]
    monkeypatch.setattr(sys, "argv", ["sb3-per bench", *arguments, str(tmp_path)])

    command.main()

    assert (tmp_path / "ops.json").is_file()
    assert 'pip install ".[plots]"' in capsys.readouterr().out


def test_what_was_measured_before_stays_beside_another_task(monkeypatch, tmp_path):
    """Each task has a file, which says with which options it was made."""
    monkeypatch.setattr(train, "measure", lambda name, n_rounds, device: [PACE._replace(task=name)])
    for task, rounds in (("CartPole", 3), ("images", 4)):
        arguments = ["train", "--tasks", task, "--rounds", str(rounds), "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["sb3-per bench", *arguments])
        command.main()

    first, second = (
        json.loads((tmp_path / f"train_{task}.json").read_text()) for task in ("cartpole", "images")
    )
    assert first["options"] == {"rounds": 3, "device": "cpu", "tasks": ["CartPole"]}
    assert first["results"][0]["task"] == "CartPole"
    assert second["options"]["rounds"] == 4


def test_speeds_fit_into_a_terminal_over_both_dqns():
    lines = train.summary([PACE, PACE._replace(name="PERDQN, plain Adam")]).splitlines()

    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "DQN",
        "2000",
        "1.21",
        "1.10-1.31",
        "1.05",
        "0.95-1.15",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train --device gpu0", "must be a device that torch knows, got 'gpu0'"),
        ("train --device cuda:99", "must be a device of this machine, got 'cuda:99'"),
    ],
)
def test_a_device_that_is_not_there_is_refused(monkeypatch, capsys, line, message):
    monkeypatch.setattr(sys, "argv", ["sb3-per bench", *line.split()])

    with pytest.raises(SystemExit, match="2"):
        command.main()

    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize("what", ["train --rounds 1", "profile --steps 60"])
def test_a_task_whose_package_is_missing_is_left_out_by_name(what, monkeypatch, capsys):
    task = train.TASKS["LunarLander"]._replace(needs="no_such_package")
    monkeypatch.setitem(train.TASKS, "LunarLander", task)
    monkeypatch.setattr(
        sys, "argv", ["sb3-per bench", *what.split(), "--tasks", "LunarLander", "CartPole"]
    )

    command.main()

    printed = capsys.readouterr().out
    assert "LunarLander is left out: no_such_package is not installed" in printed
    assert "PERDQN" in printed


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell of resident memory")
def test_memory_counts_what_prioritization_takes_beyond_the_transitions():
    proportional = slot_memory.measure("proportional", capacity=4096, n_steps=10)

    # A float64 for each slot, an eighth of that above it and so on, and a byte of the draw log.
    assert proportional.bytes_per_slot == pytest.approx(8 * 8 / 7 + 1, abs=1.5)


def test_ops_measures_the_contestants_that_are_named_alone():
    entered, left_out = ops.enter(contestants.images(50), ["SB3 uniform", "sb3-per n_stack=4"])

    assert [*entered] == ["SB3 uniform", "sb3-per n_stack=4"]
    assert not left_out


def test_a_contestant_that_there_is_not_is_refused_with_the_names(monkeypatch):
    arguments = ["--capacities", "--images", "50", "--only", "SB3 unifrom"]
    monkeypatch.setattr(sys, "argv", ["sb3-per bench", "ops", *arguments])

    with pytest.raises(SystemExit, match=r"among \['SB3 uniform', .*, got 'SB3 unifrom'"):
        command.main()


@pytest.mark.slow
def test_memory_of_images_falls_to_an_eighth_where_each_frame_is_stored_once():
    pytest.importorskip("psutil")

    found = {one.buffer: one.bytes_per_transition for one in image_memory.measure(2000)}

    assert found["SB3"] == pytest.approx(2 * 84 * 84 * 4, rel=0.05)
    assert found["sb3-per"] == pytest.approx(2 * 84 * 84 * 4, rel=0.05)
    assert found["SB3, optimize_memory_usage"] < found["SB3"] / 1.9
    assert 84 * 84 < found["sb3-per, n_stack=4"] < 7600


def test_a_buffer_that_needs_more_memory_than_is_free_is_left_out_with_the_sizes(monkeypatch):
    psutil = pytest.importorskip("psutil")
    free = SimpleNamespace(available=1_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)

    found = image_memory._measure_one("SB3", 1_000_000)

    assert found.bytes_per_transition is None
    assert found.note == "needs 56 GB, 1 GB are free"
    assert "needs 56 GB" in image_memory.summary([found])


def test_without_psutil_memory_is_measured_without_images(monkeypatch, capsys):
    find = command.importlib.util.find_spec
    without = {"psutil": lambda _: None}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: without.get(name, find)(name))
    monkeypatch.setattr(image_memory, "measure", pytest.fail)
    arguments = ["--capacity", "64", "--steps", "10"]
    monkeypatch.setattr(sys, "argv", ["sb3-per bench", "memory", *arguments])

    command.main()

    printed = capsys.readouterr().out
    assert "proportional" in printed
    assert 'Images are left out without the package psutil: pip install "sb3-per[bench]"' in printed


def test_buffers_of_images_that_were_measured_are_drawn(tmp_path):
    found = [
        image_memory.Filled("SB3", 1000, 56_448.0),
        image_memory.Filled("cpprb", 1000, None, "is not installed"),
        image_memory.Filled("sb3-per, n_stack=4", 1000, 7200.0),
    ]

    image_memory.draw(found, tmp_path / "memory")

    text = (tmp_path / "memory.svg").read_text()
    assert (tmp_path / "memory.png").exists()
    assert "<!-- 56.4 -->" in text
    assert "<!-- 7.2 -->" in text
    assert "cpprb" not in text


def test_memory_shows_its_progress(capsys):
    slot_memory.measure("proportional", capacity=64, n_steps=10)

    assert "proportional:" in capsys.readouterr().err


def test_memory_tells_of_growth(monkeypatch):
    kilobytes = iter([10_000, 12_500])
    monkeypatch.setattr(slot_memory, "_resident_kilobytes", lambda: next(kilobytes))

    assert slot_memory.measure("rank", capacity=64, n_steps=10).grown_megabytes == 2.5


@pytest.mark.parametrize("n", [1, 8, 9, 30])
def test_no_colour_comes_twice_in_a_figure(n):
    assert len(set(distinct_colours(n))) == n
