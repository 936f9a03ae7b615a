"""The algorithms learn on what their bases learn on, and log what they do."""

import inspect

import numpy as np
import pytest
import torch as th
from builders import probabilities_in
from gymnasium import spaces
from models import (
    ACTORS,
    ALL,
    SQUARED,
    Point,
    all_equal,
    for_kinds,
    is_discrete,
    logged,
    make,
    parameters,
    ready,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

from sb3_per import (
    PERDDPG,
    PERDQN,
    PERQRDQN,
    PERSAC,
    PERTD3,
    PERTQC,
    PERCrossQ,
)

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(4)})


@pytest.mark.parametrize(
    ("space", "policy", "n_envs", "prioritization"),
    [
        (spaces.Discrete(5), "MlpPolicy", 1, "proportional"),
        (spaces.MultiDiscrete([3, 4]), "MlpPolicy", 3, "rank"),
        (spaces.MultiBinary(4), "MlpPolicy", 1, "rank"),
        (IMAGE, "CnnPolicy", 3, "proportional"),
        (DICT, "MultiInputPolicy", 3, "rank"),
    ],
)
def test_dqn_learns_from_every_kind_of_observation(space, policy, n_envs, prioritization):
    env = make_vec_env(lambda: Point(True, space), n_envs=n_envs)
    options = {"prioritization": prioritization}
    model = make(PERDQN, env, policy, options=options, n_steps=2, double_q=True)
    before = parameters(model)

    model.learn(60)

    assert not all_equal(before, parameters(model))
    assert len({*probabilities_in(model.replay_buffer, np.arange(20))}) > 2


@for_kinds([PERSAC, PERTD3, PERDDPG, PERQRDQN, PERTQC])  # CrossQ has no such policies
@pytest.mark.parametrize(("space", "policy"), [(DICT, "MultiInputPolicy"), (IMAGE, "CnnPolicy")])
def test_critics_learn_from_dicts_and_images(kind, space, policy):
    model = make(kind, Point(is_discrete(kind), space), policy, n_steps=2).learn(30)

    assert model._n_updates > 0


@ALL
def test_each_algorithm_learns_and_logs(kind):
    model = ready(make(kind))
    before = parameters(model)

    model.train(5, 16)

    assert not all_equal(before, parameters(model))
    assert len({*probabilities_in(model.replay_buffer, np.arange(60))}) > 5
    names = {"beta", "priority_max", "td_error", "weight_mean", "effective_sample_size"}
    assert {f"train/{name}" for name in names} <= {*logged(model)}
    assert np.isfinite([*logged(model).values()]).all()
    if kind in SQUARED:  # LAP has no weights
        assert logged(model)["train/weight_mean"] == 1.0


@for_kinds(ACTORS)
def test_options_of_actors_and_memory_optimized_storage(kind):
    shared = {"share_features_extractor": True} if kind is not PERCrossQ else {}
    arguments = {"action_noise": NormalActionNoise(np.zeros(2), np.ones(2) / 9)}
    if "use_sde" in inspect.signature(kind).parameters:
        arguments["use_sde"] = True
    model = make(
        kind,
        options={"handle_timeout_termination": False},
        optimize_memory_usage=True,
        buffer_size=40,
        train_freq=(1, "episode"),
        policy_kwargs=shared,
        **arguments,
    ).learn(60)

    assert model._n_updates > 0
    assert probabilities_in(model.replay_buffer, np.array([model.replay_buffer.pos])) == 0


@ALL
def test_networks_of_half_precision(kind):
    model = make(kind)
    name = {PERDQN: "q_net", PERQRDQN: "quantile_net"}.get(kind, "critic")
    network = getattr(model, name)
    forward, before = network.forward, parameters(model)

    def half(*args):
        with th.autocast("cpu", dtype=th.bfloat16):
            return forward(*args)

    network.forward = half
    model.learn(60)

    assert not all_equal(before, parameters(model))


def test_seed_decides_the_run():
    def after(seed, before, is_set_later=False):
        np.random.seed(before)  # noqa: NPY002  # where a buffer without a seed takes its own from
        th.manual_seed(0)
        model = make(seed=None if is_set_later else seed)
        if is_set_later:
            model.set_random_seed(seed)
        return parameters(model.learn(60))

    assert all_equal(after(3, 0), after(3, 1))
    assert not all_equal(after(3, 0), after(4, 0))
    assert all_equal(after(3, 0, is_set_later=True), after(3, 1, is_set_later=True))
