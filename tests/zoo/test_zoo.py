"""RL-Zoo and PERDQN in one process: tables, YAML files, hyperparameter search."""

import argparse
import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import optuna
import pytest
import rl_zoo3
import rl_zoo3.enjoy
import rl_zoo3.train
import yaml
from builders import probabilities_in
from rl_zoo3 import exp_manager, hyperparams_opt
from rl_zoo3.exp_manager import ExperimentManager
from sb3_per.zoo.search_space import converter_of, sampler_of
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv

from examples import cartpole
from sb3_per import (
    PERDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    cli,
    zoo,
)
from sb3_per.envs import registration

sample_per_dqn, convert_per_dqn = sampler_of("dqn"), converter_of("dqn")

FILES = {path.stem: path for path in zoo.config_folder().glob("*.yml")}
SECTIONS = [
    (name, section) for name, path in FILES.items() for section in yaml.safe_load(path.read_text())
]
# Where ranks have other values than proportional priorities. They keep the paper's settings, for
# which LunarLander's learning rate is divided by 4.
TUNED_WITH_RANKS = {"CartPole-v1": {"gamma": 0.995}, "LunarLander-v3": {"learning_rate": 1.6e-4}}
# Sections that name no environment: one that has no section of its own, and an Atari game.
STAND_INS = {"default": "CliffWalking-v1", "atari": "PongNoFrameskip-v4"}


@pytest.fixture(autouse=True)
def registered():
    zoo.register()


def experiment(tmp_path, env_id, *, algorithm="per_dqn", **options):
    """RL-Zoo's manager of one run, with a buffer that fits into a test."""
    options.setdefault("config", str(zoo.config_file("per_dqn")))
    options.setdefault("hyperparams", {"learning_starts": 0, "buffer_size": 1000})
    # RL-Zoo writes the run's arguments into its folder.
    arguments = argparse.Namespace(env_kwargs=None)
    options = {"eval_freq": -1, "log_interval": -1, "device": "cpu", **options}
    return ExperimentManager(arguments, algorithm, env_id, str(tmp_path), **options)


def test_importing_us_does_not_import_rl_zoo():
    ours = "sb3_per.zoo, sb3_per.cli, sb3_per.compare.command"
    code = f"import {ours}, sys; sys.exit('rl_zoo3' in sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True)


def test_minatars_environments_are_entered_as_minatar_does_and_without_importing_it(own_registry):
    minatar = pytest.importorskip("minatar.gym")
    ours = {name: spec for name, spec in gym.registry.items() if name.startswith("MinAtar/")}
    for name in ours:
        del gym.registry[name]

    minatar.register_envs()

    assert len(ours) == 10
    assert ours == {name: gym.registry[name] for name in ours}
    code = "import sys; from sb3_per import zoo; zoo.register(); sys.exit('minatar' in sys.modules)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_registering_twice_changes_nothing():
    tables = (rl_zoo3.ALGOS, hyperparams_opt.HYPERPARAMS_SAMPLER, vars(exp_manager))
    before = [dict(table) for table in tables]

    zoo.register()

    assert [dict(table) for table in tables] == before


def test_registering_reaches_every_table_that_rl_zoo_reads():
    assert exp_manager.ALGOS["per_dqn"] is PERDQN
    assert exp_manager.HYPERPARAMS_SAMPLER["per_dqn"] is sample_per_dqn
    assert exp_manager.HYPERPARAMS_CONVERTER["per_dqn"] is convert_per_dqn
    assert exp_manager.PrioritizedReplayBuffer is PrioritizedReplayBuffer
    assert exp_manager.PrioritizedDictReplayBuffer is PrioritizedDictReplayBuffer
    assert exp_manager.PrioritizedHerReplayBuffer is PrioritizedHerReplayBuffer


@pytest.mark.parametrize("name", [name for name in zoo.ALGORITHMS if name != "per_dqn"])
def test_every_algorithm_trains_with_rl_zoos_section_of_its_base_and_is_watched(
    name, tmp_path, capsys
):
    config = zoo.config_file(name)
    env_id = "CartPole-v1" if name == "per_qrdqn" else "Pendulum-v1"
    fast = {"learning_starts": 0, "buffer_size": 1000, "train_freq": 8, "gradient_steps": 1}
    manager = experiment(
        tmp_path, env_id, algorithm=name, config=str(config), hyperparams=fast, n_timesteps=20
    )

    model, used = manager.setup_experiment()
    manager.learn(model)

    assert config == Path(rl_zoo3.__file__).parent / "hyperparams" / f"{zoo.BASES[name]}.yml"
    assert type(model) is zoo.ALGORITHMS[name] is exp_manager.ALGOS[name]
    assert model._n_updates > 0
    for key, value in yaml.safe_load(config.read_text())[env_id].items():
        assert key in fast or used[key] == value
    manager.save_trained_model(model)
    arguments = ["enjoy", "--algo", name, "--env", env_id, "-f", str(tmp_path)]
    cli.main([*arguments, "-n", "20", "--no-render", "--device", "cpu"])
    assert f"Loading {tmp_path / name / env_id}_1" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in zoo.ALGORITHMS if name != "per_dqn"])
def test_every_search_trains_what_its_stored_trial_is_converted_to(name, study):
    arguments = {"using_her_replay_buffer": False, "her_kwargs": {}}
    small = {"buffer_size": 3000}
    for _ in range(8):
        trial = study.ask()
        trained = hyperparams_opt.HYPERPARAMS_SAMPLER[name](trial, 1, 1, arguments)
        stored = study.trials[trial.number].params
        converted = hyperparams_opt.HYPERPARAMS_CONVERTER[name](stored)

        env_id = "CartPole-v1" if name == "per_qrdqn" else "Pendulum-v1"
        model = zoo.ALGORITHMS[name](
            "MlpPolicy", env_id, device="cpu", **small | copy.deepcopy(trained)
        )
        # RL-Zoo makes the noise of a stored trial itself.
        noise = converted.pop("noise_type", None), converted.pop("noise_std", 0)
        assert (noise[0] is None) == (model.__dict__.get("action_noise") is None)
        trained.pop("action_noise", None)
        assert converted == trained
        assert {"alpha", "prioritization"} <= trained["replay_buffer_kwargs"].keys()
        assert 0 <= trained["beta_initial"] <= 1
        assert "double_q" not in trained


def test_hindsight_replay_is_trained_and_watched_from_a_yaml_file(tmp_path, monkeypatch):
    spec = gym.envs.registration.EnvSpec("BitFlipping-v0", lambda **_: BitFlippingEnv(n_bits=4))
    monkeypatch.setitem(gym.registry, "BitFlipping-v0", spec)
    section = {
        "n_timesteps": 60,
        "policy": "MultiInputPolicy",
        "replay_buffer_class": "PrioritizedHerReplayBuffer",
        "replay_buffer_kwargs": "dict(n_sampled_goal=2, alpha=0.5)",
    }
    (tmp_path / "her.yml").write_text(yaml.safe_dump({"BitFlipping-v0": section}))
    manager = experiment(
        tmp_path,
        "BitFlipping-v0",
        config=str(tmp_path / "her.yml"),
        hyperparams={"learning_starts": 20},
    )

    model, used = manager.setup_experiment()
    manager.learn(model)
    manager.save_trained_model(model)

    assert type(model.replay_buffer) is PrioritizedHerReplayBuffer
    assert (model.replay_buffer.n_sampled_goal, model.replay_buffer.alpha) == (2, 0.5)
    assert model._n_updates > 0
    assert "HerReplayBuffer" in used["replay_buffer_class"]  # what `enjoy` looks for
    arguments = ["enjoy", "--algo", "per_dqn", "--env", "BitFlipping-v0", "-f", str(tmp_path)]
    cli.main([*arguments, "-n", "20", "--no-render", "--device", "cpu"])


def test_a_name_that_is_taken_is_left_alone(monkeypatch):
    monkeypatch.setitem(rl_zoo3.ALGOS, "per_dqn", DQN)

    with pytest.raises(ValueError, match=r"must be free in RL-Zoo's ALGOS, got .*DQN"):
        zoo.register()
    assert rl_zoo3.ALGOS["per_dqn"] is DQN


@pytest.mark.slow
# Raised as an error it would end Box2D's import, and with it the interpreter.
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute")
@pytest.mark.filterwarnings("ignore:10 batches were sampled")  # as dqn_per_buffer.yml says
@pytest.mark.parametrize(("name", "section"), SECTIONS)
def test_every_section_builds_a_model_and_takes_a_gradient_step(tmp_path, name, section):
    path = FILES[name]
    algorithm = "dqn" if name.startswith("dqn") else "per_dqn"
    n_timesteps = yaml.safe_load(path.read_text())[section].get("train_freq", 4) + 1
    manager = experiment(
        tmp_path,
        STAND_INS.get(section, section),
        algorithm=algorithm,
        config=str(path),
        n_timesteps=n_timesteps,
    )

    model, used = manager.setup_experiment()
    manager.learn(model)

    assert model._n_updates > 0
    assert isinstance(model.replay_buffer, PrioritizedReplayBuffer)
    own = yaml.safe_load(path.read_text())[section]
    assert used == own | {"learning_starts": 0, "buffer_size": 1000}


@pytest.mark.parametrize(("name", "section"), SECTIONS)
def test_no_section_sets_env_kwargs_which_do_not_reach_rl_zoos_evaluations(name, section):
    assert "env_kwargs" not in yaml.safe_load(FILES[name].read_text())[section]


@pytest.mark.parametrize("name", ["per_dqn", "per_dqn_rank"])
def test_blind_cliffwalk_is_evaluated_in_the_environment_of_the_training(name, tmp_path):
    manager = experiment(
        tmp_path,
        registration.BLIND_CLIFFWALK_6,
        config=str(FILES[name]),
        n_timesteps=60,
        eval_freq=30,
        n_eval_episodes=1,
    )

    model, _ = manager.setup_experiment()
    manager.learn(model)

    assert model.observation_space.shape == (6,)
    assert len(list(tmp_path.rglob("evaluations.npz"))) == 1


def leaves(value):
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, list):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def reads_as_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", FILES)
def test_numbers_are_numbers(name):
    texts = [leaf for leaf in leaves(yaml.safe_load(FILES[name].read_text())) if type(leaf) is str]

    assert not [text for text in texts if reads_as_number(text)]
    assert reads_as_number(yaml.safe_load("1e-3"))  # what PyYAML takes for text is noticed


@pytest.mark.parametrize("name", FILES)
def test_each_section_says_whether_it_is_tuned(name):
    paragraphs = FILES[name].read_text().split("\n\n")
    sections = [paragraph for paragraph in paragraphs if re.search(r"^\w", paragraph, re.MULTILINE)]

    assert len(sections) == len(yaml.safe_load(FILES[name].read_text()))
    assert all(section.startswith(("# Tuned:", "# Untuned")) for section in sections)


def test_every_environment_of_rl_zoos_own_dqn_file_is_there():
    folder = Path(rl_zoo3.__file__).parent
    theirs = yaml.safe_load((folder / "hyperparams" / "dqn.yml").read_text())

    assert set(theirs) <= set(yaml.safe_load(FILES["per_dqn"].read_text()))


def test_the_file_for_ranks_is_the_other_one_but_for_what_ranks_need():
    proportional, rank = (
        yaml.safe_load(FILES[name].read_text()) for name in ("per_dqn", "per_dqn_rank")
    )

    # They were not measured with ranks.
    recommended = proportional["default"]["replay_buffer_kwargs"]
    assert recommended["uniform_share"] == 0.5
    assert rank.keys() == proportional.keys()
    for name, section in proportional.items():
        options = section.get("replay_buffer_kwargs", {})
        options = {} if options == recommended else options
        options = options | {"prioritization": "rank", "alpha": 0.7}
        # The paper's 0.5 is a default: a section that was tuned with another one keeps that.
        needed = {"beta_initial": section.get("beta_initial", 0.5), "replay_buffer_kwargs": options}
        needed |= TUNED_WITH_RANKS.get(name, {})
        assert rank[name] == section | needed


def test_an_agent_that_is_only_watched_has_no_buffer(monkeypatch, tmp_path):
    monkeypatch.setitem(rl_zoo3.ALGOS, "per_dqn", PERDQN)
    PERDQN("MlpPolicy", "CartPole-v1", buffer_size=500).save(tmp_path / "agent")

    zoo.load_without_buffers()

    agent = rl_zoo3.ALGOS["per_dqn"].load(tmp_path / "agent", env=gym.make("CartPole-v1"))
    assert type(agent) is PERDQN
    assert agent.replay_buffer.buffer_size == 1
    assert {name: rl_zoo3.ALGOS[name].__name__ for name in zoo.ALGORITHMS} == {
        name: algorithm.__name__ for name, algorithm in zoo.ALGORITHMS.items()
    }
    zoo.register()
    assert rl_zoo3.ALGOS["per_dqn"] is PERDQN


@pytest.mark.parametrize(("command", "is_watching"), [("enjoy", True), ("train", False)])
def test_who_trains_gets_a_buffer_and_who_watches_none(monkeypatch, command, is_watching):
    called = []
    monkeypatch.setattr(zoo, "load_without_buffers", lambda: called.append(command))
    monkeypatch.setattr(f"rl_zoo3.{command}.{command}", lambda: None)

    cli.main([command, "--algo", "per_dqn"])

    assert bool(called) == is_watching


@pytest.fixture
def study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))


def test_a_search_trains_what_its_stored_trial_is_converted_to(study):
    seen = set()
    for _ in range(30):
        trial = study.ask()
        trained = sample_per_dqn(trial, 2, 1, {"using_her_replay_buffer": False, "her_kwargs": {}})
        stored = study.trials[trial.number].params

        model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=100, device="cpu", **trained)

        prioritization = model.replay_buffer.prioritization
        assert convert_per_dqn(stored) == trained
        assert prioritization.alpha == stored["alpha"]
        assert prioritization.eps == stored.get("eps", 1e-6)
        assert (model.beta_initial, model.double_q) == (stored["beta_initial"], stored["double_q"])
        seen.add((type(prioritization).__name__, model.double_q))
    assert len(seen) == 4


def test_a_search_draws_eps_on_a_logarithmic_scale(study):
    trials = [study.ask() for _ in range(10)]
    for trial in trials:
        sample_per_dqn(trial, 2, 1, {"using_her_replay_buffer": False, "her_kwargs": {}})

    scales = [trial.distributions["eps"].log for trial in trials if "eps" in trial.params]

    assert scales
    assert all(scales)


def test_a_trial_keeps_the_options_that_are_not_searched(study):
    trial = study.ask()
    options = {"td_error_clip": 1.0, "alpha": 2.0}

    sample_per_dqn(trial, 2, 1, {"using_her_replay_buffer": False, "her_kwargs": options})

    converted = convert_per_dqn(study.trials[0].params)["replay_buffer_kwargs"]
    assert converted["td_error_clip"] == 1.0
    assert converted["alpha"] == trial.params["alpha"] <= 1.0


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")  # a dict is one
def test_a_search_keeps_another_prioritization_and_its_options(study):
    trial = study.ask()
    options = {"prioritization": "lap", "prioritization_kwargs": {"threshold": 1.0}}

    trained = sample_per_dqn(trial, 2, 1, {"using_her_replay_buffer": False, "her_kwargs": options})

    assert trained["replay_buffer_kwargs"].items() >= options.items()
    assert "eps" not in trained["replay_buffer_kwargs"]
    assert trained["beta_initial"] == trained["beta_final"] == 0  # LAP needs no weights
    assert convert_per_dqn(study.trials[0].params) == trained
    PERDQN("MlpPolicy", "CartPole-v1", buffer_size=100, device="cpu", **trained)


def test_a_search_with_hindsight_replay_samples_its_options(study):
    trial = study.ask()
    options = {"goal_selection_strategy": "future", "n_sampled_goal": 9, "copy_info_dict": True}

    trained = sample_per_dqn(trial, 2, 1, {"using_her_replay_buffer": True, "her_kwargs": options})

    sampled = trained["replay_buffer_kwargs"]
    assert sampled["n_sampled_goal"] == trial.params["n_sampled_goal"] <= 5
    assert sampled["copy_info_dict"]
    env = BitFlippingEnv(n_bits=3)
    kind = {"replay_buffer_class": HerReplayBuffer, "buffer_size": 100}
    PERDQN("MultiInputPolicy", env, device="cpu", **kind, **trained)


def test_a_run_continues_with_its_priorities(tmp_path):
    first = experiment(tmp_path, "CartPole-v1", n_timesteps=600, save_replay_buffer=True)
    model, _ = first.setup_experiment()
    first.learn(model)
    first.save_trained_model(model)
    with Path(first.save_path, "replay_buffer.pkl").open("rb") as file:
        saved = pickle.load(file)

    second = experiment(
        tmp_path, "CartPole-v1", trained_agent=str(Path(first.save_path, "CartPole-v1.zip"))
    )
    continued, _ = second.setup_experiment()

    slots = range(saved.size())
    buffer = continued.replay_buffer
    assert buffer.size() == saved.size() >= 600
    probabilities = probabilities_in(buffer, slots)
    assert len(set(probabilities)) > 100
    assert (probabilities == probabilities_in(saved, slots)).all()
    assert (buffer.sample(32).slots == saved.sample(32).slots).all()
    continued.env.close()


@pytest.mark.parametrize("variant", cartpole.VARIANTS)
def test_the_example_and_the_yaml_files_train_with_the_same_settings(variant):
    name = {"proportional": "per_dqn", "rank": "per_dqn_rank"}[variant]
    section = yaml.safe_load(FILES[name].read_text())["CartPole-v1"]
    rate = float(section.pop("learning_rate").removeprefix("lin_"))
    buffer = section.pop("replay_buffer_kwargs")
    gamma, options = cartpole.VARIANTS[variant]
    settings = {**cartpole.SETTINGS, "policy": "MlpPolicy", "gamma": gamma, "n_timesteps": 50_000}

    assert buffer == {"weight_normalization": "mean", **options}
    assert rate == settings.pop("learning_rate")(1.0)
    assert section == settings
