"""``python -m sb3_per``, as people type it, outside of the checkout."""

import os
import re
import shutil
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
@pytest.mark.parametrize("which", [[], ["--load-best"]])
def test_enjoy_plays_a_trained_agent(trained, which, monkeypatch, run_here, capsys):
    monkeypatch.chdir(trained[0])
    common = ("--algo", "per_dqn", "--env", "CartPole-v1", "-f", "logs", "--exp-id", 1)

    run_here("enjoy", *common, *which, "--no-render", "-n", 600)

    assert "Mean reward: " in capsys.readouterr().out


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


class Slow:
    """An object of a user's file in Python, such as a callback."""

    def __init__(self, seconds):
        self.seconds = seconds


def lengths_in(folder, logs):
    """Return the lengths of the episodes in some logs of ``Monitor``, sorted."""
    texts = [path.read_text() for path in folder.glob(f"{logs}.monitor.csv")]
    return sorted(int(line.split(",")[1]) for text in texts for line in text.splitlines()[2:])


@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_killed_training_is_resumed(tmp_path, monkeypatch, run_here, capsys):
    run = ("-n", 2000, "--save-freq", 300, "--eval-freq", 350, "-f", "logs", "-tb", "tb")
    normalize = "normalize:dict(norm_reward=False)"  # RL-Zoo adds gamma to it
    options = ("-params", normalize, "n_envs:2", "train_freq:4", "learning_starts:100")
    command = ("train", *TRAINED, *run, "--seed", 3, *options)
    folder = tmp_path / RUN
    with start(tmp_path, *command) as killed:
        wait_until(lambda: len([*folder.glob("*.ckpt")]) == 2 or killed.poll() is not None)
        killed.kill()
    resumed_from = int(latest_checkpoint(folder).name.split("_")[2])
    with (folder / "0.monitor.csv").open("a") as log:
        log.write("1.0,5000,1000000.0\n")  # an episode that ended after the checkpoint
        log.write("-500.0,")  # as a full disk leaves it
    shutil.copytree(folder, f"{folder}_backup")
    other_log = tmp_path / "tb" / "CartPole-v1" / "PERDQN_2"  # of a run that began later
    other_log.mkdir()

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="no run of CartPole-v1 with seed 4 to resume in logs"):
        run_here(*command, "--see", 4, "--resume")  # RL-Zoo, too, knows it by this
    with pytest.raises(SystemExit, match="a search goes on with the same --storage"):
        run_here(*command, "--resume", "-optimize")
    with pytest.raises(SystemExit, match=r"gamma was 0\.99 and is 0\.5"):
        run_here(*command, "gamma:0.5", "--resume")
    with pytest.raises(SystemExit, match=r"env_kwargs was None and is .'sutton"):
        run_here(*command, "--env-kwargs", "sutton_barto_reward:True", "--resume")
    arguments = folder / "CartPole-v1" / "args.yml"
    text = arguments.read_text()  # a resumed run without evaluations may write another number
    arguments.write_text(re.sub(r"(eval_episodes\n +- )5", r"\g<1>3", text))
    assert arguments.read_text() != text
    with pytest.raises(SystemExit, match="eval_episodes was 5 and is 3"):
        run_here(*command, "--eval-episodes", 3, "--resume")
    run_here(*command, "--resume")

    printed = capsys.readouterr().out
    assert f"Resuming from {RUN}/rl_model_{resumed_from}_steps" in printed
    assert f"{resumed_from} steps are done, {2000 - resumed_from} are left" in printed
    assert 600 <= resumed_from < 2000
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}_backup"}
    assert [*other_log.iterdir()] == []
    assert len([*other_log.with_name("PERDQN_1").iterdir()]) == 2  # before and after
    checkpoint = latest_checkpoint(folder)
    env = VecNormalize(make_vec_env("CartPole-v1", 2))
    model = load_checkpoint(checkpoint, env)
    assert model.num_timesteps == len(model.replay_buffer) == model._total_timesteps == 2000
    assert model.seed == 3
    assert env.obs_rms.count > 2000
    evaluated = np.load(folder / "evaluations.npz")["timesteps"]
    assert evaluated.tolist() == [350, 700, 1050, 1400, 1750]
    episodes, earlier = load_results(str(folder)), lengths_in(folder, "*.part1")
    assert 0 < sum(earlier) <= resumed_from
    assert sorted(episodes["l"][: len(earlier)]) == earlier
    assert sorted(episodes["l"][len(earlier) :]) == lengths_in(folder, "[01]")
    assert episodes["l"].sum() <= 2000
    assert len([*folder.glob("*.ckpt")]) == 2
    assert len([*folder.glob("rl_model_*.zip")]) == 6  # RL-Zoo's, for `enjoy`


@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_any_run_is_resumed_by_the_command_that_began_it(tmp_path, monkeypatch, run_here, capsys):
    monkeypatch.chdir(tmp_path)
    run = ("train", "--algo", "per_sac", "--env", "Pendulum-v1", "--save-freq", 50, "--uuid")
    options = ("--eval-freq", -1, "-params", "policy_kwargs:dict(net_arch=[8])", "buffer_size:200")

    with monkeypatch.context() as patch:
        patch.setattr(PERSAC, "train", press_ctrl_c)
        run_here(*run, *options, "-n", 200)  # SAC adds an entry to its policy_kwargs
    run_here(*run, *options, "-n", 200, "--seed", -1, "--eval-episodes", 3, "--resume")

    printed = capsys.readouterr().out
    assert "Stopped after 101 steps: --resume continues" in printed
    assert "101 steps are done, 99 are left" in printed
    assert len([*Path("logs", "per_sac").iterdir()]) == 1


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


def test_latest_run_has_the_highest_number(tmp_path):
    manager = experiment.Experiment.__new__(experiment.Experiment)
    manager.env_name, manager.log_path = "CartPole-v1", str(tmp_path)
    with_uuid = f"2_{uuid.uuid4()}"
    for age, name in enumerate(["2", with_uuid, "10", "3_backup", "1"]):
        arguments = tmp_path / f"CartPole-v1_{name}" / "CartPole-v1" / "args.yml"
        arguments.parent.mkdir(parents=True)
        arguments.touch()
        os.utime(arguments, (age, age))

    found = [folder.name.removeprefix("CartPole-v1_") for folder in manager._runs()]

    assert found == ["10", with_uuid, "2", "1"]


def test_commands_that_start_together_have_folders_of_their_own(tmp_path):
    managers = [experiment.Experiment.__new__(experiment.Experiment) for _ in range(3)]
    for manager in managers:
        manager.env_name, manager.log_path = "CartPole-v1", str(tmp_path)
        manager.save_path = str(tmp_path / "CartPole-v1_1")
        manager.params_path = f"{manager.save_path}/CartPole-v1"

    for manager in managers:
        manager.create_log_folder()

    for number, manager in enumerate(managers, start=1):
        assert Path(manager.save_path).name == f"CartPole-v1_{number}"
        assert Path(manager.params_path).is_dir()


def test_objects_of_a_file_in_python_are_compared_by_their_contents():
    before = {"callback": Slow(1.0), "alpha": 1}
    experiment._require_equal(before, {"callback": Slow(1.0), "alpha": 1.0})

    with pytest.raises(SystemExit, match="callback was"):
        experiment._require_equal(before, {**before, "callback": Slow(2.0)})


def test_best_policy_of_before_stays_until_a_better_one(tmp_path):
    lengths = {"timesteps": [100, 200], "ep_lengths": [[5, 5], [5, 5]]}
    np.savez(tmp_path / "evaluations.npz", results=[[1.0, 3.0], [8.0, 9.0]], **lengths)
    callback = EvalCallback(make_vec_env("CartPole-v1"), log_path=str(tmp_path))

    experiment._restore_evaluations(callback, 150)  # resumed between both evaluations

    assert callback.evaluations_results == [[1.0, 3.0]]
    assert callback.best_mean_reward == 8.5


@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_agent_without_a_buffer_continues_with_a_note(tmp_path, monkeypatch, run_here, capsys):
    monkeypatch.chdir(tmp_path)
    run = ("train", *TRAINED, "-n", 20, "--eval-freq", -1)
    run_here(*run)

    run_here(*run, "-i", RUN / "CartPole-v1.zip")

    assert "No replay_buffer.pkl: the buffer is empty" in capsys.readouterr().out


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
    assert {"double_q", "gamma"} <= set(kept)
    assert {"alpha", "beta", "prioritization"} <= set(kept["replay_buffer_kwargs"])
