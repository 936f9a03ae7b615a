"""Comparisons on a Ray cluster: the same results as here, and what becomes of lost runs."""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import grids
import pytest
import ray_work

from sb3_per import cli
from sb3_per.experiments.bench import engines
from sb3_per.experiments.cliffwalk import command as cliffwalk
from sb3_per.experiments.cliffwalk import measurements, methods
from sb3_per.experiments.common import engine_options, ray_pool
from sb3_per.experiments.common.ray_connection import RayError, RayOptions, connected
from sb3_per.experiments.common.ray_pool import Lost, RayPool, Returned, Started, Waiting
from sb3_per.experiments.compare import command, run_folder, suite_file, worker
from sb3_per.experiments.compare.engine import EndedCell, LostCell, Remark, StartedCell, run
from sb3_per.experiments.compare.environment import Evaluation
from sb3_per.experiments.compare.local import LocalEngine
from sb3_per.experiments.compare.ray_engine import RayEngine, train_away
from sb3_per.experiments.compare.suite import cells

SUPPORT = str(Path(ray_work.__file__).parent)
GRID = cells(grids.suite(variants=("dqn",), seeds=3))
# All on one core: they share a cluster, which takes seconds to start.
pytestmark = pytest.mark.xdist_group("ray")
with_ray = pytest.mark.skipif(not find_spec("ray"), reason="needs the extra ray")


class Events(list):
    """In place of a display."""

    show = list.append

    def of(self, kind):
        return [event for event in self if isinstance(event, kind)]


def asked(*arguments):
    parser = argparse.ArgumentParser()
    engine_options.add_engine_options(parser)
    return engine_options.ray_options(parser.parse_args(arguments))


def test_the_local_engine_is_the_default_and_takes_no_options_of_rays():
    assert asked() is None
    with pytest.raises(SystemExit, match=r"^--retries must be used with --engine ray"):
        asked("--retries", "1")


@with_ray
def test_options_reach_ray():
    assert asked("--engine", "ray") == RayOptions(None, 1, 0, 3)
    given = ("--address", "auto", "--cpus-per-run", "0.5", "--gpus-per-run", "2", "--retries", "0")
    assert asked("--engine", "ray", *given) == RayOptions("auto", 0.5, 2, 0)


@pytest.mark.parametrize(
    ("option", "value"),
    [("cpus", "0"), ("cpus", "inf"), ("gpus", "-1"), ("gpus", "1.5"), ("gpus", "many")],
)
def test_amounts_that_ray_does_not_take_are_refused(capsys, option, value):
    with pytest.raises(SystemExit):
        asked("--engine", "ray", f"--{option}-per-run", value)
    assert f"whole if above 1, got {value!r}" in capsys.readouterr().err


def test_without_ray_the_command_says_what_brings_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as error:
        asked("--engine", "ray")
    assert str(error.value) == f"--engine ray needs the package ray: {cli.install('ray')}"


@with_ray
def test_a_driver_outside_of_the_cluster_is_refused():
    with pytest.raises(SystemExit, match=r"got 'ray://head:10001'\. Run the command on a node"):
        asked("--engine", "ray", "--address", "ray://head:10001")


@with_ray
@pytest.mark.parametrize(
    ("told", "n_starts", "advice"),
    [
        ("The current node timed out during startup.", 3, " End other programs on this machine"),
        ("Invalid address", 1, "$"),
    ],
)
def test_a_start_of_ray_that_is_too_slow_is_tried_again(monkeypatch, told, n_starts, advice):
    starts = []

    def start(**options):
        starts.append(options)
        raise Exception(told)

    monkeypatch.setattr("ray.init", start)
    with (
        pytest.raises(RayError, match=rf"^Ray could not be started or joined: {told}{advice}"),
        connected(RayOptions()),
    ):
        pass
    assert len(starts) == n_starts


class StuckRay:
    """Replaces Ray's module: no call ever ends, and the cluster has the given nodes."""

    def __init__(self, *nodes):
        self.nodes = lambda: [*nodes]

    def remote(self, function):
        return self

    def options(self, **_):
        return SimpleNamespace(remote=lambda payload: payload)

    def wait(self, calls, **_):
        return [], calls


def node_with(cpus, *, name="1", is_alive=True):
    return {"NodeID": name, "Alive": is_alive, "Resources": {"CPU": cpus}}


def stuck_pool(monkeypatch, ray, *, address="auto"):
    monkeypatch.setitem(sys.modules, "ray", ray)
    pool = RayPool(print, RayOptions(address, cpus=2))
    pool.submit("call")
    return pool


@pytest.mark.parametrize("nodes", [[], [node_with(1)], [node_with(2, is_alive=False)]])
def test_calls_that_no_node_can_take_wait_for_one_and_the_user_knows_of_it(monkeypatch, nodes):
    pool = stuck_pool(monkeypatch, StuckRay(*nodes))

    reason = "no node has 2 CPUs and 0 GPUs, which a run needs; Ray waits for one"
    assert pool.collect() == Waiting(reason)


def test_calls_that_this_machine_cannot_take_are_an_error(monkeypatch):
    pool = stuck_pool(monkeypatch, StuckRay(node_with(1)), address=None)

    with pytest.raises(RayError, match=r"^no node has 2 CPUs and 0 GPUs, which a run needs$"):
        pool.collect()


@with_ray
def test_a_device_that_ray_would_hide_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["compare", "run", "smoke", "--engine", "ray", "--device", "cuda"]
    )
    with pytest.raises(SystemExit):
        command.main()
    assert "--device cuda needs --gpus-per-run above 0" in capsys.readouterr().err


def test_what_was_trained_elsewhere_comes_back_whole(tmp_path):
    trained = train_away(GRID[1], "cpu", ray_work.write_a_result)

    run_folder.put(tmp_path, GRID[1], trained.files)

    assert trained.error is None
    assert run_folder.read(tmp_path, GRID[1])["settings"] == GRID[1].settings
    place = run_folder.cell_folder(tmp_path, GRID[1])
    assert sorted(path.name for path in place.iterdir()) == sorted(trained.files)
    assert (place / "output.txt").read_text() == "seed 1\n"


def test_a_training_that_raises_brings_its_output_and_its_traceback(capfd):
    trained = train_away(GRID[1], "cpu", ray_work.break_at_seed_1)

    assert trained.error.startswith("Traceback (most recent call last)")
    assert trained.error.endswith("MemoryError: unable to allocate 9 TiB")
    output = trained.files["output.txt"].decode()
    assert "seed 1\n" in output
    assert "from below Python\n" in output
    assert output.endswith(trained.error)
    print("here again")  # noqa: T201
    assert capfd.readouterr().out == "here again\n"


def test_files_of_an_earlier_try_do_not_stay(tmp_path):
    run_folder.put(tmp_path, GRID[0], {"result.json": b"[]", "old.zip": b""})

    run_folder.put(tmp_path, GRID[0], {"deep/new.zip": b"1"})

    place = run_folder.cell_folder(tmp_path, GRID[0])
    assert run_folder.taken(place).keys() == {".sb3-per-cell", "deep/new.zip"}


def test_files_of_a_user_stay(tmp_path):
    agent = run_folder.cell_folder(tmp_path, GRID[0]) / "agent.zip"
    agent.parent.mkdir(parents=True)
    agent.write_text("of a user")

    with pytest.raises(FileExistsError, match="must be empty or marked by"):
        run_folder.put(tmp_path, GRID[0], {"agent.zip": b""})
    assert agent.read_text() == "of a user"


def test_a_result_is_the_last_file_to_come(tmp_path, monkeypatch):
    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        run_folder.put(tmp_path, GRID[0], {"result.json": b"[]", "z.zip": b"1"})
    assert not (run_folder.cell_folder(tmp_path, GRID[0]) / "result.json").exists()


def test_the_grid_that_is_timed_has_as_many_short_runs_as_asked_for():
    grid = engines.short_runs(64)

    assert {cell.seed for cell in grid} == set(range(64))
    assert {cell.settings["steps"] for cell in grid} == {engines.STEPS}


def test_wall_times_are_tabulated_and_drawn(tmp_path):
    grids = [engines.Grid(name, n, 64, 640 / n) for name in ("local", "ray") for n in (1, 2)]

    table = engines.summary(engines.Empty(300, 2.0, 900.0, 9.17, 3.8), grids)

    assert "the median of 300 further ones |  9.2 |" in table
    assert [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]] == [
        "ray", "2", "64", "320", "5.00",
    ]  # fmt: skip
    assert str(tmp_path) in engines.draw(grids, tmp_path / "engines")
    assert "<svg" in (tmp_path / "engines.svg").read_text()


@pytest.fixture(scope="module")
def cluster():
    """A head node with one CPU; ``add_node`` adds others."""
    if not find_spec("ray"):
        pytest.skip("needs the extra ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # or Ray writes a token into the home folder
        patch.setenv("PYTHONPATH", SUPPORT)
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        started = first_success(start_cluster)
        yield started
        started.shutdown()


def start_cluster():
    from ray.cluster_utils import Cluster  # it reads the variables that were set for it

    # A dead process refuses its health check at once, a slow one has ten seconds for it.
    soon = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
    return Cluster(initialize_head=True, head_node_args=node_of(1, _system_config=soon))


def first_success(function):
    """Ray gives up after 30 seconds where other programs keep it from starting."""
    for _ in range(2):
        try:
            return function()
        except Exception:  # a bare one is what Ray raises
            continue
    return function()


@pytest.fixture(scope="module")
def connection(cluster):
    """One for all tests, so that what its processes have imported is imported once."""
    with connected(RayOptions(cluster.address)) as dashboard:
        assert not dashboard
        yield


def node_of(n_cpus, **more):
    """
    A node's settings.

    Its processes have ports of their own, which no other Ray on this machine uses. A node that has
    to wait for its agents' choice of ports ends after 15 seconds, which they may need where other
    programs run (ray-project/ray#65983).
    """
    return {
        "num_cpus": n_cpus,
        "include_dashboard": False,
        "object_store_memory": 80 * 2**20,  # about the least that Ray takes
        **dict(zip(PORTS, free_ports(len(PORTS)), strict=True)),
        **more,
    }


PORTS = (
    "dashboard_agent_listen_port",
    "dashboard_port",
    "metrics_agent_port",
    "metrics_export_port",
    "runtime_env_agent_port",
)


def free_ports(n_ports):
    """Below the range that systems choose from for Ray's other processes."""
    found = set()
    while len(found) < n_ports:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            found.add(port)
    return found


def ran(folder, grid, work, *, device="cpu", retries=3, jobs=100, events=None):
    """Run a grid on the cluster that is connected; return its events."""
    events = Events() if events is None else events
    run(grid, RayEngine(folder, device, RayOptions(retries=retries), work), jobs, events)
    return events


def finished(folder):
    return [cell.seed for cell in GRID if run_folder.read(folder, cell) is not None]


@pytest.mark.slow
@pytest.mark.cluster
def test_results_on_ray_are_those_of_the_local_engine_bit_by_bit(connection, tmp_path):
    suite = suite_file.load("smoke")
    name, environment = next(iter(suite.environments.items()))
    short = {"steps": 300, "evaluation": Evaluation(every=100, episodes=2)}
    suite = grids.replaced(suite, seeds=1, environments={name: environment})
    grid = cells(grids.changed(suite, name, **short))
    here, there = tmp_path / "here", tmp_path / "there"
    for cell in grid:
        worker.train(cell, here, "cpu")

    events = ran(there, grid, worker.train)

    assert [ended.error for ended in events.of(EndedCell)] == [None] * len(grid)
    for cell in grid:
        pair = [run_folder.read(folder, cell) for folder in (here, there)]
        for result in pair:
            for key in ("seconds", "steps_per_second", "steps_per_cpu_second"):
                del result[key]
        assert json.dumps(pair[0]) == json.dumps(pair[1])
        files = [run_folder.taken(run_folder.cell_folder(folder, cell)) for folder in (here, there)]
        assert {*files[0], "output.txt"} == {*files[1]}


@pytest.mark.slow
@pytest.mark.cluster
def test_a_run_that_raises_fails_alone_with_the_end_of_its_log(connection, tmp_path):
    events = ran(tmp_path, GRID, ray_work.break_at_seed_1)

    (failed,) = [ended for ended in events.of(EndedCell) if ended.error is not None]
    output = run_folder.cell_folder(tmp_path, GRID[1]) / "output.txt"
    assert failed.cell == GRID[1]
    assert failed.error.startswith(f"all output in {output}\nTraceback")
    assert failed.error.endswith("MemoryError: unable to allocate 9 TiB")
    assert output.read_text().startswith("seed 1\n")
    assert {event.cell.seed for event in events.of(StartedCell)} == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.cluster
def test_a_run_whose_process_is_killed_is_tried_again(connection, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()

    events = ran(tmp_path / "out", GRID[:1], ray_work.die_once, device=str(notes))

    assert finished(tmp_path / "out") == [0]
    (lost,) = events.of(LostCell)
    assert lost.cell == GRID[0]
    assert lost.reason.startswith("WorkerCrashedError: ")
    assert lost.reason.endswith("; try 2 of 4")


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("name", ["ObjectStoreFullError", "OutOfMemoryError"])
def test_a_call_that_ray_has_no_room_for_is_tried_again(connection, tmp_path, name):
    from ray import exceptions

    pool = RayPool(ray_work.raise_once, RayOptions())
    pool.submit("call", getattr(exceptions, name)("out of memory"), tmp_path / "note")

    events = [pool.collect() for _ in range(4)]
    assert [type(event) for event in events] == [Started, Lost, Started, Returned]
    assert events[1].reason.startswith(f"{name}: ")
    assert events[1].reason.endswith("; try 2 of 4")
    assert events[3].value == "second try"


@pytest.mark.slow
@pytest.mark.cluster
def test_a_run_that_is_lost_too_often_has_failed_and_the_others_finish(connection, tmp_path):
    events = ran(tmp_path, GRID, ray_work.die_at_seed_1, retries=1)

    (failed,) = [ended for ended in events.of(EndedCell) if ended.error is not None]
    assert failed.cell == GRID[1]
    assert failed.error.startswith("lost 2 times, --retries is 1; at last: WorkerCrashedError")
    assert finished(tmp_path) == [0, 2]


@pytest.mark.slow
@pytest.mark.cluster
def test_runs_that_fill_the_object_store_finish(connection, tmp_path):
    events = ran(tmp_path, GRID[:2], ray_work.leave_100_megabytes)

    assert [ended.error for ended in events.of(EndedCell)] == [None, None]
    agent = run_folder.cell_folder(tmp_path, GRID[0]) / "agent.zip"
    assert agent.stat().st_size == 100 * 2**20


class Watch(Events):
    """Calls a function once, when all of some runs wait for a file."""

    def __init__(self, notes, n_waiting, then):
        self.notes, self.n_waiting, self.then = notes, n_waiting, then
        super().__init__()

    def show(self, event):
        self.append(event)
        if len(self.of(StartedCell)) == self.n_waiting and self.then is not None:
            wait_for(lambda: len([*self.notes.glob("* waits")]) == self.n_waiting)
            then, self.then = self.then, None
            then()


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.cluster
def test_runs_of_a_node_that_is_removed_are_made_on_another_one(cluster, connection, tmp_path):
    def remove():
        """As if the machine were off: a run would outlive its node for a second, and might end."""
        notes = dict(note.read_text().split() for note in tmp_path.glob("* waits"))
        cluster.remove_node(node, allow_graceful=False)
        with suppress(ProcessLookupError):
            os.kill(int(notes[node.node_id]), signal.SIGKILL)
        (tmp_path / "go on").touch()

    node = cluster.add_node(**node_of(1))
    events = Watch(tmp_path, 2, remove)
    out, work = tmp_path / "out", ray_work.wait_for_a_file
    ran(out, GRID, work, device=str(tmp_path), jobs=2, events=events)

    assert finished(tmp_path / "out") == [0, 1, 2]
    assert len(events.of(LostCell)) == 1


@pytest.mark.slow
@pytest.mark.cluster
def test_runs_that_a_node_ends_because_memory_is_short_are_made_on_another_one(
    cluster, connection, tmp_path
):
    """A node whose limit is 1 % of the memory: more is in use, so Ray's monitor ends each run."""
    env_vars = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "50"}
    node = cluster.add_node(**node_of(1, env_vars=env_vars))

    def remove():
        cluster.remove_node(node)
        (tmp_path / "go on").touch()

    events = AtFirst(LostCell, remove)
    out, work = tmp_path / "out", ray_work.wait_for_a_file
    ran(out, GRID, work, device=str(tmp_path), jobs=2, retries=100, events=events)

    assert finished(out) == [0, 1, 2]
    assert "OutOfMemoryError" in events.of(LostCell)[0].reason


class AtFirst(Events):
    """Calls a function once, at the first event of a kind."""

    def __init__(self, kind, then):
        self.kind, self.then = kind, then
        super().__init__()

    def show(self, event):
        self.append(event)
        if isinstance(event, self.kind) and self.then is not None:
            then, self.then = self.then, None
            then()


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("first", ["local", "ray"])
def test_each_engine_goes_on_with_a_folder_that_the_other_one_has_begun(
    connection, tmp_path, first
):
    engines = {
        "local": LocalEngine(tmp_path, "cpu", ray_work.write_a_result),
        "ray": RayEngine(tmp_path, "cpu", RayOptions(), ray_work.write_a_result),
    }
    run(GRID[1:2], engines.pop(first), 1, Events())
    before = [*tmp_path.rglob("result.json")]
    written = before[0].stat().st_mtime_ns

    events = Events()
    (second,) = engines.values()
    run(run_folder.unfinished(tmp_path, GRID), second, 2, events)

    assert [event.cell.seed for event in events.of(StartedCell)] == [0, 2]
    assert finished(tmp_path) == [0, 1, 2]
    assert before[0].stat().st_mtime_ns == written


@pytest.mark.slow
@pytest.mark.cluster
def test_a_node_with_another_version_is_refused_and_both_are_named(cluster, connection, tmp_path):
    other = tmp_path / "torch-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    path = os.pathsep.join([str(tmp_path), SUPPORT])
    node = cluster.add_node(**node_of(2, env_vars={"PYTHONPATH": path}))
    # The other node has time until then: no run ends before the refusal.
    events = AtFirst(Remark, (tmp_path / "go on").touch)
    try:
        ran(tmp_path / "out", GRID, ray_work.wait_for_a_file, device=str(tmp_path), events=events)
    finally:
        cluster.remove_node(node)

    import torch

    (remark,) = events.of(Remark)
    assert " is refused: torch is 1.0 there and " in remark.text
    assert f"{torch.__version__} here. Install the same version on all nodes" in remark.text
    assert finished(tmp_path / "out") == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.cluster
def test_a_cluster_without_the_drivers_versions_is_refused(connection, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_pool, "_versions", lambda: {"sb3-per": "99.0"})
    with pytest.raises(RayError, match=r"no node .* can be used; .*sb3-per is .* and 99\.0 here"):
        ran(tmp_path, GRID, ray_work.write_a_result)
    assert finished(tmp_path) == []


@pytest.mark.slow
@pytest.mark.cluster
def test_runs_whose_last_node_disappears_after_the_others_were_refused_are_an_error(
    cluster, connection, tmp_path, monkeypatch
):
    node = cluster.add_node(**node_of(1))
    cluster.remove_node(node, allow_graceful=False)  # Ray does not know yet that it is gone
    monkeypatch.setattr(ray_pool, "SILENCE_S", 1)
    monkeypatch.setattr(ray_pool, "_versions", lambda: {"sb3-per": "99.0"})
    with pytest.raises(RayError, match="no node of the cluster can be used"):
        ran(tmp_path, GRID, ray_work.write_a_result)


@pytest.mark.slow
@pytest.mark.cluster
def test_cliffwalk_on_ray_has_the_outcomes_of_cliffwalk_here(connection, tmp_path, monkeypatch):
    part = {"learners": ["tabular"], "methods": ["uniform", "oracle"], "sizes": [2], "n_seeds": 2}
    family = methods.FAMILY._replace(**part)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    cliffwalk.run(family, here, 1)
    cliffwalk.run(family._replace(n_seeds=1), there, 1)  # begun here, and ended there

    monkeypatch.setattr(cliffwalk, "connected", lambda options: nullcontext(""))
    cliffwalk.run(family, there, None, RayOptions())

    assert len(measurements.read(there)) == 4
    assert measurements.read(there) == measurements.read(here)


def started_driver(out, notes):
    """Start a process that makes the runs of a grid one after the other; it waits at seed 1."""
    driver = subprocess.Popen(
        [sys.executable, str(Path(SUPPORT, "ray_driver.py")), str(out), str(notes)],
        env=os.environ
        | {
            "PYTHONPATH": SUPPORT,
            "RAY_AUTH_MODE": "disabled",
            # How long Ray's agents look for a killed Ray before they end. In some runs they still
            # take their default of a minute.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "3",
            "SB3_PER_TEST": str(notes),
        },
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    if driver.stdout.readline() == "":
        driver.communicate()
        raise RuntimeError("Ray did not start")
    return driver


def left_over(marker):
    """The processes that inherited a variable from a driver."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker in path.read_bytes():
                state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
                found += [] if state == "Z" else [path.with_name("cmdline").read_text()]
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_a_driver_that_is_killed_leaves_no_process_and_a_second_one_makes_only_the_rest(tmp_path):
    pytest.importorskip("ray")
    marker = f"SB3_PER_TEST={tmp_path}".encode()
    driver = first_success(lambda: started_driver(tmp_path / "out", tmp_path))
    wait_for(lambda: (tmp_path / "1 waits").exists())
    assert len(left_over(marker)) > 3

    driver.kill()
    driver.communicate()
    wait_for(lambda: not left_over(marker), seconds=120)

    assert finished(tmp_path / "out") == [0]
    (tmp_path / "go on").touch()
    second = first_success(lambda: started_driver(tmp_path / "out", tmp_path))
    events = second.communicate()[0].splitlines()
    # The first line, which says that the run of seed 1 has started, is read already.
    assert events == ["EndedCell 1", "StartedCell 2", "EndedCell 2"]
    assert finished(tmp_path / "out") == [0, 1, 2]
    wait_for(lambda: not left_over(marker), seconds=120)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_an_interrupt_from_the_keyboard_keeps_what_is_finished_and_leaves_no_process(tmp_path):
    pytest.importorskip("ray")
    marker = f"SB3_PER_TEST={tmp_path}".encode()
    driver = first_success(lambda: started_driver(tmp_path / "out", tmp_path))
    wait_for(lambda: (tmp_path / "1 waits").exists())

    os.killpg(driver.pid, signal.SIGINT)  # a terminal sends it to the whole group

    driver.communicate()
    wait_for(lambda: not left_over(marker), seconds=120)
    assert driver.returncode == -signal.SIGINT
    assert finished(tmp_path / "out") == [0]
