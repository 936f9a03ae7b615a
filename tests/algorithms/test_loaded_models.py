"""Models and buffers that are saved, loaded, deleted, exchanged, and passed on to and from SB3."""

import base64
import importlib
import io
import json
import pickle
import subprocess
import sys
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from builders import BOX, TWO_ACTIONS
from checks import assert_same_buffer
from gymnasium import spaces
from models import ALL, PAIRS, Point, Still, all_equal, is_discrete, make, parameters
from own_prioritization import Storable
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from benchmarks.environments import PointReach
from sb3_per import (
    PERDQN,
    PERQRDQN,
    PERSAC,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    Rainbow,
)
from sb3_per.options import LAP, beta_at

POINT = Point().observation_space
RANK = {"prioritization": "rank", "alpha": 0.7, "beta": (0.5, 1.0)}


def options_of(model):
    """The model's options, which its buffer has, too; SB3 stores a tuple as a list."""
    options, of_buffer = model.replay_buffer_kwargs, model.replay_buffer.arguments()
    assert {**options, "beta": None} == {**of_buffer, "beta": None}
    assert np.shape(options["beta"]) == np.shape(of_buffer["beta"])
    return {**options, "beta": np.asarray(options["beta"]).tolist()}


@ALL
def test_saved_model_stores_numbers_that_outlive_new_defaults(kind, tmp_path, monkeypatch):
    model = make(kind)
    model.save(tmp_path / "model")

    new_defaults = {**kind.default_options, "alpha": 0.123, "uniform_share": 0.123}
    new_defaults |= {"td_error_clip": 0.123}
    monkeypatch.setattr(kind, "default_options", new_defaults)
    loaded = kind.load(tmp_path / "model")

    assert make(kind, options={"td_error_clip": None}).replay_buffer.alpha == 0.123
    assert options_of(loaded) == options_of(model)


@pytest.mark.parametrize("kind", [DQN, PERDQN])
def test_arguments_may_change_on_loading(kind, tmp_path):
    make(kind, n_steps=3).save(tmp_path / "model")
    three = make_vec_env(lambda: Point(True), n_envs=3)

    fewer = PERDQN.load(tmp_path / "model", n_steps=1)
    changed = PERDQN.load(tmp_path / "model", env=three, gamma=0.8).learn(60).replay_buffer

    assert fewer.n_steps == fewer.replay_buffer.n_steps == 1
    assert (changed.n_steps, changed.gamma, changed.n_envs) == (3, 0.8, 3)
    if kind is PERDQN:
        make(PERDQN, with_dict(), **N_STEP_DICT).save(tmp_path / "dict")
        assert PERDQN.load(tmp_path / "dict", n_steps=1).replay_buffer.n_steps == 1


# SB3's own models


@ALL
@pytest.mark.parametrize("is_sb3s", [True, False])
def test_model_continues_with_its_buffer_and_priorities(kind, is_sb3s, tmp_path):
    def env():
        return VecNormalize(make_vec_env(lambda: Point(is_discrete(kind)), n_envs=3))

    saved = PAIRS[kind] if is_sb3s else kind
    model = make(saved, env(), n_steps=3, gradient_steps=-1).learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")

    loaded = kind.load(tmp_path / "model", env=env())
    loaded.load_replay_buffer(tmp_path / "buffer")

    assert all_equal(parameters(loaded), parameters(model))
    assert loaded.replay_buffer.alpha == make(kind).replay_buffer.alpha
    assert loaded.replay_buffer.n_steps == 3
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.num_timesteps == len(loaded.replay_buffer) == 120
    assert not all_equal(parameters(loaded), parameters(model))


@pytest.mark.parametrize(
    ("kind", "wrong", "named"),
    [
        (DQN, PERSAC, "PERSAC needs a SACPolicy, got DQNPolicy"),
        (DQN, PERQRDQN, "PERQRDQN needs a QRDQNPolicy, got DQNPolicy"),
        (DQN, Rainbow, "Rainbow needs a RainbowPolicy, got DQNPolicy"),
        (Rainbow, PERDQN, "PERDQN needs a DQNPolicy, got RainbowPolicy"),
    ],
)
def test_model_of_another_algorithm_is_refused_by_its_name(kind, wrong, named, tmp_path):
    make(kind).save(tmp_path / "model")

    with pytest.raises(ValueError, match=named):
        wrong.load(tmp_path / "model")
    assert type(kind.load(tmp_path / "model")) is kind


# Without this package


def stacked():
    return VecFrameStack(DummyVecEnv([lambda: Still(True)]), 3)


def with_goals():
    return DummyVecEnv([lambda: PointReach(discrete=True)])


def with_dict():
    return DummyVecEnv([lambda: Point(True, spaces.Dict({"point": POINT}))])


HER = {"policy": "MultiInputPolicy", "replay_buffer_class": PrioritizedHerReplayBuffer}
N_STEP_DICT = {"policy": "MultiInputPolicy", "n_steps": 3}
PLAIN = [(kind, None, {}) for kind in PAIRS]
VARIANTS = [
    (PERDQN, stacked, {"options": {"n_stack": 3}}),
    (PERDQN, with_goals, {**HER, "learning_starts": 60, "options": {"n_sampled_goal": 2}}),
    (PERDQN, with_dict, N_STEP_DICT),
    (PERDQN, None, {"options": {"beta": lambda left: 1 - left, "prioritization": Storable}}),
]


class SB3Unpickler(pickle.Unpickler):
    """Reads only what SB3 itself stores."""

    def find_class(self, module, name):
        known = "builtins numpy torch gymnasium stable_baselines3 sb3_contrib collections"
        if module.split(".")[0] not in known.split():
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


@pytest.mark.parametrize(("kind", "env", "arguments"), PLAIN + VARIANTS)
def test_fields_of_sb3_hold_only_what_sb3_knows(kind, env, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = make(kind, env() if env else None, **arguments).learn(70)

    model.save("model")

    with zipfile.ZipFile("model.zip") as archive:
        data = json.loads(archive.read("data"))
    for name, value in data.items():
        if isinstance(value, dict) and ":serialized:" in value:
            SB3Unpickler(io.BytesIO(base64.b64decode(value[":serialized:"]))).load()
        else:
            assert "sb3_per" not in str(value) or name == "prioritized_replay"
    loaded = kind.load("model", env=env() if env else None)
    before, after = vars(model.replay_buffer.options), vars(loaded.replay_buffer.options)
    for name in before.keys() - {"beta", "prioritization"}:
        assert before[name] == after[name]
    left = np.linspace(0, 1, 5)
    assert [beta_at(before["beta"], x) for x in left] == [beta_at(after["beta"], x) for x in left]
    assert loaded.n_steps == loaded.replay_buffer.n_steps == model.n_steps
    assert type(loaded.replay_buffer) is type(model.replay_buffer)


WITHOUT_THIS_PACKAGE = """
import sys

sys.modules["sb3_per"] = None
for folder in (sys.path[0], ""):
    sys.path = [place for place in sys.path if place != folder]
import gymnasium as gym
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.envs import BitFlippingEnv

for file in sys.argv[1:]:
    algorithm, _, variant = file.partition("_")
    env = BitFlippingEnv(n_bits=3) if variant == "goals" else None
    model = globals()[algorithm].load(file, env=env, device="cpu")
    assert model.predict(model.observation_space.sample())[0] in model.action_space
    if env is not None:
        model.learn(40)
    model.save(file)
    print(file, model.num_timesteps, type(model.replay_buffer).__name__)
"""


@pytest.mark.skipif(
    gym.__version__.startswith("0."), reason="gymnasium finds the metadata of the installed package"
)
def test_agents_play_and_learn_without_this_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bits = BitFlippingEnv(n_bits=3)
    variants = {"goals": (bits, HER), "dict": (with_dict(), N_STEP_DICT)}
    variants |= {
        "stacks": (stacked(), {"options": {"n_stack": 3}}),
        "steps": (None, {"n_steps": 3}),
    }
    models = {PAIRS[kind].__name__: make(kind) for kind in PAIRS}
    models |= {f"DQN_{name}": make(PERDQN, env, **a) for name, (env, a) in variants.items()}
    for name, model in models.items():
        model.learn(40).save(name)

    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_THIS_PACKAGE, *models],
        capture_output=True,
        text=True,
    )

    used = {"DQN_goals": (40, "HerReplayBuffer"), "DQN_dict": (40, "DictReplayBuffer")}
    used |= {"DQN_steps": (40, "NStepReplayBuffer")}
    lines = [" ".join(map(str, (n, *used.get(n, (40, "ReplayBuffer"))))) for n in models]
    assert run.stdout.splitlines() == lines, run.stderr
    for name, model in models.items():  # which SB3 has saved
        again = type(model).load(name, env=bits if name == "DQN_goals" else None)
        assert options_of(again) == options_of(model)
        assert again.n_steps == model.n_steps


def test_option_that_cannot_be_read_any_more_is_replaced_by_naming_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "module_of_mine.py").write_text("def rising(left):\n    return 1 - left\n")
    mine = importlib.import_module("module_of_mine")
    make(options={"beta": mine.rising, "alpha": 0.3}).save(tmp_path / "rising")
    (tmp_path / "module_of_mine.py").unlink()
    del sys.modules["module_of_mine"]

    with pytest.raises(ModuleNotFoundError, match="module_of_mine"):
        PERDQN.load(tmp_path / "rising")
    loaded = PERDQN.load(tmp_path / "rising", replay_buffer_kwargs={"beta": 0.5})
    assert (loaded.replay_buffer.alpha, loaded.replay_buffer.beta) == (0.3, 0.5)
    DQN.load(tmp_path / "rising", env=Point(True)).learn(60)


def test_excluded_field_loses_none_of_our_options(tmp_path):
    make(options={"alpha": 0.3}).save(tmp_path / "model", exclude=["replay_buffer_kwargs"])

    assert PERDQN.load(tmp_path / "model").replay_buffer.alpha == 0.3


def test_options_that_load_is_given_change_only_themselves(tmp_path):
    options = {"prioritization": "rank", "alpha": 0.3, "handle_timeout_termination": False}
    make(options=options).save(tmp_path / "model")

    changed = PERDQN.load(tmp_path / "model", replay_buffer_kwargs={"eps": 0.1})
    other = PERDQN.load(tmp_path / "model", replay_buffer_kwargs={"prioritization": "lap"})
    same = PERDQN.load(tmp_path / "model", replay_buffer_kwargs=None)

    assert options_of(changed).items() >= {**options, "eps": 0.1}.items()
    assert other.replay_buffer.alpha == LAP["alpha"]
    assert not other.replay_buffer.handle_timeout_termination
    assert same.replay_buffer.alpha == options["alpha"]


def test_class_given_in_place_of_the_stored_one_keeps_its_options(tmp_path):
    options = {"prioritization": Storable, "alpha": 0.3}
    make(options=options).save(tmp_path / "model")

    loaded = PERDQN.load(tmp_path / "model", replay_buffer_kwargs={"prioritization": Storable})

    assert options_of(loaded).items() >= options.items()


# Buffers


@pytest.mark.parametrize(
    ("buffer", "named"),
    [
        (ReplayBuffer(10, BOX, spaces.Discrete(3), "cpu"), "observation_space"),
        (ReplayBuffer(10, POINT, TWO_ACTIONS, "cpu"), "action_space"),
        (ReplayBuffer(10, POINT, spaces.Discrete(3), "cpu", n_envs=2), "n_envs"),
    ],
)
def test_buffer_that_does_not_fit_is_refused(buffer, named, tmp_path):
    save_to_pkl(tmp_path / "buffer.pkl", buffer)
    model = make().learn(30)
    before = model.replay_buffer

    with pytest.raises(ValueError, match=named):
        model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert model.replay_buffer is before
    assert before.size() == 30


@pytest.mark.parametrize("how", ["deleted", "None", "file object"])
def test_buffer_is_loaded_as_it_was_stored(how, tmp_path):
    model = make(options=RANK).learn(140)  # in the middle of an episode
    with (tmp_path / "file").open("w+b") as file:
        path = file if how == "file object" else tmp_path / "buffer"  # with SB3's suffix
        model.save_replay_buffer(path)
        stored = model.replay_buffer
        if how == "deleted":
            del model.replay_buffer  # to save memory
            assert not hasattr(model, "replay_buffer")
        else:
            model.replay_buffer = None
        file.seek(0)
        model.load_replay_buffer(path)

    assert_same_buffer(model.replay_buffer, stored)
    assert model.learn(60, reset_num_timesteps=False).num_timesteps == 200


def test_loaded_buffer_is_on_the_device_of_the_model(tmp_path):
    model = make().learn(60)
    model.save_replay_buffer(tmp_path / "buffer")
    model.device = th.device("meta")
    model.load_replay_buffer(tmp_path / "buffer")

    assert model.replay_buffer.device == model.device


def test_buffer_that_is_exchanged_does_not_join_two_episodes(tmp_path):
    other = make(n_steps=3).learn(41)
    other.save_replay_buffer(tmp_path / "buffer")
    model = make(n_steps=3).learn(47)

    model.load_replay_buffer(tmp_path / "buffer")
    model.learn(5, reset_num_timesteps=False)

    discounts = model.replay_buffer._get_samples(np.array([38, 39, 40])).discounts
    np.testing.assert_allclose(discounts.flatten(), [0.9**3, 0.9**2, 0.9], rtol=1e-6)


def test_buffer_without_priorities_does_not_train():
    model = make()
    model.replay_buffer = ReplayBuffer(100, model.observation_space, model.action_space)

    with pytest.raises(ValueError, match="must be a PrioritizedReplayBuffer, got ReplayBuffer"):
        model.learn(10)

    assert model.num_timesteps == 0


class NotStratified(PrioritizedReplayBuffer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, stratified=False, **kwargs)


def test_buffer_class_with_fixed_options_is_loaded(tmp_path):
    make(replay_buffer_class=NotStratified).learn(60).save(tmp_path / "model")

    loaded = PERDQN.load(tmp_path / "model", env=Point(True))

    assert type(loaded.replay_buffer) is NotStratified
    assert not loaded.replay_buffer.options.stratified


def test_buffer_class_that_load_is_given_replaces_the_stored_one(tmp_path):
    make(replay_buffer_class=NotStratified).save(tmp_path / "model")

    loaded = PERDQN.load(tmp_path / "model", replay_buffer_class=PrioritizedReplayBuffer)

    assert type(loaded.replay_buffer) is PrioritizedReplayBuffer
