"""``sb3-per cliffwalk``: what is run, kept and shown; and DQN against PERDQN on its memory."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
import torch as th
from filelock import FileLock

from sb3_per import PERDQN
from sb3_per.envs.blind_cliffwalk import BlindCliffwalk
from sb3_per.experiments.cliffwalk import command, measurements, methods, networks, overview, plot
from sb3_per.experiments.cliffwalk.trials import NAMES, Family, Trial, UpdatesNeeded
from sb3_per.experiments.cliffwalk.walk import stored_transitions, true_values


@pytest.fixture
def folder(tmp_path):
    """Two methods, two seeds: 10 and 20 updates, 5 and never."""
    outcomes = {"uniform": [(10, True), (20, True)], "oracle": [(5, True), (90, False)]}
    known = {
        Trial("tabular", method, 2, seed): UpdatesNeeded(*pairs[seed])
        for method, pairs in outcomes.items()
        for seed in (0, 1)
    }
    measurements.write(tmp_path, known)
    return tmp_path


def test_what_is_written_is_read_back(folder):
    known = measurements.read(folder)

    assert known[Trial("tabular", "oracle", 2, 1)] == UpdatesNeeded(90, False)
    assert len(known) == 4
    assert [path.name for path in folder.iterdir()] == [measurements.RESULTS]


def test_a_run_that_was_given_up_counts_as_infinitely_long(folder):
    spreads = measurements.spreads(measurements.read(folder))

    assert spreads["tabular", "uniform", 2] == (15.0, 10, 20, 2)
    assert spreads["tabular", "oracle", 2] == (np.inf, 5, np.inf, 2)
    assert "| unsolved |" in overview.table(spreads, "tabular")


def test_two_methods_are_shown_with_range_and_ratio(folder):
    known = measurements.read(folder) | {Trial("tabular", "oracle", 2, 1): UpdatesNeeded(7, True)}

    lines = overview.table(measurements.spreads(known), "tabular").splitlines()

    assert lines[0] == "Tabular Q, updates:"
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "n",
        "uniform",
        "oracle",
        "ratio",
    ]
    assert [cell.strip() for cell in lines[4].split("|")[1:-1]] == [
        "2",
        "15 (10 to 20)",
        "6 (5 to 7)",
        "2.50",
    ]


def test_what_has_fewer_seeds_than_the_rest_is_marked(folder):
    known = measurements.read(folder)
    del known[Trial("tabular", "oracle", 2, 1)]

    lines = overview.table(measurements.spreads(known), "tabular").splitlines()

    row = [cell.strip() for cell in lines[4].split("|")[1:-1]]
    assert row == ["2", "15 (10 to 20)", "5 (5 to 5)*", "3.00"]
    assert lines[-1] == "*: fewer than 2 seeds; summary.csv tells how many"


@pytest.mark.parametrize("given_up", [{"uniform"}, {"oracle"}, {"uniform", "oracle"}])
def test_of_runs_that_were_given_up_there_is_no_ratio(given_up):
    known = {
        Trial("tabular", method, 2, 0): UpdatesNeeded(9, method not in given_up)
        for method in ("uniform", "oracle")
    }

    last = overview.table(measurements.spreads(known), "tabular").splitlines()[-1]

    assert last.split("|")[-2].strip() == ""


@pytest.mark.parametrize("family", [methods.FAMILY, networks.FAMILY])
def test_tables_fit_into_a_terminal(family):
    known = {trial: UpdatesNeeded(2_500_000, True) for trial in family.trials()}

    for learner in family.learners:
        lines = overview.table(measurements.spreads(known), learner).splitlines()
        assert max(map(len, lines)) <= 80
        assert len(lines) == 4 + len(family.sizes)


def test_all_learners_and_methods_have_a_name_and_a_style():
    for family in (methods.FAMILY, networks.FAMILY):
        assert {*family.learners, *family.methods} <= set(NAMES)
        assert set(family.methods) <= set(plot.STYLES)


def test_the_figure_is_drawn_twice(folder):
    spreads = measurements.spreads(measurements.read(folder))

    assert str(folder) in plot.draw(spreads, folder)
    assert (folder / "cliffwalk.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "cliffwalk.svg").read_text()


def test_tick_labels_of_few_sizes_do_not_overlap(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, file: drawn.append(figure))
    outcomes = {Trial("tabular", "uniform", n, 0): UpdatesNeeded(9**n, True) for n in (4, 6, 8)}

    plot.draw(measurements.spreads(outcomes), tmp_path)

    drawn[0].draw_without_rendering()
    (panel,) = drawn[0].axes
    labels = [label for label in panel.get_xticklabels(which="both") if label.get_text()]
    places = sorted((extent.x0, extent.x1) for extent in map(_extent, labels))
    assert len(places) >= 3
    assert all(left[1] < right[0] for left, right in pairwise(places))


def _extent(label):
    return label.get_window_extent()


def test_without_matplotlib_the_install_that_brings_it_is_named(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    overview.show(folder)

    printed = capsys.readouterr().out
    assert "Tabular Q" in printed
    assert 'pip install ".[plots]"' in printed


def never(*trial):
    raise AssertionError(f"{trial} was run again")


def test_runs_that_are_known_are_not_made_again(folder):
    family = Family(("tabular",), ("uniform", "oracle"), (2,), 2, never)

    command.run(family, folder, 1)

    assert len(measurements.read(folder)) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learners", "linar"], "--learners must be of tabular linear, got linar"),
        (["--networks", "--methods", "uniform"], "--methods must be of DQN PERDQN recipe_1"),
        (["--n", "1"], "2"),
        (["--seeds", "0"], "2"),
        (["--jobs", "0"], "2"),
    ],
)
def test_a_wrong_argument_ends_the_command_before_anything_is_made(tmp_path, arguments, message):
    with pytest.raises(SystemExit, match=message):
        command.main([*arguments, "--out", str(tmp_path / "out")])

    assert not (tmp_path / "out").exists()


def test_networks_have_a_folder_of_their_own(tmp_path, monkeypatch):
    shown = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "run", lambda *_: None)
    monkeypatch.setattr(overview, "show", shown.append)

    command.main([])
    command.main(["--networks"])

    assert [folder.name for folder in shown] == ["cliffwalk", "cliffwalk_networks"]


def test_a_second_command_in_the_same_folder_is_refused(folder):
    with FileLock(folder / ".lock"), pytest.raises(SystemExit, match=r"another .* is running"):
        command.main(["--n", "2", "--out", str(folder)])


def start(folder, *arguments):
    words = [sys.executable, "-m", "sb3_per", "cliffwalk", *arguments, "--out", folder]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_command_leaves_whole_results_and_no_process_and_two_processes_finish_it(tmp_path):
    sizes = range(2, 8)
    many = ["--n", *map(str, sizes), "--seeds", "3", "--learners", "linear"]
    process = start(tmp_path, *many)
    while not (tmp_path / measurements.RESULTS).exists():
        time.sleep(0.05)
    workers = children_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()  # for the command alone: a worker that lives on would keep the pipe open
    process.stdout.close()
    kept = measurements.read(tmp_path)

    again = start(tmp_path, *many, "--jobs", "2")
    assert "Linear Q" in again.communicate()[0]

    assert again.returncode == 0
    assert workers
    assert not [worker for worker in workers if is_running(worker)]
    family = methods.FAMILY._replace(learners=("linear",), sizes=tuple(sizes), n_seeds=3)
    cells = [*family.trials()]
    assert 0 < len(kept) < len(cells)
    whole = measurements.read(tmp_path)
    assert kept.items() <= whole.items()
    # This process finds the same as one that was killed and two that went on.
    assert whole == {trial: family.run(*trial) for trial in cells}
    n_lines = (tmp_path / measurements.SUMMARY).read_text().count("\n")
    assert n_lines == 1 + len(sizes) * len(family.methods)


def children_of(pid):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], stdout=-1, check=True)
    return [int(line) for line in listed.stdout.split()]


def is_running(pid):
    return subprocess.run(["ps", "-p", str(pid)], stdout=subprocess.DEVNULL).returncode == 0


class Recorder(PERDQN):
    """Remembers, for each update, its number of steps, its progress and its beta."""

    seen = ()

    def train(self, gradient_steps, batch_size=100):
        super().train(gradient_steps, batch_size)
        targets = th.cat([values.flatten() for values in self.q_net_target.parameters()])
        seen = (self._n_calls, self._current_progress_remaining, self.replay_buffer.beta, targets)
        Recorder.seen = (*Recorder.seen, seen)


def test_networks_see_the_clock_and_the_target_network_of_a_run_of_learn(monkeypatch):
    monkeypatch.setattr(Recorder, "seen", ())
    monkeypatch.setitem(networks.METHODS, "PERDQN", networks.Method(Recorder, {}))
    monkeypatch.setattr(networks, "MOST_UPDATES", 200)
    monkeypatch.setattr(networks, "SOLVED", 0.0)
    env = BlindCliffwalk(3)

    outcome = networks.updates_needed("network_lr1e-3", "PERDQN", 3, 0)
    ours, Recorder.seen = Recorder.seen, ()
    model = Recorder("MlpPolicy", env, train_freq=1, learning_starts=0, target_update_interval=100)
    model.learn(200)

    assert outcome == (200, False)
    changes = [changed_targets(seen) for seen in (ours, Recorder.seen)]
    assert changes[0] == changes[1] == [100, 200]
    for mine, theirs in zip(ours, Recorder.seen, strict=True):
        assert mine[:3] == pytest.approx(theirs[:3])


def changed_targets(seen):
    """At which steps the target network was another one than a step before."""
    return [after[0] for before, after in pairwise(seen) if not th.equal(before[3], after[3])]


@pytest.mark.parametrize("method", networks.METHODS)
def test_a_network_learns_the_true_values_of_a_short_walk(method):
    updates, is_solved = networks.updates_needed("network_lr1e-3", method, 3, 0)

    assert is_solved
    assert updates % 10 == 0
    assert 0 < updates < 2000


def test_networks_learn_from_the_memory_and_start_alike():
    kinds = stored_transitions(4, np.random.default_rng(0))
    models = [networks._model(method, 4, 1e-3, seed=5) for method in networks.METHODS.values()]
    for model in models:
        networks._fill(model, kinds, BlindCliffwalk(4))

    for model in models:
        buffer = model.replay_buffer
        assert buffer.full
        states = buffer.observations[:, 0].argmax(axis=1)
        assert (2 * states + buffer.actions[:, 0, 0] == kinds).all()
        assert buffer.rewards.sum() == 1.0
        # An episode ends with a wrong action or behind the last state.
        ends = (buffer.actions[:, 0, 0] != states % 2) | (states == 3)
        assert (buffer.dones[:, 0] == ends).all()
        next_states = buffer.next_observations[:, 0].argmax(axis=1)
        assert (next_states[~ends] == states[~ends] + 1).all()
    first, *others = (model.q_net.state_dict() for model in models)
    assert all(th.equal(first[name], other[name]) for other in others for name in first)
    assert networks._error(models[0], 4) == pytest.approx(
        np.mean((models[1].q_net(th.eye(4)).detach().numpy() - true_values(4)) ** 2)
    )
