"""Small models of all seven algorithms and of their bases, and the environments they learn on."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import (
    PAPER,
    PERDDPG,
    PERDQN,
    PERQRDQN,
    PERSAC,
    PERTD3,
    PERTQC,
    PERCrossQ,
)

PAIRS = {
    PERDQN: DQN,
    PERSAC: SAC,
    PERTD3: TD3,
    PERDDPG: DDPG,
    PERQRDQN: QRDQN,
    PERTQC: TQC,
    PERCrossQ: CrossQ,
}
CRITICS = [kind for kind in PAIRS if kind is not PERDQN]
ACTORS = [PERSAC, PERTD3, PERDDPG, PERTQC, PERCrossQ]
SQUARED = [PERSAC, PERTD3, PERDDPG, PERCrossQ]  # their bases' losses


def for_kinds(kinds):
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


ALL = for_kinds(PAIRS)
# With PERSAC and others, alpha and beta alone would leave LAP's Huber loss.
UNIFORM = {**PAPER, "alpha": 0.0, "beta": 0.0}


class Point(gym.Env):
    """Random observations; episodes of nine steps, every second one of them truncated."""

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


class Still(Point):
    """All episodes start alike, and observations follow from the actions."""

    def reset(self, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.time, self.place = 0, np.zeros(3, np.float32)
        return self.place.copy(), {}

    def step(self, action):
        self.time += 1
        self.place += np.resize(np.float32(action), 3)
        return self.place.copy(), float(self.place[0]), self.time == 9, False, {}


def is_discrete(kind):
    return issubclass(kind, DQN | QRDQN)


def make(kind=PERDQN, env=None, policy="MlpPolicy", *, options=None, **arguments):
    """
    Make a model that learns fast.

    :param options: Its ``replay_buffer_kwargs``.
    """
    fixed = {"learning_starts": 20, "buffer_size": 150, "batch_size": 8, "train_freq": 1}
    # The learning rate is exact in float32, in which CUDA graphs read it.
    fixed |= {"seed": 0, "device": "cpu", "learning_rate": 2**-10, "gamma": 0.9}
    network = {"net_arch": [16], **arguments.pop("policy_kwargs", {})}
    env = env or Point(is_discrete(kind))
    arguments = {**fixed, "replay_buffer_kwargs": options, **arguments}
    return kind(policy, env, policy_kwargs=network, **arguments)


def ready(model, n_rows=60):
    """Return the model with the same transitions for each, ready for ``train``."""
    model._setup_learn(1000)
    random = np.random.default_rng(0)
    for step in range(n_rows):
        observations = random.uniform(-1, 1, (2, 1, 3)).astype(np.float32)
        action = random.integers(3, size=1) if is_discrete(type(model)) else None
        action = random.uniform(-1, 1, (1, 2)) if action is None else action
        rewards, dones = random.normal(size=1) * 3, np.array([step % 7 == 6])
        infos = [{"TimeLimit.truncated": step % 14 == 6}]
        model.replay_buffer.add(*observations, action, rewards, dones, infos)
    return model


def parameters(model):
    return [tensor.detach().clone() for tensor in model.policy.state_dict().values()]


def all_equal(left, right):
    return all(map(th.equal, left, right))


def logged(model):
    return model.logger.name_to_value


def critic_optimizer(model):
    return model.policy.optimizer if is_discrete(type(model)) else model.critic.optimizer


def gradients_of_one_step(model, monkeypatch):
    """Return the gradients that the critic's optimizer sees in a gradient step."""
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


def sample_always(model, batch, monkeypatch):
    """Make a model sample one batch again and again."""

    monkeypatch.setattr(model.replay_buffer, "sample", lambda *args, **kwargs: batch)


def share_a_weighted_batch(ours, theirs, monkeypatch):
    """Give a base our networks, and both the same batch, whose weights differ."""
    batch = ours.replay_buffer.sample(16)
    batch = batch._replace(weights=th.linspace(0.1, 2, 16).reshape(-1, 1))
    theirs.policy.load_state_dict(ours.policy.state_dict())
    for model in (ours, theirs):
        sample_always(model, batch, monkeypatch)
    return batch


class Betas(BaseCallback):
    """Notes beta at the start of each rollout, by the number of environment steps."""

    def __init__(self):
        super().__init__()
        self.betas = {}

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        self.betas[self.num_timesteps] = self.model.replay_buffer.beta
