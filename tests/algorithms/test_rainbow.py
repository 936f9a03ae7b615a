"""Rainbow: each part against a slow reference, and all of them together."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERDQN, Rainbow
from tests.support.corridor import Corridor, DictCorridor, make

PLAIN = {"n_atoms": 1, "dueling": False, "noisy": False}
REPLAY = {"prioritization": "proportional", "alpha": 0.6, "beta": (0.4, 1.0), "uniform_share": 0.0}
REPLAY |= {"td_error_clip": "loss", "weight_normalization": "batch"}


def rainbow(env=None, network=(), **options):
    return make(env, Rainbow, policy_kwargs={"net_arch": [8], **dict(network)}, **options)


@pytest.mark.parametrize("options", [{}, {"double_q": True, "n_steps": 3}])
def test_rainbow_without_its_parts_is_perdqn_bit_by_bit(options):
    options = {"double_q": False, "n_steps": 1, "replay_buffer_kwargs": REPLAY, **options}
    env = make_vec_env(Corridor, n_envs=2)
    model = make(env, PERDQN, **options).learn(300)
    same = rainbow(env, PLAIN, **options).learn(300)
    parameters, others = model.get_parameters(), same.get_parameters()
    assert str(parameters["policy.optimizer"]) == str(others["policy.optimizer"])
    for name, value in parameters["policy"].items():
        assert th.equal(value, others["policy"][name])
    slots = np.arange(100)
    probabilities = model.replay_buffer.probabilities(slots)
    np.testing.assert_array_equal(same.replay_buffer.probabilities(slots), probabilities)


@pytest.mark.parametrize("env", [Corridor, DictCorridor])
@pytest.mark.parametrize("network", [{}, {"n_atoms": 1}, {"dueling": False}, {"noisy": False}])
def test_rainbow_trains_with_and_without_each_part(env, network):
    model = rainbow(env(), network).learn(100)
    observation, _ = env().reset()
    action, _ = model.predict(observation, deterministic=True)
    assert isinstance(model.action_space, spaces.Discrete)
    assert model.action_space.contains(int(action))
