"""Models and buffers that are saved, loaded, deleted, exchanged, and passed on to and from SB3."""

import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from builders import BOX, TWO_ACTIONS, probabilities_in
from gymnasium import spaces
from models import ALL, PAIRS, Point, all_equal, is_discrete, make, parameters
from stable_baselines3.common.buffers import (
    ReplayBuffer,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.save_util import load_from_zip_file, save_to_pkl
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_per import (
    PERDQN,
    PERSAC,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    load_buffer,
    save_buffer,
)
from sb3_per.envs import PointReach
from sb3_per.options import LAP

POINT = Point().observation_space
RANK = {"prioritization": "rank", "alpha": 0.7, "beta": (0.5, 1.0)}


@pytest.mark.parametrize(
    "arguments", [{}, {"options": RANK}, {"n_steps": 3, "double_q": True, "options": RANK}]
)
def test_saved_run_takes_the_same_gradient_steps(arguments, tmp_path):
    model = make(**arguments).learn(150)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")

    loaded = PERDQN.load(tmp_path / "model", env=Point(True))
    loaded.load_replay_buffer(tmp_path / "buffer")
    loaded.set_logger(model.logger)

    for _ in range(5):
        model.train(gradient_steps=2, batch_size=16)
        loaded.train(gradient_steps=2, batch_size=16)
    assert all_equal(parameters(model), parameters(loaded))
    left, right = (probabilities_in(m.replay_buffer, np.arange(150)) for m in (model, loaded))
    assert left.tolist() == right.tolist()


@ALL
def test_each_algorithm_continues_after_loading(kind, tmp_path):
    def env():
        return VecNormalize(make_vec_env(lambda: Point(is_discrete(kind)), n_envs=3))

    model = make(kind, env(), gradient_steps=-1).learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")

    loaded = kind.load(tmp_path / "model", env=env())
    loaded.load_replay_buffer(tmp_path / "buffer")

    assert all_equal(parameters(model), parameters(loaded))
    assert loaded.learn(60, reset_num_timesteps=False).num_timesteps >= 120
    assert not all_equal(parameters(model), parameters(loaded))


def stored_options(model):
    """The model's options, which its buffer has, too; SB3 stores a tuple as a list."""
    options, of_buffer = model.replay_buffer_kwargs, model.replay_buffer.arguments()
    assert {**options, "beta": None} == {**of_buffer, "beta": None}
    assert np.shape(options["beta"]) == np.shape(of_buffer["beta"])
    return {**options, "beta": np.asarray(options["beta"]).tolist()}


@ALL
def test_saved_model_stores_numbers_that_outlive_new_defaults(kind, tmp_path, monkeypatch):
    model = make(kind)
    model.save(tmp_path / "model")
    data, _, _ = load_from_zip_file(tmp_path / "model")
    assert "loss" not in data["replay_buffer_kwargs"].values()
    assert data["replay_buffer_kwargs"]["td_error_clip"] == (1.0 if kind is PERDQN else None)

    new_defaults = {**kind.default_options, "alpha": 0.123, "uniform_share": 0.123}
    monkeypatch.setattr(kind, "default_options", new_defaults)
    loaded = kind.load(tmp_path / "model")

    assert make(kind).replay_buffer.alpha == 0.123
    assert stored_options(loaded) == stored_options(model)


def test_arguments_may_change_on_loading(tmp_path):
    make(n_steps=3).save(tmp_path / "model")

    loaded = PERDQN.load(tmp_path / "model", env=Point(True), n_steps=5, gamma=0.8)
    several = PERDQN.load(tmp_path / "model", env=make_vec_env(lambda: Point(True), n_envs=3))

    assert (loaded.replay_buffer.n_steps, loaded.replay_buffer.gamma) == (5, 0.8)
    assert several.learn(60).replay_buffer.n_envs == 3


# SB3's own models


@ALL
def test_model_of_sb3_continues_with_its_buffer_and_priorities(kind, tmp_path):
    model = make(PAIRS[kind], n_steps=3).learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")

    loaded = kind.load(tmp_path / "model", env=Point(is_discrete(kind)))
    loaded.load_replay_buffer(tmp_path / "buffer")

    assert all_equal(parameters(loaded), parameters(model))
    assert loaded.replay_buffer.alpha == make(kind).replay_buffer.alpha
    assert loaded.replay_buffer.n_steps == 3
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.num_timesteps == len(loaded.replay_buffer) == 120


@ALL
def test_base_loads_a_model_that_was_trained_with_defaults(kind, tmp_path):
    model = make(kind).learn(40)
    model.save(tmp_path / "model")

    loaded = PAIRS[kind].load(tmp_path / "model")

    assert all_equal(parameters(loaded), parameters(model))


@pytest.mark.skipif(
    gym.__version__.startswith("0."), reason="gymnasium finds the metadata of the installed package"
)
def test_agent_loads_where_sb3_per_is_not_installed(tmp_path):
    make().learn(40).save(tmp_path / "model")
    code = (
        "import sys; sys.modules['sb3_per'] = None; from stable_baselines3 import DQN;"
        "own = {'replay_buffer_class': None, 'replay_buffer_kwargs': {}};"
        f"model = DQN.load({str(tmp_path / 'model')!r}, custom_objects=own);"
        "print(model.num_timesteps, type(model.replay_buffer).__name__)"
    )

    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )

    assert run.stdout == "40 ReplayBuffer\n", run.stderr


# Another buffer


def changed_options(buffer_of, model):
    """Let a model continue with the buffer of another one; return the text of the warning."""
    with pytest.warns(UserWarning, match="options of the buffer") as caught:
        model.use_replay_buffer(buffer_of.replay_buffer)
    assert [warning.filename for warning in caught] == [__file__]
    return str(caught[0].message)


def test_model_takes_the_options_of_another_buffer_but_keeps_its_beta(tmp_path):
    other = make(options={"alpha": 0.7, "beta": 0.1}, buffer_size=100).learn(60)
    model = make(options={"alpha": 0.9, "beta": (0.2, 0.8)})

    message = changed_options(other, model)

    assert "alpha" in message
    assert "buffer_size" in message
    assert "beta" not in message
    assert model.replay_buffer_kwargs["beta"] == (0.2, 0.8)
    assert model.learn(30).replay_buffer.beta == 0.8
    model.save(tmp_path / "model")
    again = PERDQN.load(tmp_path / "model", env=Point(True))
    assert (again.replay_buffer.alpha, again.replay_buffer.n_slots) == (0.7, 100)
    assert stored_options(again)["beta"] == [0.2, 0.8]


@pytest.mark.parametrize("arguments", [{}, {"options": RANK}, {"options": LAP}, {"n_steps": 3}])
@pytest.mark.parametrize("n_envs", [1, 3])  # 150 rows, or 49 of three
def test_buffer_with_the_same_options_loads_without_a_warning(arguments, n_envs, tmp_path):
    env = make_vec_env(lambda: Point(True), n_envs=n_envs)
    model = make(PERDQN, env, buffer_size=149, **arguments).learn(60)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    options = dict(model.replay_buffer_kwargs)
    del model.replay_buffer

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert (model.replay_buffer_kwargs, model.buffer_size) == (options, 149)


@pytest.mark.parametrize(
    ("options", "threshold", "beta"),
    [
        ({"prioritization": "lap", "prioritization_kwargs": {"threshold": 0.5}}, 0.5, 0.0),
        ({"prioritization": "proportional", "alpha": 0.1}, None, (0.2, 0.9)),
    ],
)
def test_another_prioritization_brings_its_loss_and_its_beta(options, threshold, beta):
    model = make(PERSAC, options={"prioritization": "proportional", "beta": (0.2, 0.9)})

    changed_options(make(PERSAC, options=options), model)

    assert (model.loss_threshold, model.replay_buffer_kwargs["beta"]) == (threshold, beta)


@pytest.mark.parametrize(
    ("buffer", "named"),
    [
        (ReplayBuffer(10, BOX, spaces.Discrete(3), "cpu"), "observation_space"),
        (ReplayBuffer(10, POINT, TWO_ACTIONS, "cpu"), "action_space"),
        (ReplayBuffer(10, POINT, spaces.Discrete(3), "cpu", n_envs=2), "n_envs"),
        (PrioritizedReplayBuffer(10, BOX, TWO_ACTIONS, "cpu"), "observation_space"),
        (PrioritizedReplayBuffer(10, POINT, spaces.Discrete(3), "cpu", n_steps=3), "n_steps"),
    ],
)
def test_buffer_that_does_not_fit_is_refused_and_the_model_keeps_its_own(buffer, named, tmp_path):
    save_to_pkl(tmp_path / "buffer.pkl", buffer)
    model = make()
    own, options = model.replay_buffer, dict(model.replay_buffer_kwargs)

    with pytest.raises(ValueError, match=named):
        model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert model.learn(30).replay_buffer is own
    assert (model.replay_buffer_kwargs, model.buffer_size) == (options, 150)


def test_n_step_returns_of_another_gamma_are_refused():
    with pytest.raises(ValueError, match="gamma"):
        make(n_steps=3, gamma=0.5).use_replay_buffer(make(n_steps=3).replay_buffer)


# SB3 leaves the file open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_file_of_save_buffer_is_refused_with_what_reads_it(tmp_path):
    model = make().learn(30)
    save_buffer(model.replay_buffer, tmp_path / "buffer.npz")

    with pytest.raises(ValueError, match="load_buffer"):
        model.load_replay_buffer(tmp_path / "buffer.npz")


def test_deleted_buffer_is_replaced_by_a_stored_one(tmp_path):
    model = make().learn(60)
    save_buffer(model.replay_buffer, tmp_path / "buffer.npz")
    del model.replay_buffer  # to save memory
    assert not hasattr(model, "replay_buffer")

    model.use_replay_buffer(load_buffer(tmp_path / "buffer.npz"))

    assert len(model.learn(60, reset_num_timesteps=False).replay_buffer) == 120


def test_buffer_is_loaded_as_it_was_stored(tmp_path):
    model = make().learn(140)  # in the middle of an episode
    stored = {name: array.copy() for name, array in model.replay_buffer.storage().items()}
    model.save_replay_buffer(tmp_path / "buffer")

    model.replay_buffer = None
    model.load_replay_buffer(tmp_path / "buffer")

    loaded = model.replay_buffer.storage()
    assert all(np.array_equal(loaded[name], stored[name]) for name in stored)


def test_buffer_of_another_class_is_made_again_after_saving(tmp_path):
    env = DummyVecEnv([PointReach])
    space, actions = env.observation_space, env.action_space
    hindsight = PrioritizedHerReplayBuffer(300, space, actions, env, "cpu", prioritization="lap")
    model = PERSAC("MultiInputPolicy", env, buffer_size=300, device="cpu", learning_starts=100)

    with pytest.warns(UserWarning, match="n_sampled_goal"):
        model.use_replay_buffer(hindsight)
    model.save(tmp_path / "model")

    loaded = PERSAC.load(tmp_path / "model", env=env, device="cpu")
    assert type(loaded.replay_buffer) is PrioritizedHerReplayBuffer


class NotStratified(PrioritizedReplayBuffer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, stratified=False, **kwargs)


def test_buffer_class_with_fixed_options_is_made_again_after_saving(tmp_path):
    make(replay_buffer_class=NotStratified).learn(60).save(tmp_path / "model")

    loaded = PERDQN.load(tmp_path / "model", env=Point(True))

    assert type(loaded.replay_buffer) is NotStratified
    assert not loaded.replay_buffer.options.stratified


def test_hindsight_buffer_gives_way_to_a_plain_one(tmp_path):
    env = DummyVecEnv([PointReach])
    options = {"buffer_size": 300, "device": "cpu", "learning_starts": 100}
    plain = PERSAC("MultiInputPolicy", env, **options).learn(60).replay_buffer
    model = PERSAC(
        "MultiInputPolicy", env, replay_buffer_class=PrioritizedHerReplayBuffer, **options
    )

    with pytest.warns(UserWarning, match="options of the buffer"):
        model.use_replay_buffer(plain)
    model.save(tmp_path / "model")

    loaded = PERSAC.load(tmp_path / "model", env=env, device="cpu")
    assert type(loaded.replay_buffer) is type(plain)


def test_hindsight_buffers_that_are_exchanged_do_not_join_two_episodes():
    env = DummyVecEnv([lambda: PointReach(discrete=True)])
    model = make(
        env=env,
        policy="MultiInputPolicy",
        replay_buffer_class=PrioritizedHerReplayBuffer,
        learning_starts=100,
    ).learn(21)
    first = model.replay_buffer
    second = PrioritizedHerReplayBuffer(
        150, env.observation_space, env.action_space, env, "cpu", gamma=0.9, **first.arguments()
    )

    for buffer in (second, first):
        model.use_replay_buffer(buffer)
        model.learn(8, reset_num_timesteps=False)

    assert first.ep_start[[20, 21], 0].tolist() == [0, 21]
