"""RL-Zoo with our algorithms, in one process: its tables, our YAML files, hyperparameter search."""

import argparse
import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import rl_zoo3
import rl_zoo3.enjoy
import rl_zoo3.train
import yaml
from rl_zoo3 import exp_manager, hyperparams_opt
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import get_wrapper_class
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

import benchmarks.environments  # noqa: F401  # it registers BitFlipping
from examples import cartpole
from sb3_per import PAPER, PERDQN, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer, cli, zoo
from sb3_per.algorithms import ALGORITHMS
from sb3_per.experiment import Experiment

PATHS = {path.stem: path for path in zoo.config_folder().glob("*.yml")}
FILES = {name: yaml.safe_load(path.read_text()) for name, path in PATHS.items()}
SECTIONS = [(name, section) for name, sections in FILES.items() for section in sections]
TUNED = [
    (name, section)
    for name, path in PATHS.items()
    for section in re.findall(r"^# Tuned:.*\n(?:#.*\n)*([^:\n]+):", path.read_text(), re.MULTILINE)
]
# Where ranks have other values than proportional priorities, apart from replay_buffer_kwargs.
TUNED_WITH_RANKS = {"CartPole-v1": {"gamma": 0.995}, "LunarLander-v3": {"learning_rate": 1.6e-4}}
# Sections that name no environment: one that has no section of its own, and an Atari game.
STAND_INS = {"default": "CliffWalking-v1", "atari": "PongNoFrameskip-v4"}
OTHERS = [name for name in ALGORITHMS if name != "per_dqn"]
DISCRETE = ("per_dqn", "per_qrdqn", "rainbow")
WITH_NOISE = ("per_td3", "per_ddpg")


@pytest.fixture(autouse=True)
def registered():
    zoo.register()


def environment_of(name):
    return "CartPole-v1" if name in DISCRETE else "Pendulum-v1"


def experiment(tmp_path, env_id, *, algorithm="per_dqn", kind=ExperimentManager, **options):
    """RL-Zoo's manager of one run, with a buffer that fits into a test."""
    options.setdefault("config", str(zoo.config_file("per_dqn")))
    options.setdefault("hyperparams", {"learning_starts": 0, "buffer_size": 1000})
    # RL-Zoo writes the run's arguments into its folder.
    arguments = argparse.Namespace(env_kwargs=None)
    options = {"eval_freq": -1, "log_interval": -1, "device": "cpu", **options}
    return kind(arguments, algorithm, env_id, str(tmp_path), **options)


def trained(manager):
    model, used = manager.setup_experiment()
    manager.learn(model)
    assert model._n_updates > 0
    return model, used


def test_import_does_not_import_rl_zoo():
    code = "import sb3_per.zoo, sb3_per.cli, sys; sys.exit('rl_zoo3' in sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", OTHERS)
def test_algorithm_trains_with_rl_zoos_section_of_its_base(name, tmp_path, capsys):
    config, env_id = zoo.config_file(name), environment_of(name)
    fast = {"learning_starts": 0, "buffer_size": 1000, "train_freq": 8, "gradient_steps": 1}
    options = {"config": str(config), "hyperparams": fast, "n_timesteps": 20}
    manager = experiment(tmp_path, env_id, algorithm=name, **options)

    model, used = trained(manager)

    assert type(model) is ALGORITHMS[name]
    theirs = yaml.safe_load(config.read_text())[env_id]
    assert all(used[key] == value for key, value in theirs.items() if key not in fast)
    manager.save_trained_model(model)
    arguments = ["enjoy", "--algo", name, "--env", env_id, "-f", str(tmp_path)]
    cli.main([*arguments, "-n", "20", "--no-render", "--device", "cpu"])
    assert f"Loading {tmp_path / name / env_id}_1" in capsys.readouterr().out


def test_hindsight_replay_trains_from_a_yaml_file(tmp_path):
    section = {
        "n_timesteps": 60,
        "policy": "MultiInputPolicy",
        "replay_buffer_class": "PrioritizedHerReplayBuffer",
        "replay_buffer_kwargs": "dict(n_sampled_goal=2, alpha=0.5)",
    }
    env_id, config = "sb3_per/BitFlipping-v0", tmp_path / "her.yml"
    config.write_text(yaml.safe_dump({env_id: section}))
    options = {"config": str(config), "hyperparams": {"learning_starts": 20}}
    manager = experiment(tmp_path, env_id, **options)

    model, used = trained(manager)

    assert type(model.replay_buffer) is PrioritizedHerReplayBuffer
    assert (model.replay_buffer.n_sampled_goal, model.replay_buffer.alpha) == (2, 0.5)
    assert "HerReplayBuffer" in used["replay_buffer_class"]  # what `enjoy` looks for
    manager.save_trained_model(model)
    arguments = ["enjoy", "--algo", "per_dqn", "--env", env_id, "-f", str(tmp_path)]
    cli.main([*arguments, "-n", "20", "--no-render", "--device", "cpu"])


@pytest.mark.slow
# Raised as an error it would end Box2D's import, and with it the interpreter.
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute")
@pytest.mark.parametrize(("name", "section"), SECTIONS)
def test_section_builds_a_model_and_takes_a_gradient_step(tmp_path, name, section):
    settings = FILES[name][section]
    options = {"config": str(PATHS[name]), "n_timesteps": settings.get("train_freq", 4) + 1}
    kinds = ("rainbow", "dqn", "per_dqn")
    options["algorithm"] = next(kind for kind in kinds if name.startswith(kind))

    model, used = trained(experiment(tmp_path, STAND_INS.get(section, section), **options))

    assert isinstance(model.replay_buffer, PrioritizedReplayBuffer) == (name != "dqn")
    assert used == settings | {"learning_starts": 0, "buffer_size": 1000}


@pytest.mark.parametrize(("name", "section"), TUNED)
def test_tuned_section_names_its_options_of_prioritization(name, section):
    """So that tuned values do not change when PERDQN's defaults do."""
    assert FILES[name][section]["replay_buffer_kwargs"].keys() >= PAPER.keys()


@pytest.mark.parametrize("place", ["rl_zoo3/hyperparams", "hyperparams"])
def test_rl_zoos_files_are_found_in_its_package_and_in_a_clone(place, tmp_path, monkeypatch):
    (tmp_path / "rl_zoo3").mkdir()
    (tmp_path / place).mkdir()
    spec = argparse.Namespace(origin=str(tmp_path / "rl_zoo3" / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)

    assert zoo.config_file("per_sac") == tmp_path / place / "sac.yml"


def test_every_environment_of_rl_zoos_dqn_file_has_a_section():
    folder = Path(rl_zoo3.__file__).parent
    theirs = yaml.safe_load((folder / "hyperparams" / "dqn.yml").read_text())

    assert set(theirs) <= set(FILES["per_dqn"])


def test_dqn_and_ours_have_the_same_settings_in_minigrid():
    for name, section in FILES["dqn"].items():
        assert section == FILES["per_dqn"][name]
        rainbow = {**FILES["rainbow"][name], "policy_kwargs": section["policy_kwargs"]}
        assert rainbow.items() <= section.items()  # the others are Rainbow's defaults


def test_rank_file_differs_only_where_ranks_need_it():
    proportional, rank = FILES["per_dqn"], FILES["per_dqn_rank"]

    assert rank.keys() == proportional.keys()
    for name, section in proportional.items():
        ranked = dict(rank[name])
        options = ranked.pop("replay_buffer_kwargs")
        assert options.items() >= {"prioritization": "rank", "alpha": 0.7}.items()
        section = {k: value for k, value in section.items() if k != "replay_buffer_kwargs"}
        assert ranked == section | TUNED_WITH_RANKS.get(name, {})


@pytest.mark.parametrize("name", ["per_dqn", "per_dqn_rank", "rainbow"])
def test_evaluations_see_episodes_that_a_time_limit_ends(name):
    """RL-Zoo's own Monitor is inside of the wrappers, so it sees no truncation of theirs."""
    pytest.importorskip("minatar")
    zoo.register()
    section = copy.deepcopy(FILES[name]["MinAtar/SpaceInvaders-v1"])
    section["env_wrapper"][0]["gymnasium.wrappers.TimeLimit"]["max_episode_steps"] = 3
    env = make_vec_env("MinAtar/SpaceInvaders-v1", 1, wrapper_class=get_wrapper_class(section))
    env.reset()

    infos = [env.step([0])[3][0] for _ in range(3)]
    assert infos[-1]["episode"]["l"] == 3


@pytest.mark.parametrize("variant", cartpole.VARIANTS)
def test_example_and_yaml_file_have_the_same_settings(variant):
    section = dict(
        FILES[{"proportional": "per_dqn", "rank": "per_dqn_rank"}[variant]]["CartPole-v1"]
    )
    rate = float(section.pop("learning_rate").removeprefix("lin_"))
    options = section.pop("replay_buffer_kwargs")
    gamma, others = cartpole.VARIANTS[variant]
    settings = {**cartpole.SETTINGS, "policy": "MlpPolicy", "gamma": gamma, "n_timesteps": 50_000}

    assert options == {**cartpole.REPLAY, **others}
    assert rate == settings.pop("learning_rate")(1.0)
    assert section == settings


@pytest.fixture
def study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))


def search(study, name, kept, *, her=False):
    """Return what RL-Zoo trains for a new trial, and what it makes of the stored trial."""
    trial = study.ask()
    arguments = {"using_her_replay_buffer": her, "her_kwargs": kept}
    sample = hyperparams_opt.HYPERPARAMS_SAMPLER[name]
    arguments = sample(trial, 2 if name in DISCRETE else 1, 1, arguments)
    convert = hyperparams_opt.HYPERPARAMS_CONVERTER[name]
    return arguments, convert(study.trials[trial.number].params)


SEARCHES = [(name, {}) for name in ALGORITHMS] + [
    (name, {"prioritization": "proportional", "beta": [0.4, 1.0]})
    for name in ("per_sac", "per_td3", "per_ddpg", "per_crossq")
]


@pytest.mark.parametrize(("name", "kept"), SEARCHES)
def test_search_trains_what_the_stored_trial_says(name, kept, study):
    algorithm = ALGORITHMS[name]
    searches_lap = {**algorithm.default_options, **kept}["prioritization"] == "lap"
    seen = set()
    for _ in range(8):
        arguments, stored = search(study, name, kept)
        small = {"buffer_size": 3000, "device": "cpu"}

        model = algorithm("MlpPolicy", environment_of(name), **small | copy.deepcopy(arguments))

        # RL-Zoo makes the noise of a stored trial itself.
        assert ("action_noise" in arguments) == ("noise_type" in stored) == (name in WITH_NOISE)
        stored.pop("noise_type", None)
        noise_std, noise = stored.pop("noise_std", 0), arguments.pop("action_noise", None)
        assert (noise_std > 0) == (noise is not None)
        assert stored == arguments
        options, sampled = model.replay_buffer_kwargs, arguments["replay_buffer_kwargs"]
        sampled = {k: tuple(v) if k == "beta" else v for k, v in sampled.items()}  # as in YAML
        assert options.items() >= sampled.items() >= {"alpha": options["alpha"]}.items()
        if searches_lap:
            assert (options["prioritization"], options["beta"]) == ("lap", 0.0)
            assert "beta" not in sampled
        else:
            first, last = sampled["beta"]
            assert 0 <= first <= last <= 1
        seen.add(options["uniform_share"])
    assert len(seen) > 1


@pytest.mark.parametrize(
    "fixed",
    [
        {"prioritization": "rank"},
        {"eps": 0.01},
        {"alpha": 0.3, "beta": 0.5},
        {"uniform_share": 0.1, "weight_normalization": "mean"},
        {**PAPER, "td_error_clip": "loss"},
        {"prioritization": "lap", "prioritization_kwargs": {"threshold": 1.0}},
        {"td_error_clip": 1.0, "replacement": False},  # it needs a uniform share of 0
    ],
)
def test_search_keeps_options_that_the_yaml_file_fixes(fixed, study):
    fixed = json.loads(json.dumps(fixed))  # as from YAML: no tuples
    for _ in range(8):
        arguments, stored = search(study, "per_dqn", fixed)

        assert arguments == stored
        options = arguments["replay_buffer_kwargs"]
        assert options.items() >= fixed.items()
        assert options.keys() >= {"alpha", "uniform_share"}
        assert ("beta" in options) == (options.get("prioritization") != "lap")
        PERDQN("MlpPolicy", "CartPole-v1", device="cpu", **{**arguments, "buffer_size": 3000})


def test_search_samples_the_options_of_hindsight_replay(study):
    kept = {"goal_selection_strategy": "future", "n_sampled_goal": 9, "copy_info_dict": True}

    arguments, _ = search(study, "per_dqn", kept, her=True)

    options = arguments["replay_buffer_kwargs"]
    assert options["n_sampled_goal"] <= 5
    assert options["copy_info_dict"]
    kind = {"replay_buffer_class": HerReplayBuffer, "buffer_size": 100}
    PERDQN("MultiInputPolicy", BitFlippingEnv(n_bits=3), device="cpu", **kind, **arguments)


TRIALS = {
    "per_dqn": "MinAtar/Breakout-v1",
    "per_dqn_rank": "CartPole-v1",
    "rainbow": "MinAtar/Breakout-v1",
    "rainbow_atari100k": "PongNoFrameskip-v4",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # RL-Zoo's and Optuna's own
@pytest.mark.parametrize("name", TRIALS)
def test_search_keeps_the_policy_of_each_file(name, tmp_path, monkeypatch):
    environment, trained = TRIALS[name], []
    algorithm = next(kind for kind in ("rainbow", "per_dqn") if name.startswith(kind))
    kind = exp_manager.ALGOS[algorithm]
    monkeypatch.setitem(
        exp_manager.ALGOS, algorithm, lambda **kwargs: trained.append(kwargs) or kind(**kwargs)
    )
    storage = {"storage": f"{tmp_path}/trials.log", "study_name": "one"}
    common = {"config": str(PATHS[name]), "algorithm": algorithm, "kind": Experiment, **storage}
    small = {"buffer_size": 1000}
    search = {"optimize_hyperparameters": True, "n_trials": 2, "no_optim_plots": True}
    search |= {"n_timesteps": 8, "n_eval_episodes": 1, "hyperparams": dict(small)}
    manager = experiment(tmp_path, environment, **search, **common)
    manager.setup_experiment()

    manager.hyperparameters_optimization()
    model, _ = experiment(
        tmp_path, environment, trial_id=1, hyperparams=dict(small), **common
    ).setup_experiment()

    section = FILES[name]["atari" if "Pong" in environment else environment]
    kept = section.get("policy_kwargs", {}).items()
    assert all(arguments.get("policy_kwargs", {}).items() >= kept for arguments in trained[-2:])
    assert type(model) is kind
    model.env.close()
