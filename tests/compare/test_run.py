"""Runs on this machine: finished, failed, killed, interrupted, continued."""

import json
import multiprocessing
import os
import signal
import sys

import pytest
from filelock import FileLock
from interrupted import INTERRUPTIONS, check_interrupted_command
from small_suite import ENVIRONMENT, LONG, of_environment, suite
from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import zoo
from sb3_per.compare import command
from sb3_per.compare.results import OUTPUT, RESULT, read, read_result, run_folder
from sb3_per.compare.run import check, make_runs, run_locally
from sb3_per.compare.suite import Suite, as_yaml, from_options, runs_of
from sb3_per.compare.training import _trained, manager_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder with all runs of the small suite."""
    folder = tmp_path_factory.mktemp("small")
    assert make_runs(suite(), folder, 2, "cpu") == []
    return folder


def main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["sb3-per compare", *map(str, arguments)])
    command.main()


def test_every_run_has_a_result(finished):
    results = read(finished)

    assert results.suite == suite()
    assert len(results.finished) == 4
    for run, result in results.finished:
        assert result["settings"] == run.settings
        assert result["steps"] == [30, 60, 90]
        assert [len(returns) for returns in result["returns"]] == [2, 2, 2]
        assert 90 <= result["trained"] < 94  # whole rollouts of four steps
        assert 0 < result["seconds"]["training_cpu"] < result["seconds"]["cpu"]
        assert "torch" in result["versions"]


def test_seed_and_settings_decide_the_returns(finished, tmp_path):
    (tmp_path / "report").mkdir()  # of packed results with the same name
    make_runs(suite(), tmp_path, 1, "cpu")

    again, before = read(tmp_path).finished, read(finished).finished
    assert [result["returns"] for _, result in again] == [result["returns"] for _, result in before]


def test_more_seeds_add_runs(finished, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob(RESULT)}

    make_runs(suite(seeds=3), finished, 2, "cpu")

    assert len(read(finished).finished) == 6
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("env_kwargs", "difference"),
    [({"n": 4}, "n was 3 and is 4"), ({"n": 3, "m": None}, "m was 'not set' and is None")],
)
def test_results_of_other_settings_are_refused(env_kwargs, difference, finished):
    other = Suite.model_validate(of_environment(env_kwargs=env_kwargs))

    with pytest.raises(ValueError, match=f"other settings: {difference}"):
        make_runs(other, finished, 1, "cpu")


def test_folder_of_another_suite_is_refused(finished):
    with pytest.raises(ValueError, match="has the runs of small, not of other"):
        make_runs(suite(name="other"), finished, 1, "cpu")


def test_folder_of_the_user_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")

    with pytest.raises(ValueError, match="must be empty or a run folder"):
        make_runs(suite(), tmp_path, 1, "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_folder_in_use_is_refused(tmp_path):
    with FileLock(tmp_path / ".lock"), pytest.raises(ValueError, match="another sb3-per compare"):
        make_runs(suite(), tmp_path, 1, "cpu")


# Their environments are still open when the command ends.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_variants_that_cannot_be_built_are_all_named():
    variants = {
        "dqn": {"algorithm": "dqn", "overrides": {"gama": 0.9}},
        "none": {"algorithm": "per_dqnn"},
        "class": {"algorithm": "PERDQN"},
        "late": {"algorithm": "dqn", "overrides": {"learning_starts": 90}},
        "good": {"algorithm": "dqn"},
    }

    with pytest.raises(ValueError, match="cannot be built") as error:
        check(runs_of(suite(variants=variants)))

    message = str(error.value)
    assert "unexpected keyword argument 'gama'" in message
    assert "got 'per_dqnn'" in message
    assert "got 'PERDQN'" in message
    assert "learning_starts must be below steps (90), got 90" in message
    assert "good" not in message


def test_failed_run_fails_alone(tmp_path, monkeypatch, capsys):
    """SB3 notices the wrong number only when it trains."""
    variants = {
        "dqn": {"algorithm": "dqn"},
        "bad": {"algorithm": "dqn", "overrides": {"batch_size": -1}},
    }
    file = tmp_path / "small.yml"
    file.write_text(as_yaml(suite(seeds=1, variants=variants)))

    with pytest.raises(SystemExit, match="1 runs failed"):
        main(monkeypatch, "run", file, "--out", tmp_path / "runs")

    results = read(tmp_path / "runs")
    assert [run.variant for run, _ in results.finished] == ["dqn"]
    assert [run.variant for run in results.missing] == ["bad"]
    bad = results.missing[0]
    assert "Traceback" in (run_folder(tmp_path / "runs", bad) / OUTPUT).read_text()
    assert f"{bad} failed: ValueError: negative dimensions" in capsys.readouterr().err


def test_killed_process_takes_no_other_run_with_it(tmp_path):
    long = runs_of(Suite.model_validate(of_environment(**LONG)))[0]
    short = runs_of(suite(seeds=1))[1]
    made = run_locally([long, short], tmp_path, "cpu", 2)
    assert next(made) == short

    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGKILL)

    assert list(made) == [long]
    assert read_result(tmp_path, long) is None
    assert read_result(tmp_path, short) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_interrupted_command_keeps_finished_runs(how, tmp_path):
    def are_long_runs_training():
        return len(list(tmp_path.rglob("0.monitor.csv"))) == 4

    check_interrupted_command(how, tmp_path, are_long_runs_training, "--jobs", "2")


def test_two_algorithms_need_no_yaml(tmp_path, monkeypatch, capsys):
    arguments = ["--env", "CartPole-v1", "--algos", "dqn,", "per_dqn", "--steps", "2000"]
    main(monkeypatch, "run", *arguments, "--seeds", "1", "--jobs", "2", "--out", tmp_path / "runs")
    main(monkeypatch, "report", tmp_path / "runs")

    printed = capsys.readouterr().out
    assert "per_dqn, CartPole-v1, seed 0: final return" in printed
    assert "2 of 2 runs are finished" in printed
    assert (tmp_path / "runs" / "report" / "report.md").exists()
    assert len([*(tmp_path / "runs").rglob("events.out.tfevents.*")]) == 2


@pytest.mark.parametrize(
    ("environment", "package"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("MinAtar/Breakout-v1", "minatar"),
        ("PongNoFrameskip-v4", "ale_py"),
    ],
)
def test_algorithms_can_be_compared_in_each_family(environment, package, tmp_path):
    pytest.importorskip(package)
    zoo.register()
    made = from_options(environment, ["dqn", "per_dqn", "rainbow"], 500, 1)
    shared = made.environments[environment].model_dump()
    shared["evaluation"] = {"every": 500, "episodes": 1}  # a game of Atari takes seconds
    made = Suite.model_validate({**made.model_dump(), "environments": {environment: shared}})

    assert make_runs(made, tmp_path, 1, "cpu") == []
    found = {run.variant: result for run, result in read(tmp_path).finished}
    assert found["dqn"]["support_edge"] is found["dqn"]["support"] is None
    assert 0 <= found["rainbow"]["support_edge"] <= 1
    low, high = found["rainbow"]["support"]
    assert low < high


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run --env CartPole-v1 --algos dqn --steps 1234", "--steps must be a multiple of 20"),
        (
            "run --env CartPole-v1 --algos dqn --seeds 0",
            "--seeds must be a whole number of at least 1",
        ),
        (
            "run --env CartPole-v1 --algos dqn --jobs 0",
            "--jobs must be a whole number of at least 1",
        ),
        ("run --env NoSuch-v0 --algos dqn", "Environment `NoSuch` doesn't .* my_module:NoSuch-v0"),
        ("run UNKNOWN --out OUT", "Environment `NoSuch` doesn't exist.* my_module:MyEnv-v0"),
        ("run --env nothere:My-v0 --algos dqn", "No module named 'nothere'"),
        (
            "run --env A-v0 --algos dqn per_dqn dqn",
            "--algos must be different, got dqn per_dqn dqn",
        ),
        ("report nothere", "report needs a run folder, got nothere"),
        *[
            (f"run SUITE {option}", f"{option.split()[0]} must not be given with a suite")
            for option in ("--env A-v0", "--algos dqn", "--steps 2000")
        ],
        *[
            (f"run SUITE {option}", "--address, .* need --engine ray")
            for option in ("--address auto", "--gpus-per-run 1", "--retries 0")
        ],
    ],
)
def test_mistakes_on_the_command_line_in_plain_words(arguments, message, monkeypatch, tmp_path):
    unknown = tmp_path / "unknown.yml"
    unknown.write_text(command.TEMPLATE.read_text().replace("\n  CartPole-v1:", "\n  NoSuch-v0:"))
    arguments = arguments.replace("SUITE", str(command.TEMPLATE)).replace("UNKNOWN", str(unknown))

    with pytest.raises(SystemExit, match=rf"^sb3-per compare: (.*\n)?{message}"):
        main(monkeypatch, *arguments.replace("OUT", str(tmp_path / "runs")).split())


def test_suite_that_is_not_valid_in_plain_words(tmp_path, monkeypatch):
    file = tmp_path / "mine.yml"
    file.write_text(command.TEMPLATE.read_text().replace("baseline: dqn", "baseline: dnq"))

    with pytest.raises(SystemExit, match="not valid\nthere is no variant dnq: the variants are "):
        main(monkeypatch, "run", file)


@pytest.mark.parametrize("option", ["--seed 1", "--gpus 1", "--step 2000"])
def test_options_must_be_spelled_out(option, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        main(monkeypatch, "run", tmp_path / "mine.yml", *option.split())

    assert f"unrecognized arguments: {option}" in capsys.readouterr().err


def test_logs_of_a_killed_run_are_removed(tmp_path):
    suite = Suite.model_validate({**of_environment(), "seeds": 1})
    left = run_folder(tmp_path, runs_of(suite)[0]) / "7.monitor.csv"
    left.parent.mkdir(parents=True)
    left.touch()
    (tmp_path / "suite.yml").write_text(as_yaml(suite))

    assert make_runs(suite, tmp_path, 2, "cpu") == []

    assert (left.parent / RESULT).exists()
    assert not left.exists()


def test_new_writes_the_template(tmp_path, monkeypatch):
    file = tmp_path / "mine.yml"
    main(monkeypatch, "new", file)
    assert file.read_text() == command.TEMPLATE.read_text()
    file.write_text("precious")

    with pytest.raises(SystemExit, match="File exists"):
        main(monkeypatch, "new", file)
    assert file.read_text() == "precious"


class CountsRollouts(BaseCallback):
    """A callback of the user's, which ends the second of its trainings early."""

    n_rollouts = n_trainings = 0

    def _on_training_start(self):
        CountsRollouts.n_trainings += 1

    def _on_rollout_end(self):
        CountsRollouts.n_rollouts += 1

    def _on_step(self):
        return CountsRollouts.n_trainings == 1 or self.n_calls < 40


def test_callbacks_of_the_user_are_called(tmp_path, monkeypatch):
    # Both would hold for the whole process, in which other tests need denormal numbers.
    monkeypatch.setattr("torch.set_flush_denormal", lambda _: True)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    declared = of_environment()
    hyperparameters = declared["environments"][ENVIRONMENT]["hyperparameters"]
    hyperparameters["callback"] = f"{__name__}.CountsRollouts"
    run = runs_of(Suite.model_validate(declared))[0]
    run_folder(tmp_path, run).mkdir(parents=True)

    trained = _trained(run, tmp_path, "cpu")

    assert CountsRollouts.n_rollouts > trained["trained"] // 4 - 2
    with pytest.raises(RuntimeError, match="the training ended after 40 steps"):
        _trained(run, tmp_path, "cpu")


def test_greedy_evaluations_do_not_explore(tmp_path):
    pytest.importorskip("minigrid")
    declared = of_environment(evaluation={"every": 90, "episodes": 2, "greedy": True})
    settings = declared["environments"].pop(ENVIRONMENT) | {"env_kwargs": {}}
    for greedy in (False, True):
        settings["evaluation"]["greedy"] = greedy
        declared["environments"] = {"MiniGrid-Empty-5x5-v0": settings}
        run = runs_of(Suite.model_validate(declared))[0]
        run_folder(tmp_path, run).mkdir(parents=True, exist_ok=True)

        assert manager_of(run, tmp_path, "cpu").deterministic_eval == greedy


def test_results_are_read_by_rl_zoos_commands(finished):
    """`enjoy` looks for the model and its arguments below variant/algorithm/Environment_ID."""
    run = runs_of(suite())[0]
    place = run_folder(finished, run)

    assert place == finished / "dqn" / "dqn" / "sb3_per-BlindCliffwalk-v0_1"
    assert (place / "sb3_per-BlindCliffwalk-v0.zip").exists()
    assert "n: 3" in (place / "sb3_per-BlindCliffwalk-v0" / "args.yml").read_text()
    assert json.loads((place / RESULT).read_text())["settings"]["seed"] == 0
