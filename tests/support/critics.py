"""Small models of the algorithms whose base computes the loss, and transitions for them."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, SAC, TD3

from sb3_per import (
    PERDDPG,
    PERQRDQN,
    PERSAC,
    PERTD3,
    PERTQC,
    PERCrossQ,
    PrioritizedReplayBuffer,
)

PAIRS = [
    (PERSAC, SAC),
    (PERTD3, TD3),
    (PERDDPG, DDPG),
    (PERQRDQN, QRDQN),
    (PERTQC, TQC),
    (PERCrossQ, CrossQ),
]
KINDS = [ours for ours, _ in PAIRS]
ACTORS = [kind for kind in KINDS if kind is not PERQRDQN]
SQUARED = [PERSAC, PERTD3, PERDDPG, PERCrossQ]  # their bases' losses
ALL = pytest.mark.parametrize(("kind", "base"), PAIRS, ids=lambda kind: kind.__name__)
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
UNIFORM = {"replay_buffer_kwargs": {"alpha": 0.0}, "beta_initial": 0.0, "beta_final": 0.0}
# A base algorithm on our buffer samples uniformly, and the same slots as ours.
ON_OUR_BUFFER = {
    "replay_buffer_class": PrioritizedReplayBuffer,
    "replay_buffer_kwargs": {"alpha": 0.0, "beta": 0.0},
}


class Point(gym.Env):
    """Move a point; episodes of nine steps, every second one of them cut by a time limit."""

    def __init__(self, discrete=False, space=None):
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = space or spaces.Box(-9, 9, (3,), np.float32)
        self.time = self.n_episodes = 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.time, self.n_episodes = 0, self.n_episodes + 1
        return self.observation_space.sample(), {}

    def step(self, action):
        self.time += 1
        over, by_time = self.time == 9, self.n_episodes % 2 == 0
        reward = 3 * float(self.np_random.normal())
        return self.observation_space.sample(), reward, over and not by_time, over and by_time, {}


def is_discrete(kind):
    return issubclass(kind, QRDQN)


def make(kind, env=None, policy="MlpPolicy", **options):
    fixed = {"learning_starts": 20, "buffer_size": 150, "batch_size": 8, "train_freq": 1}
    fixed |= {"seed": 0, "device": "cpu", "learning_rate": 1e-3, "gamma": 0.9}
    network = {"net_arch": [16], **options.pop("policy_kwargs", {})}
    env = env or Point(is_discrete(kind))
    return kind(policy, env, policy_kwargs=network, **{**fixed, **options})


def parameters(model):
    return [tensor.detach().clone() for tensor in model.policy.state_dict().values()]


def ready(model, n_rows=60):
    """The same transitions for each model, and what ``train`` needs outside of ``learn``."""
    model._setup_learn(1000)
    random = np.random.default_rng(0)
    for step in range(n_rows):
        observations = random.uniform(-1, 1, (2, 1, 3)).astype(np.float32)
        action = random.integers(3, size=1) if is_discrete(type(model)) else None
        action = random.uniform(-1, 1, (1, 2)) if action is None else action
        rewards, dones = random.normal(size=1) * 3, np.array([step % 7 == 6])
        model.replay_buffer.add(*observations, action, rewards, dones, [{}])
    return model


def critic_optimizer(model):
    return model.policy.optimizer if is_discrete(type(model)) else model.critic.optimizer


def gradients_of_one_step(model, monkeypatch):
    """The gradients that the critic's optimizer sees in a gradient step."""
    optimizer, seen = critic_optimizer(model), []
    step = optimizer.step

    def note(*args):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        seen.extend(grad.clone() for grad in grads if grad is not None)
        return step(*args)

    monkeypatch.setattr(optimizer, "step", note)
    th.manual_seed(7)
    model.train(1, 16)
    return seen


class Still(Point):
    """Every episode begins alike, and observations follow from the actions."""

    def reset(self, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.time, self.place = 0, np.zeros(3, np.float32)
        return self.place.copy(), {}

    def step(self, action):
        self.time += 1
        self.place += np.resize(np.float32(action), 3)
        return self.place.copy(), float(self.place[0]), self.time == 9, False, {}


def given_one_weighted_batch(ours, theirs, monkeypatch):
    """Let a base have our networks, and both sample the same batch, whose weights differ."""
    batch = ours.replay_buffer.sample(16)
    batch = batch._replace(weights=th.linspace(0.1, 2, 16).reshape(-1, 1))
    theirs.policy.load_state_dict(ours.policy.state_dict())
    for model in (ours, theirs):
        monkeypatch.setattr(model.replay_buffer, "sample", lambda *args, **kwargs: batch)
    return batch
