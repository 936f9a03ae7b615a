"""``python -m sb3_per``, as people type it, outside of the checkout."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import yaml
from processes import wait_until
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PERSAC, cli, experiment, latest_checkpoint, load_checkpoint, zoo

TRAINED = ("--algo", "per_dqn", "--env", "CartPole-v1", "--device", "cpu")
RUN = Path("logs", "per_dqn", "CartPole-v1_1")


def start(folder, *arguments):
    command = [sys.executable, "-m", "sb3_per", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def output_of(process):
    printed = process.communicate()[0]
    assert process.returncode == 0, printed
    return printed


@pytest.fixture
def run_here(monkeypatch):
    """Run a command in this process, which has imported RL-Zoo already."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    return lambda *arguments: cli.main([*map(str, arguments)])


def used_configuration(run):
    return yaml.load((run / "CartPole-v1" / "config.yml").read_text(), yaml.UnsafeLoader)


# One process of pytest-xdist trains the agent of `trained`, and has all tests that look at it.
LOOKS_AT_THE_AGENT = pytest.mark.xdist_group("trained")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of 1500 steps, evaluated twice, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    options = ("--eval-freq", 700, "--eval-episodes", 2, "--save-replay-buffer", "-P")
    return folder, output_of(start(folder, "train", *TRAINED, "-n", 1500, *options))


def test_help_lists_every_command_in_80_columns(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    entries = [line.split(maxsplit=1) for line in lines]
    assert all([name, command.help] in entries for name, command in cli.COMMANDS.items())


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [("enjoy", "rl_zoo3", "zoo"), ("all_plots", "seaborn", "plots")],
)
def test_missing_package_is_named_with_its_extra(command, missing, extra, monkeypatch):
    find = cli.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda n: None if n == missing else find(n))

    with pytest.raises(SystemExit, match=rf"package {missing}: .*sb3-per\[{extra}\]"):
        cli.main([command])


def test_train_reads_our_file_unless_the_user_names_one(monkeypatch, run_here):
    read = []
    monkeypatch.setattr("rl_zoo3.train.train", lambda: read.append(sys.argv[1:]))
    ours = ["-conf", str(zoo.config_file("per_dqn"))]

    for algorithm in (["--algo", "per_dqn"], ["--algo=per_dqn"], ["--al=per_dqn"]):
        run_here("train", *algorithm, "-conf", "mine.yml")  # argparse takes the last one
        assert read.pop() == [*ours, *algorithm, "-conf", "mine.yml"]
    for theirs in (["--algo", "dqn"], []):
        run_here("train", *theirs)
        assert read.pop() == theirs


@pytest.mark.parametrize("options", [[], ["--storage", "a.log", "--study-name", "a"]])
def test_trial_that_rl_zoo_would_ignore_is_refused(options, run_here):
    number = 0 if options else 3

    with pytest.raises(SystemExit, match="needs --storage, --study-name and a trial other than 0"):
        run_here("train", "--algo", "per_dqn", "--trial-id", number, *options)


def test_script_that_cannot_be_imported_says_why(run_here, tmp_path, monkeypatch):
    (tmp_path / "broken_script.py").write_text("from json import no_such_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "push_to_hub", cli.Command("", "broken_script"))

    with pytest.raises(SystemExit, match=r"^sb3-per push_to_hub does not work .* 'no_such_name'"):
        run_here("push_to_hub", "--help")


def test_configs_prints_the_folder_of_our_files(capsys, run_here):
    run_here("configs")

    folder = Path(capsys.readouterr().out.strip())
    assert {"per_dqn.yml", "per_dqn_rank.yml"} <= {path.name for path in folder.iterdir()}


MODULE = """
import gymnasium
gymnasium.register("MyPole-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=9)
"""


def test_gym_packages_finds_a_module_in_the_current_folder(
    tmp_path, monkeypatch, run_here, own_registry
):
    (tmp_path / "module_with_my_pole.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", ".")])

    options = ("--gym-packages", "module_with_my_pole", "-n", 20, "--eval-freq", -1)
    run_here("train", "--algo", "per_dqn", "--env", "MyPole-v0", *options, "--device", "cpu")

    assert (tmp_path / "logs" / "per_dqn" / "MyPole-v0_1" / "MyPole-v0.zip").exists()


@pytest.mark.slow
@LOOKS_AT_THE_AGENT
def test_train_fills_a_run_folder(trained):
    folder, printed = trained

    ours = yaml.safe_load(zoo.config_file("per_dqn").read_text())["CartPole-v1"]
    assert dict(used_configuration(folder / RUN)) == ours
    assert "effective_sample_size" in printed
    for name in ("CartPole-v1.zip", "best_model.zip", "replay_buffer.pkl", "CartPole-v1/args.yml"):
        assert (folder / RUN / name).stat().st_size > 0
    assert np.load(folder / RUN / "evaluations.npz")["results"].shape == (2, 2)


@pytest.mark.slow
@LOOKS_AT_THE_AGENT
@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_best_model_continues_with_options_of_the_command_line(
    trained, monkeypatch, run_here, capsys
):
    monkeypatch.chdir(trained[0])
    options = ("-params", "learning_starts:0", "replay_buffer_kwargs:dict(beta=0.7)")

    run = ("-n", 600, "--eval-freq", -1, "-i", RUN / "best_model.zip")
    run_here("train", *TRAINED, *run, *options)

    assert "Loading pretrained agent\nLoading replay buffer" in capsys.readouterr().out
    kept = used_configuration(RUN.with_name("CartPole-v1_2"))
    assert kept["replay_buffer_kwargs"] == {"beta": 0.7}


def press_ctrl_c(*_, **__):
    raise KeyboardInterrupt


RUN_OF_2000 = ("-n", 2000, "--save-freq", 300, "--eval-freq", 350, "-f", "logs")
# RL-Zoo adds gamma to the dict of `normalize`.
OPTIONS = ("normalize:dict(norm_reward=False)", "n_envs:2", "train_freq:4", "learning_starts:100")


@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_training_is_resumed(signal_number, tmp_path, monkeypatch, run_here, capsys):
    command = ("train", *TRAINED, *RUN_OF_2000, "--seed", 3)
    folder = tmp_path / RUN
    with start(tmp_path, *command, "-params", *OPTIONS, "gamma:0.5") as stopped:
        wait_until(lambda: len([*folder.glob("*.ckpt")]) == 2 or stopped.poll() is not None)
        stopped.send_signal(signal_number)
        printed = stopped.communicate()[0]
    latest = latest_checkpoint(folder)
    resumed_from = int(latest.name.split("_")[2])
    assert 600 <= resumed_from < 2000
    if signal_number == signal.SIGTERM:
        assert stopped.returncode == 143
        assert f"Stopped after {resumed_from} steps: --resume continues" in printed
    config = (folder / "CartPole-v1" / "config.yml").read_text()
    (folder / "CartPole-v1" / "args.yml").write_text("")  # as after a power cut
    os.utime(latest, (0, 0))  # as if copied first
    shutil.copytree(folder, f"{folder}_backup")
    logs = {log.name: log.read_text() for log in folder.glob("*.monitor.csv")}

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="a search goes on with the same --storage"):
        run_here(*command, "--resume", "-optimize")
    run_here(*command, "--eval-episodes", 3, "--resume")

    printed = capsys.readouterr().out
    assert f"Resuming from {RUN}/rl_model_{resumed_from}_steps" in printed
    assert f"{resumed_from} steps are done, {2000 - resumed_from} are left" in printed
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}_backup"}
    env = VecNormalize(make_vec_env("CartPole-v1", 2))
    model = load_checkpoint(latest_checkpoint(folder), env)
    assert model._total_timesteps == 2000
    assert 2000 <= model.num_timesteps < 2008  # rollouts of 8 steps, from any step
    assert model.num_timesteps - len(model.replay_buffer) in (0, 2)  # an interrupted step
    assert (model.seed, model.gamma) == (3, 0.5)
    assert (folder / "CartPole-v1" / "config.yml").read_text() == config
    assert env.obs_rms.count > 2000
    evaluations = np.load(folder / "evaluations.npz")
    evaluated = evaluations["timesteps"].tolist()
    # The signal may come during an evaluation, which is then lost.
    lost = [resumed_from] if resumed_from not in evaluated else []
    assert evaluated == [step for step in (350, 700, 1050, 1400, 1750) if step not in lost]
    assert evaluations["results"].shape == (len(evaluated), 5)
    assert {*logs} == {"0.monitor.csv", "1.monitor.csv"}
    for name, before in logs.items():
        assert (folder / name).read_text().startswith(before)
    lines = "".join(logs.values()).splitlines()
    earlier = sorted(line for line in lines if line[0].isdigit())
    episodes = load_results(str(folder))
    assert 0 < len(earlier) < len(episodes)
    lengths = episodes["l"][: len(earlier)]  # the earlier ones come first
    assert sorted(lengths) == sorted(int(line.split(",")[1]) for line in earlier)
    assert len([*folder.glob("*.ckpt")]) == 2
    assert len([*folder.glob("rl_model_*.zip")]) == 6  # RL-Zoo's, for `enjoy`


@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_ctrl_c_writes_a_checkpoint(tmp_path, monkeypatch, run_here, capsys):
    monkeypatch.chdir(tmp_path)
    run = ("train", "--algo", "per_sac", "--env", "Pendulum-v1", "--save-freq", 50, "--uuid", "-P")
    options = ("--eval-freq", -1, "-params", "policy_kwargs:dict(net_arch=[8])", "buffer_size:200")

    with monkeypatch.context() as patch:
        patch.setattr(PERSAC, "train", press_ctrl_c)
        run_here(*run, *options, "-n", 200)
    run_here(*run, *options, "-n", 200, "--seed", -1, "--resume")

    printed = capsys.readouterr().out
    assert "Stopped after 101 steps: --resume continues" in printed
    assert "101 steps are done, 99 are left" in printed
    assert len([*Path("logs", "per_sac").iterdir()]) == 1


@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_run_without_a_checkpoint_is_not_resumed(tmp_path, monkeypatch, run_here):
    monkeypatch.chdir(tmp_path)
    run = ("train", *TRAINED, "--eval-freq", -1, "-n", 20)

    with pytest.raises(SystemExit, match="there is no run in logs/per_dqn/: start without"):
        run_here(*run, "--resume")
    run_here(*run)
    with pytest.raises(SystemExit, match=f"no checkpoint in {RUN}: .* with --save-freq"):
        run_here(*run, "--resume")


@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_number_that_yaml_reads_as_text_is_named(tmp_path, monkeypatch, run_here):
    monkeypatch.chdir(tmp_path)
    section = "{policy: MlpPolicy, n_timesteps: 20, learning_rate: 1e-3}"
    Path("mine.yml").write_text(f"CartPole-v1: {section}")

    with pytest.raises(SystemExit, match=r"^mine.yml: learning_rate: 1e-3 is text.*write 0\.001"):
        run_here("train", *TRAINED, "-conf", "mine.yml")


@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_algorithms_of_rl_zoo_are_trained_by_its_own_manager(tmp_path, monkeypatch, run_here):
    monkeypatch.chdir(tmp_path)
    run = ("train", "--algo", "dqn", "--env", "CartPole-v1", "--eval-freq", -1, "--save-freq", 10)
    run_here(*run, "-n", 20)

    assert [*Path("logs").rglob("rl_model_*.zip")]
    assert not [*Path("logs").rglob("*.ckpt")]
    with pytest.raises(SystemExit, match=r"--resume is for per_dqn.*, got dqn"):
        run_here(*run, "-n", 30, "--resume")


def test_damaged_evaluations_are_dropped_with_a_warning(tmp_path):
    callback = EvalCallback(make_vec_env("CartPole-v1"), log_path=str(tmp_path))
    np.savez(tmp_path / "evaluations", timesteps=[1], results=[[1.0]], ep_lengths=[[1]])
    whole = (tmp_path / "evaluations.npz").read_bytes()
    for damaged in (b"", whole[:2], whole[:99], bytes(len(whole))):
        (tmp_path / "evaluations.npz").write_bytes(damaged)

        with pytest.warns(UserWarning, match=r"evaluations.npz cannot be read"):
            experiment._restore_evaluations(callback, 9)

        assert callback.evaluations_timesteps == []


def test_newest_run_has_the_highest_number(tmp_path):
    with_uuid = f"10_{uuid.uuid4()}"
    for age, name in enumerate(["2", "10", with_uuid, "11_backup", "1"]):
        (tmp_path / f"CartPole-v1_{name}").mkdir()
        os.utime(tmp_path / f"CartPole-v1_{name}", (age, age))

    assert experiment.newest_run(tmp_path, "CartPole-v1").name == f"CartPole-v1_{with_uuid}"
    assert experiment.newest_run(tmp_path, "Acrobot-v1") is None


def test_best_policy_of_before_stays_until_a_better_one(tmp_path):
    lengths = {"timesteps": [100, 200], "ep_lengths": [[5, 5], [5, 5]]}
    np.savez(tmp_path / "evaluations.npz", results=[[1.0, 3.0], [8.0, 9.0]], **lengths)
    callback = EvalCallback(make_vec_env("CartPole-v1"), log_path=str(tmp_path))

    experiment._restore_evaluations(callback, 150)  # resumed between both evaluations

    assert callback.evaluations_results == [[1.0, 3.0]]
    assert callback.best_mean_reward == 8.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # RL-Zoo's and Optuna's own
def test_two_processes_share_a_study(tmp_path, monkeypatch, run_here, capsys):
    study = ("--storage", "per.log", "--study-name", "per", "-n", 400)
    search = (*study, "-optimize", "--n-trials", 2, "--n-evaluations", 1, "--no-optim-plots")

    both = [start(tmp_path, "train", *TRAINED, *search) for _ in range(2)]
    printed = "".join([output_of(process) for process in both])
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    run_here("train", *TRAINED, *study, "--trial-id", 3, "--eval-freq", -1)

    assert printed.count("finished with value") == 4
    assert "Loading from Optuna study" in capsys.readouterr().out
    run = max((tmp_path / "logs" / "per_dqn").glob("CartPole-v1_*"))
    kept = used_configuration(run)
    assert "gamma" in kept
    assert {"alpha", "beta", "uniform_share"} <= set(kept["replay_buffer_kwargs"])
