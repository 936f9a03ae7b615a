"""Small models of DQN and PERDQN, for what is asked of both."""

import pytest
import torch as th
from stable_baselines3 import DQN

from sb3_per import PERDQN

BOTH = pytest.mark.parametrize("kind", [DQN, PERDQN])
SMALL = {"buffer_size": 300, "learning_starts": 30, "train_freq": 2, "seed": 0, "device": "cpu"}


def make(kind, env="CartPole-v1", policy="MlpPolicy", **options):
    network = {"policy_kwargs": {"net_arch": [16]}}
    return kind(policy, env, **{**SMALL, **network, **options})


def weights(model):
    return [tensor.detach().clone() for tensor in model.policy.state_dict().values()]


def same(left, right):
    return all(th.equal(one, other) for one, other in zip(left, right, strict=True))
