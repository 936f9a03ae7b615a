"""``sb3-per compare`` as people type it, trained for real: finished, broken, killed, resumed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import grids
import gymnasium as gym
import numpy as np
import pytest
import torch
from filelock import FileLock
from gymnasium.envs.registration import EnvSpec
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot, rc_context
from sb3_contrib import ARS
from stable_baselines3 import A2C, DQN, PPO

from sb3_per import cli
from sb3_per.experiments.common.devices import device_that_is_here
from sb3_per.experiments.compare import command, run_folder, suite_file, worker
from sb3_per.experiments.compare.environment import Evaluation
from sb3_per.experiments.compare.suite import Cell, Variant
from sb3_per.experiments.probes import overestimation

STEPS = [300, 600, 900, 1200]
PLOTTED = "CartPole-v1-PER_DQN-out/per: 1"
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has none
IN_PROC = pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")


@pytest.mark.parametrize("kind", [PPO, A2C, ARS], ids=lambda kind: kind.__name__)
def test_a_result_of_an_algorithm_without_replay_has_the_optimizer_if_there_is_one(kind):
    built = worker._built(kind("MlpPolicy", "CartPole-v1", device="cpu"))

    assert built["buffer"] == {}
    assert ("lr" in built["optimizer"]) == (kind is not ARS)


def start(folder, *arguments):
    """In a process group of its own, as a terminal would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "sb3_per", *map(str, arguments)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )


def heed_ctrl_c():
    """Whatever a shell starts in the background ignores it, and so does all that this starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def output_of(process, *, status=0):
    printed = process.communicate()[0]
    assert process.returncode == status, printed
    return printed


def smaller_classic(path, variants=("dqn", "per", "wrong")):
    """Variants of a suite of ours on CartPole, one seed; one of them cannot learn."""
    suite = suite_file.load("classic")
    short = grids.replaced(
        suite.environments["CartPole-v1"],
        steps=STEPS[-1],
        evaluation=Evaluation(every=STEPS[0], episodes=2),
    )
    # Its first batch is of more transitions than there are.
    too_early = {"learning_starts": 10, "replay_buffer_kwargs": {"replacement": False}}
    wrong = Variant(algorithm="per_dqn", overrides={**too_early, "batch_size": 1000})
    changes = {
        "seeds": 1,
        "environments": {"CartPole-v1": short},
        "variants": {name: (suite.variants | {"wrong": wrong})[name] for name in variants},
        "contrasts": {},
    }
    small = grids.replaced(suite, **changes)
    suite_file.save(small, path)
    return path.name


def run(folder, *options):
    return start(folder, "compare", "run", "small.yml", "--out", "out", *options)


def folder_of(folder, variant):
    algorithm = "dqn" if variant == "dqn" else "per_dqn"
    return folder / "out" / variant / algorithm / "CartPole-v1_1"


def result_of(folder, variant):
    return json.loads((folder_of(folder, variant) / "result.json").read_text())


def wait_for(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def workers_of(process):
    task = Path("/proc", str(process.pid), "task", str(process.pid), "children")
    children = [int(pid) for pid in task.read_text().split()]
    commands = [Path("/proc", str(pid), "cmdline").read_text() for pid in children]
    # multiprocessing has one more, which cleans up after the others.
    return [pid for pid, text in zip(children, commands, strict=True) if "spawn_main" in text]


def is_alive(pid):
    try:
        state = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def small(tmp_path):
    smaller_classic(tmp_path / "small.yml")
    return tmp_path


# One process of pytest-xdist makes the run of `ran`, and has all tests that look at it.
LOOKS_AT_THE_RUN = pytest.mark.xdist_group("ran")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A folder with a run of three cells, of which one fails, and what it printed."""
    folder = tmp_path_factory.mktemp("ran")
    smaller_classic(folder / "small.yml")
    return folder, output_of(run(folder, "--jobs", 2), status=1)


@pytest.mark.slow
@LOOKS_AT_THE_RUN
def test_a_failing_cell_is_told_with_its_traceback_and_the_others_finish(ran):
    folder, printed = ran

    assert "2 of 3 done, " in printed
    assert "Next: sb3-per compare report out\n" in printed
    assert "wrong, CartPole-v1, seed 0: exit status 1, all output in " in printed
    assert "Traceback (most recent call last)" in printed
    assert "needs at least 1000 transitions that can be sampled" in printed
    assert not (folder_of(folder, "wrong") / "result.json").exists()


@pytest.mark.slow
@LOOKS_AT_THE_RUN
def test_a_result_holds_returns_over_time_cost_versions_and_exact_hyperparameters(ran):
    folder, _ = ran
    result = result_of(folder, "per")

    assert result["evaluations"]["steps"] == STEPS
    assert np.shape(result["evaluations"]["returns"]) == (4, 2)
    assert result["evaluations"]["returns"] == result["evaluations"]["lengths"]  # CartPole's reward
    seconds = result["seconds"]
    assert 0 < seconds["wall_of_evaluations"] < seconds["wall"]
    assert result["steps"] == 1280  # whole rollouts of 256
    training = seconds["wall"] - seconds["wall_of_evaluations"]
    assert result["steps_per_second"] == pytest.approx(1280 / training)
    assert {"sb3-per", "stable-baselines3", "rl-zoo3", "torch"} <= set(result["versions"])
    used = suite_file.load("classic").environments["CartPole-v1"].hyperparameters
    assert result["settings"]["hyperparameters"] == used
    # Defaults, which no setting names: Adam's and the buffer's.
    assert result["built"]["optimizer"]["eps"] == 1e-8
    buffer = result["built"]["buffer"]
    assert (buffer["alpha"], buffer["weight_normalization"]) == (0.6, "batch")
    assert (buffer["prioritization"], buffer["stratified"]) == ("Proportional", True)
    assert result_of(folder, "dqn")["built"]["buffer"] == {}


@pytest.mark.slow
@LOOKS_AT_THE_RUN
def test_variants_start_from_equal_networks_and_are_evaluated_on_equal_episodes(ran):
    folder, _ = ran
    dqn, per = (result_of(folder, variant)["evaluations"]["returns"] for variant in ("dqn", "per"))

    # Learning starts after 1,000 steps, and the networks of the end know what was learned.
    assert dqn[:3] == per[:3]
    ends = [
        next((folder / "out" / variant).glob("*/*/CartPole-v1.zip")) for variant in ("dqn", "per")
    ]
    networks = [zipfile.ZipFile(end).read("policy.pth") for end in ends]
    assert networks[0] != networks[1]


@pytest.mark.slow
@LOOKS_AT_THE_RUN
def test_a_report_of_real_runs_says_what_is_missing(ran, capsys):
    folder, _ = ran

    cli.main(["compare", "report", str(folder / "out")])

    printed = capsys.readouterr().out
    assert "classic: 2 of 3 runs are finished." in printed
    assert "no claim can be made: fewer than 5 seeds" in printed
    text = (folder / "out" / "report" / "report.md").read_text()
    assert "- CartPole-v1, seeds: wrong 0" in text


@pytest.mark.slow
@LOOKS_AT_THE_RUN
@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("all_plots -print --no-display -a dqn per_dqn -e CartPole-v1 -f out/dqn out/per", PLOTTED),
        ("plot_train -a per_dqn -e CartPole-v1 -f out/per -w 2", ""),
    ],
)
def test_rl_zoos_plots_show_the_run_folder(ran, command, expected, monkeypatch, capsys):
    folder, _ = ran
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [])
    shown = []
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(pyplot.gcf()))

    with rc_context():  # seaborn sets a style
        cli.main(command.split())

    printed = "".join(capsys.readouterr())
    assert expected in printed
    assert "not found" not in printed
    assert "No data" not in printed
    for figure in shown:
        assert figure.axes[0].has_data()
    pyplot.close("all")


@pytest.mark.slow
@LOOKS_AT_THE_RUN
@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_enjoy_plays_an_agent_of_the_run_folder(ran, monkeypatch, capsys):
    folder, _ = ran
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [])
    agent = ("--algo", "per_dqn", "--env", "CartPole-v1", "-f", "out/per", "--exp-id", "1")

    cli.main(["enjoy", *agent, "--no-render", "-n", "300"])

    assert "Mean reward: " in capsys.readouterr().out


@pytest.mark.slow
@LOOKS_AT_THE_RUN
def test_the_table_has_predicted_q_values_next_to_the_returns_that_were_reached(ran, capsys):
    folder, _ = ran

    found = overestimation.main(folder / "out", "CartPole-v1")

    # A reward of 1 a step: the discounted return is (1 - gamma^return) / (1 - gamma).
    predicted, discounted, undiscounted = found["per"][0]
    assert [*found] == ["dqn", "per"]
    assert 0 < predicted < 100
    assert 8 <= undiscounted <= 500
    assert discounted <= (1 - 0.99**undiscounted) / (1 - 0.99)  # Jensen, over the episodes
    row = f"| per | 1 | {predicted:.1f} | {discounted:.1f} | {undiscounted:.1f} | {predicted:.1f} |"
    assert row in capsys.readouterr().out


def test_predicted_q_values_of_a_name_with_a_slash_and_with_a_limit_of_steps(tmp_path, monkeypatch):
    own = EnvSpec("own/CartPole-v1", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
    monkeypatch.setitem(gym.registry, own.id, own)
    model = DQN("MlpPolicy", own.id, buffer_size=1)
    with torch.no_grad():
        model.q_net.q_net[-1].weight.zero_()
        model.q_net.q_net[-1].bias.copy_(torch.tensor([3.0, 2.0]))
    run = tmp_path / "dqn" / "dqn" / "own-CartPole-v1_1"
    run.mkdir(parents=True)
    model.save(run / "own-CartPole-v1")

    found = overestimation.main(tmp_path, own.id, "5")

    # A pole that is always pushed to the left stands for eight steps or more.
    discounted = 1 + 0.99 + 0.99**2 + 0.99**3 + 0.99**4
    assert found["dqn"][0].tolist() == pytest.approx([3, discounted, 5])


def wait_for_a_policy_of(folder, variant):
    wait_for(lambda: (folder_of(folder, variant) / "evaluations.npz").exists())


@pytest.mark.slow
@LOOKS_AT_THE_RUN
@IN_PROC
def test_a_run_that_was_killed_trains_no_cell_on_and_ends_with_what_an_undisturbed_one_has(
    ran, tmp_path
):
    undisturbed, _ = ran
    smaller_classic(tmp_path / "small.yml", ("dqn", "per"))
    shutil.copytree(undisturbed / "out" / "dqn", tmp_path / "out" / "dqn")
    finished = folder_of(tmp_path, "dqn") / "result.json"
    before = finished.stat().st_mtime_ns
    process = run(tmp_path)
    wait_for_a_policy_of(tmp_path, "per")
    (worker_,) = workers_of(process)

    os.kill(process.pid, KILL)
    process.communicate()
    wait_for(lambda: not is_alive(worker_))
    assert not (folder_of(tmp_path, "per") / "result.json").exists()
    (folder_of(tmp_path, "per") / "left_behind.zip").touch()
    printed = output_of(run(tmp_path))

    assert "dqn, CartPole-v1" not in printed
    assert finished.stat().st_mtime_ns == before
    assert not (folder_of(tmp_path, "per") / "left_behind.zip").exists()
    again, expected = result_of(tmp_path, "per"), result_of(undisturbed, "per")
    assert again["evaluations"] == expected["evaluations"]
    assert again["settings"] == expected["settings"]


@pytest.mark.slow
@IN_PROC
def test_a_cell_leaves_ctrl_c_to_its_run_which_ends_the_cell(tmp_path):
    # A terminal tells the whole group, and RL-Zoo would save a half-trained model as a whole one.
    smaller_classic(tmp_path / "small.yml", ("dqn", "per"))
    process = run(tmp_path)
    wait_for_a_policy_of(tmp_path, "dqn")
    (first,) = workers_of(process)
    os.kill(first, signal.SIGINT)
    wait_for(lambda: (folder_of(tmp_path, "per") / "hyperparameters.yml").exists())
    (second,) = workers_of(process)

    os.kill(process.pid, signal.SIGINT)
    printed = process.communicate()[0]

    assert process.returncode != 0
    assert "dqn, CartPole-v1, seed 0: exit status" not in printed
    assert result_of(tmp_path, "dqn")["evaluations"]["steps"] == STEPS
    assert "the same command continues" in printed
    wait_for(lambda: not is_alive(second))
    assert not (folder_of(tmp_path, "per") / "result.json").exists()


@pytest.mark.slow
@IN_PROC
def test_no_cell_trains_on_when_its_run_was_told_to_end(small):
    process = run(small)
    wait_for(lambda: (folder_of(small, "dqn") / "hyperparameters.yml").exists())
    (worker_,) = workers_of(process)

    os.kill(process.pid, signal.SIGTERM)
    printed = process.communicate()[0]

    assert process.returncode != 0
    assert "the same command continues" not in printed
    wait_for(lambda: not is_alive(worker_))
    assert not (folder_of(small, "dqn") / "result.json").exists()


def cell(environment, **changes):
    settings = {
        "algorithm": "dqn",
        "seed": 3,
        "steps": 300,
        "evaluation": {"every": 100, "episodes": 2},
        "env_kwargs": {},
        "hyperparameters": {"policy": "MlpPolicy", "buffer_size": 100, "learning_starts": 200},
    }
    return Cell("dqn", environment, 3, settings | changes)


def test_evaluations_take_place_in_the_environment_that_was_declared(tmp_path):
    # RL-Zoo gives env_kwargs of its YAML files to the training alone.
    limited = cell("MountainCar-v0", env_kwargs={"max_episode_steps": 30})

    worker.train(limited, tmp_path, "cpu")

    result = run_folder.read(tmp_path, limited)
    assert result["evaluations"]["lengths"] == [[30, 30]] * 3
    assert result["evaluations"]["returns"] == [[-30.0, -30.0]] * 3


def test_a_result_does_not_depend_on_what_its_process_has_trained_before(tmp_path):
    learning = {"policy": "MlpPolicy", "buffer_size": 100, "learning_starts": 20}
    wanted = cell("CartPole-v1", algorithm="per_dqn", hyperparameters=learning)
    other = cell("MountainCar-v0", algorithm="per_dqn", seed=4, hyperparameters=learning)
    first, second = tmp_path / "first", tmp_path / "second"

    for folder, trained in ((first, wanted), (second, other), (second, wanted)):
        worker.train(trained, folder, "cpu")

    evaluations = [run_folder.read(folder, wanted)["evaluations"] for folder in (first, second)]
    assert evaluations[0] == evaluations[1]
    networks = [
        zipfile.ZipFile(run_folder.cell_folder(folder, wanted) / "CartPole-v1.zip")
        for folder in (first, second)
    ]
    assert networks[0].read("policy.pth") == networks[1].read("policy.pth")


def test_denormal_numbers_are_zeros_during_a_training_alone(tmp_path, monkeypatch):
    during, built = [], worker._built
    denormal = torch.tensor([1e-40, 1e-40])

    def spy(model):
        during.append((denormal * 1.0).tolist())
        return built(model)

    monkeypatch.setattr(worker, "_built", spy)
    worker.train(cell("CartPole-v1"), tmp_path, "cpu")

    assert during == [[0.0, 0.0]]
    assert (denormal * 1.0).tolist() == denormal.tolist() != during[0]


def test_a_training_that_ends_early_is_no_result(tmp_path):
    stop = {"stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes": {"max_episodes": 2}}
    hyperparameters = cell("CartPole-v1").settings["hyperparameters"] | {"callback": [stop]}
    stopped = cell("CartPole-v1", hyperparameters=hyperparameters)

    with pytest.raises(RuntimeError, match="the training must not end early, got"):
        worker.train(stopped, tmp_path, "cpu")
    assert run_folder.read(tmp_path, stopped) is None


@pytest.fixture
def broken_env(monkeypatch, tmp_path, own_registry):
    """An environment of a module of its own, whose rewards are no numbers."""
    (tmp_path / "one_of_mine.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n\n"
        "class Broken(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        observation, _, *rest = super().step(action)\n"
        "        return observation, float('nan'), *rest\n\n"
        "gym.register('mine/Broken-v0', entry_point=Broken, disable_env_checker=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "one_of_mine:mine/Broken-v0"


def test_returns_that_are_no_numbers_are_no_result(tmp_path, broken_env):
    broken = cell(broken_env, hyperparameters={"policy": "MlpPolicy", "learning_starts": 1000})

    with pytest.raises(RuntimeError, match="returns must be finite, got"):
        worker.train(broken, tmp_path / "out", "cpu")
    assert run_folder.read(tmp_path / "out", broken) is None
    assert (tmp_path / "out" / "dqn" / "dqn" / "mine-Broken-v0_4" / "evaluations.npz").is_file()


def test_a_folder_is_named_as_rl_zoo_names_it(tmp_path):
    game = cell("MinAtar/Breakout-v1")
    folder = run_folder.cell_folder(tmp_path, game)

    # Seed 3 is its run number 4.
    assert folder == tmp_path / "dqn" / "dqn" / f"{EnvironmentName(game.environment)}_4"


def answer_to(*arguments):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["compare", *map(str, arguments)])
    return str(exit_.value)


def test_an_unknown_suite_ends_the_command_with_the_known_ones(tmp_path):
    answer = answer_to("run", "clasic", "--out", tmp_path)

    assert answer.startswith("sb3-per compare: there is no suite 'clasic' (there are ablation, ")


def test_two_runs_cannot_work_in_one_folder(tmp_path):
    with FileLock(tmp_path / ".lock"):
        answer = answer_to("run", "smoke", "--out", tmp_path)

    assert answer == f"another sb3-per compare is running in {tmp_path}"


def test_a_changed_suite_ends_the_command_before_anything_is_written(small):
    suite = suite_file.load(str(small / "small.yml"))
    place = folder_of(small, "dqn")
    place.mkdir(parents=True)
    (place / "result.json").write_text(json.dumps({"format": 1, "settings": {"seed": 5}}))

    answer = answer_to("run", small / "small.yml", "--out", small / "out")

    assert "seed was 5 and is 0" in answer
    assert not (small / "out" / "suite.yml").exists()
    assert list(suite.variants) == ["dqn", "per", "wrong"]


def test_a_run_does_not_begin_where_a_cells_folder_holds_files_of_a_user(small):
    agent = folder_of(small, "per") / "CartPole-v1.zip"
    agent.parent.mkdir(parents=True)
    agent.write_text("of a user")

    answer = answer_to("run", small / "small.yml", "--out", small / "out")

    assert answer.startswith("sb3-per compare: a run removes what is in its own folder")
    assert answer.endswith(f"move these folders away: {agent.parent}")
    assert agent.read_text() == "of a user"
    assert not (small / "out" / "suite.yml").exists()


def test_who_goes_on_with_a_run_loses_none_of_its_seeds(small, monkeypatch, capsys):
    suite, asked = small / "small.yml", ["compare", "run", str(small / "small.yml"), "--out"]
    grid = []
    monkeypatch.setattr(command, "_train_here", lambda todo, *_: grid.append(todo) or [])

    for options in (["--seeds", "3"], [], ["--seeds", "2"]):
        cli.main([*asked, str(small / "out"), *options])
    suite_file.save(suite_file.load(str(suite)).model_copy(update={"seeds": 4}), suite)
    cli.main([*asked, str(small / "out")])

    assert [len(todo) for todo in grid] == [9, 9, 6, 12]  # three variants
    assert "9 of 9 runs are finished.\n" in capsys.readouterr().out
    assert suite_file.load(str(small / "out" / "suite.yml")).seeds == 4


def test_a_folder_is_of_one_suite_and_what_else_is_there_is_told(small, monkeypatch, capsys):
    asked = ["compare", "run", str(small / "small.yml"), "--out", str(small / "out"), "--seeds"]
    monkeypatch.setattr(command, "_train_here", lambda *_: [])
    cli.main([*asked, "1"])
    other = small / "out" / "per" / "per_dqn" / "CartPole-v1_2" / "result.json"
    other.parent.mkdir(parents=True)
    other.touch()
    before = (small / "out" / "suite.yml").read_bytes()

    cli.main([*asked, "1"])

    assert (
        "Results that do not belong to this grid (they are kept): 1.\n" in capsys.readouterr().out
    )
    answer = answer_to("run", "sparse", "--out", small / "out")
    assert answer.endswith("out is the run folder of 'classic', not of 'sparse'")
    assert (small / "out" / "suite.yml").read_bytes() == before


@pytest.mark.parametrize("device", ["cuda:99", "gpu0"])
def test_a_device_that_is_not_there_is_refused(capsys, device):
    answer_to("run", "smoke", "--device", device)

    assert f"got {device!r}" in capsys.readouterr().err


@pytest.mark.parametrize("there", ["cpu", "cuda"])
def test_the_device_may_be_left_to_sb3(monkeypatch, there):
    monkeypatch.setattr(
        "sb3_per.experiments.common.devices.get_device", lambda _: torch.device(there)
    )

    assert device_that_is_here("auto") == there


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
def test_a_number_that_makes_no_sense_is_refused(capsys, option):
    answer_to("run", "smoke", option, "0")

    assert "must be at least 1, got 0" in capsys.readouterr().err
