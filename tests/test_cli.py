"""``python -m sb3_per``, as people type it, outside of the checkout."""

import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml

import sb3_per
from sb3_per import cli, zoo
from sb3_per.zoo import recording as zoo_commands

CHECKOUT = Path(__file__).parent.parent
TRAINED = ("--algo", "per_dqn", "--env", "CartPole-v1", "--device", "cpu")
RUN = Path("logs", "per_dqn", "CartPole-v1_1")


def start(folder, *arguments, **variables):
    command = [sys.executable, "-m", "sb3_per", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def output_of(process):
    printed = process.communicate()[0]
    assert process.returncode == 0, printed
    return printed


def train(folder, *arguments, **variables):
    return start(folder, "train", *TRAINED, *arguments, **variables)


def run_here(monkeypatch, folder, *arguments):
    """Run a command in this process, which has imported RL-Zoo already."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [])
    cli.main([*map(str, arguments)])


def used_configuration(folder, run=RUN):
    return yaml.load((folder / run / "CartPole-v1" / "config.yml").read_text(), yaml.UnsafeLoader)


# One process of pytest-xdist trains the agent of `trained`, and has all tests that look at it.
LOOKS_AT_THE_AGENT = pytest.mark.xdist_group("trained")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of 1500 steps, evaluated twice, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    options = ("--eval-freq", 700, "--eval-episodes", 2, "--save-replay-buffer", "-P")
    return folder, output_of(train(folder, "-n", 1500, *options))


def test_help_lists_every_command_with_a_line_each(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])

    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    for name, command in cli.COMMANDS.items():
        assert [name, command.help] in lines


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])

    assert capsys.readouterr().out == f"{sb3_per.__version__}\n"


def test_no_command_is_answered_with_what_is_missing(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([])

    assert capsys.readouterr().err.endswith("arguments are required: COMMAND\n")


def test_an_unknown_command_is_answered_with_the_known_ones(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["trian"])

    assert "'trian' (choose from" in capsys.readouterr().err


@pytest.mark.parametrize("name", [n for n, c in cli.COMMANDS.items() if c.needs])
def test_a_missing_package_is_named_with_the_install_that_brings_it(monkeypatch, name):
    last = cli.COMMANDS[name].needs[-1]
    find = cli.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda n: None if n == last else find(n))
    ran = []
    monkeypatch.setattr(zoo, "register", lambda: ran.append("register"))

    with pytest.raises(SystemExit) as exit_:
        cli.main([name])

    extra = cli.EXTRAS[last]
    remedy = f'pip install "sb3-per[{extra}]"\n(in a clone: pip install ".[{extra}]")'
    assert str(exit_.value) == f"sb3-per {name} needs the package {last}: {remedy}"
    assert not ran


def arguments_of_train(monkeypatch, *arguments):
    """What RL-Zoo's ``train`` would read."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr("rl_zoo3.train.train", lambda: None)
    cli.main(["train", *arguments])
    return sys.argv[1:]


@pytest.mark.parametrize("spelling", [["--algo", "per_dqn"], ["--algo=per_dqn"], ["--al=per_dqn"]])
def test_our_file_comes_first_so_that_the_users_wins(monkeypatch, spelling):
    read = arguments_of_train(monkeypatch, *spelling, "-conf", "mine.yml")

    assert read == ["-conf", str(zoo.config_file("per_dqn")), *spelling, "-conf", "mine.yml"]


def test_other_algorithms_keep_rl_zoos_file(monkeypatch):
    assert arguments_of_train(monkeypatch, "--algo", "dqn") == ["--algo", "dqn"]
    assert arguments_of_train(monkeypatch) == []


def test_configs_tells_where_the_files_are(capsys):
    cli.main(["configs"])

    folder = Path(capsys.readouterr().out.strip())
    assert {"per_dqn.yml", "per_dqn_rank.yml"} <= {path.name for path in folder.iterdir()}


@pytest.mark.slow
@LOOKS_AT_THE_AGENT
def test_training_uses_our_file_and_leaves_a_whole_run_folder(trained):
    folder, printed = trained

    ours = yaml.safe_load(zoo.config_file("per_dqn").read_text())["CartPole-v1"]
    assert dict(used_configuration(folder)) == ours
    assert "train/" in printed
    assert "effective_sample_size" in printed
    for name in ("CartPole-v1.zip", "best_model.zip", "replay_buffer.pkl", "CartPole-v1/args.yml"):
        assert (folder / RUN / name).stat().st_size > 0
    assert np.load(folder / RUN / "evaluations.npz")["results"].shape == (2, 2)


@pytest.mark.slow
@LOOKS_AT_THE_AGENT
@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
@pytest.mark.parametrize("which", [[], ["--load-best"]])
def test_enjoy_plays_what_was_trained(trained, which, monkeypatch, capsys):
    folder, _ = trained
    common = ("--algo", "per_dqn", "--env", "CartPole-v1", "-f", "logs", "--exp-id", 1)

    run_here(monkeypatch, folder, "enjoy", *common, *which, "--no-render", "-n", 600)

    assert "Mean reward: " in capsys.readouterr().out


@pytest.mark.slow
@LOOKS_AT_THE_AGENT
@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_a_best_model_continues_with_options_of_the_command_line(trained, monkeypatch, capsys):
    folder, _ = trained
    options = ("-params", "learning_starts:0", "beta_initial:0.7", "-i", RUN / "best_model.zip")

    run_here(monkeypatch, folder, "train", *TRAINED, "-n", 600, "--eval-freq", -1, *options)

    assert "Loading pretrained agent\nLoading replay buffer" in capsys.readouterr().out
    assert used_configuration(folder, RUN.with_name("CartPole-v1_2"))["beta_initial"] == 0.7


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # RL-Zoo's own
def test_a_file_of_ones_own_is_read_instead_of_ours(tmp_path, monkeypatch):
    rank = zoo.config_folder() / "per_dqn_rank.yml"

    options = ("-n", 300, "--eval-freq", -1, "-conf", rank)
    run_here(monkeypatch, tmp_path, "train", *TRAINED, *options)

    kept = used_configuration(tmp_path)
    assert kept["replay_buffer_kwargs"]["prioritization"] == "rank"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # RL-Zoo's and Optuna's own
def test_two_processes_share_a_study_and_its_trials_can_be_trained(tmp_path, monkeypatch, capsys):
    study = ("--storage", "per.log", "--study-name", "per", "-n", 400)
    search = (*study, "-optimize", "--n-trials", 2, "--n-evaluations", 1, "--no-optim-plots")

    both = [train(tmp_path, *search) for _ in range(2)]
    printed = "".join([output_of(process) for process in both])
    capsys.readouterr()
    trial = (*study, "--trial-id", 3, "--eval-freq", -1)
    run_here(monkeypatch, tmp_path, "train", *TRAINED, *trial)

    assert printed.count("finished with value") == 4
    assert "Loading from Optuna study" in capsys.readouterr().out
    run = max((tmp_path / "logs" / "per_dqn").glob("CartPole-v1_*"))
    kept = used_configuration(tmp_path, run)
    assert {"alpha", "prioritization"} <= set(kept["replay_buffer_kwargs"])
    assert {"beta_initial", "double_q", "gamma"} <= set(kept)


def test_an_unknown_environment_gets_rl_zoos_suggestion(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ValueError, match=r"CartPol-v1 not found .* you maybe meant CartPole-v1"):
        cli.main(["train", "--algo", "per_dqn", "--env", "CartPol-v1"])


@pytest.mark.slow
def test_an_installed_wheel_trains_outside_of_the_checkout(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, CHECKOUT], check=True)
    (wheel,) = tmp_path.glob("sb3_per-*.whl")
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    # The path comes before the checkout. Compiling takes longer than everything else.
    where = {"PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"}

    folder = output_of(start(tmp_path, "configs", **where)).strip()
    printed = output_of(train(tmp_path, "-n", 300, "--eval-freq", -1, **where))

    assert Path(folder) == site / "sb3_per" / "zoo" / "configs"
    assert f"Loading hyperparameters from: {folder}/per_dqn.yml" in printed
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"sb3_per/zoo/configs/{path.name}" for path in zoo.config_folder().iterdir()} <= {
        *names
    }
    assert "sb3_per/compare/template.yml" in names
    assert not [name for name in names if name.startswith(("benchmarks", "tests"))]
    assert (
        "sb3-per = sb3_per.cli:main"
        in zipfile.ZipFile(wheel)
        .read(next(name for name in names if name.endswith("entry_points.txt")))
        .decode()
    )


def test_record_training_says_at_once_that_ffmpeg_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "")

    with pytest.raises(SystemExit, match="record_training needs the program ffmpeg"):
        zoo_commands.record_training()


def test_record_training_films_through_the_launcher(monkeypatch):
    called = []
    theirs = ["python", "-m", "rl_zoo3.record_video", "--algo", "per_dqn"]
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(subprocess, "call", called.append)
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: subprocess.call(theirs))

    zoo_commands.record_training()

    assert called == [[sys.executable, "-m", "sb3_per", "record_video", "--algo", "per_dqn"]]
    assert subprocess.call == called.append
