"""Buffers and models that SB3 has saved continue with priorities."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from goal_line import goal_envs
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_per import (
    PERDQN,
    PERSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
)

SETTINGS = {"buffer_size": 120, "learning_starts": 20, "seed": 0, "device": "cpu"}


class Dicts(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Dict({"all": env.observation_space})

    def observation(self, observation):
        return {"all": observation}


class Screens(gym.Env):
    """A screen of 8 x 8 pixels that shows the time; episodes of five steps."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.n = 1
        return np.full((8, 8, 1), self.n, np.uint8), {}

    def step(self, action):
        self.n += 1
        return np.full((8, 8, 1), self.n, np.uint8), 1.0, False, self.n == 6, {}


def dict_envs(n_envs):
    return make_vec_env(lambda: Dicts(gym.make("CartPole-v1", max_episode_steps=8)), n_envs)


def stacked_screens(n_envs):
    return VecFrameStack(make_vec_env(Screens, n_envs), 4)


def cart_poles(n_envs):
    return make_vec_env("CartPole-v1", n_envs, env_kwargs={"max_episode_steps": 8})


def trained(env, kind=DQN, policy="MlpPolicy", steps=60, **options):
    return kind(policy, env, **{**SETTINGS, **options}).learn(steps)


def in_order(buffer, name):
    """Return an array of a buffer, the oldest row first."""
    store = getattr(buffer, name)
    if isinstance(store, dict):
        store = np.concatenate([part.reshape(*part.shape[:2], -1) for part in store.values()], -1)
    return np.roll(store[: buffer.size()], -buffer.pos if buffer.full else 0, axis=0)


@pytest.mark.parametrize("steps", [60, 200])  # half full, and overwritten
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(
    ("make_env", "policy", "kind"),
    [
        (cart_poles, "MlpPolicy", PrioritizedReplayBuffer),
        (dict_envs, "MultiInputPolicy", PrioritizedDictReplayBuffer),
    ],
)
def test_transitions_get_the_initial_priority(make_env, policy, kind, n_envs, steps, tmp_path):
    theirs = trained(make_env(n_envs), policy=policy, steps=steps)
    theirs.save_replay_buffer(tmp_path / "buffer")
    model = PERDQN(policy, make_env(n_envs), **SETTINGS)

    model.load_replay_buffer(tmp_path / "buffer")

    ours = model.replay_buffer
    assert type(ours) is kind
    assert ours.timeouts.any()
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        assert np.array_equal(in_order(ours, name), in_order(theirs.replay_buffer, name))
    probabilities = ours.probabilities(np.arange(len(ours)))
    assert np.allclose(probabilities, 1 / len(ours))
    assert ours.prioritization.largest_priority == 1.0
    model.learn(60)


def test_memory_optimised_buffers_are_loaded(tmp_path):
    optimized = {"handle_timeout_termination": False}
    options = {"optimize_memory_usage": True, "replay_buffer_kwargs": optimized}
    theirs = trained(cart_poles(2), steps=200, **options)
    theirs.save_replay_buffer(tmp_path / "buffer")
    # The row at the write head has the newest next observation, and no transition.
    shown = np.roll(theirs.replay_buffer.observations, -theirs.replay_buffer.pos - 1, axis=0)
    for kwargs in ({}, options):
        model = PERDQN("MlpPolicy", cart_poles(2), **SETTINGS, **kwargs)
        model.load_replay_buffer(tmp_path / "buffer")
        ours = model.replay_buffer
        found = ours._get_samples(np.arange(118))
        assert np.array_equal(found.observations.reshape(59, 2, 4), shown[:-1])
        assert np.array_equal(found.next_observations.reshape(59, 2, 4), shown[1:])
        assert ours.n_sampleable == 118


@pytest.mark.parametrize("steps", [60, 200])
def test_frames_of_sb3_buffers_are_stored_once(steps, tmp_path):
    options = {"policy_kwargs": {"net_arch": [8]}}
    theirs = trained(stacked_screens(2), steps=steps, **options)
    theirs.save_replay_buffer(tmp_path / "buffer")
    model = PERDQN("MlpPolicy", stacked_screens(2), replay_buffer_kwargs={"n_stack": 4}, **SETTINGS)

    model.load_replay_buffer(tmp_path / "buffer")

    ours = model.replay_buffer
    found = ours._get_samples(np.arange(len(ours)))
    for name in ("observations", "next_observations"):
        expected = in_order(theirs.replay_buffer, name).reshape(len(ours), -1)
        assert np.array_equal(getattr(found, name).reshape(len(ours), -1), expected)
    assert ours.frames.n_frames < 2 * len(ours)


@pytest.mark.parametrize("truncates", [True, False])
@pytest.mark.parametrize("steps", [60, 203])
@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
def test_hindsight_buffers_are_loaded(steps, truncates, tmp_path):
    options = {"replay_buffer_class": HerReplayBuffer}
    theirs = trained(goal_envs(1), policy="MultiInputPolicy", steps=steps, **options)
    theirs.save_replay_buffer(tmp_path / "buffer")
    model = trained(goal_envs(1), PERDQN, "MultiInputPolicy", 20, **options)

    model.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=truncates)

    ours, theirs, model_steps = model.replay_buffer, theirs.replay_buffer, theirs.num_timesteps
    assert type(ours) is PrioritizedHerReplayBuffer
    for name in ("observations", "next_observations", "actions", "rewards"):
        assert np.array_equal(in_order(ours, name), in_order(theirs, name))
    n_running = len(ours) - ours.n_sampleable
    assert n_running == (0 if truncates else model_steps % 9)  # episodes have nine steps
    model.learn(30)


def plain(space, actions, n_envs=1):
    buffer = ReplayBuffer(10, space, actions, "cpu", n_envs)
    shape = (n_envs, *space.shape)
    for _ in range(3):
        ones = np.ones(n_envs)
        buffer.add(np.zeros(shape), np.zeros(shape), ones, ones, ones, [{}] * n_envs)
    return buffer


STATE = gym.make("CartPole-v1").observation_space


@pytest.mark.parametrize(
    ("buffer", "options", "rule"),
    [
        (plain(STATE, spaces.Discrete(3)), {}, r"action_space must equal .* got Discrete\(3\)"),
        (plain(STATE, spaces.Discrete(2), 2), {}, "n_envs must equal the model's 1, got 2"),
        (plain(spaces.Box(0, 1, (4,)), spaces.Discrete(2)), {}, "observation_space must equal"),
        (plain(STATE, spaces.Discrete(2)), {"info_keys": ["cost"]}, "SB3's buffers have no infos"),
        ({"a": 1}, {}, "must be a file of save_replay_buffer"),
    ],
)
def test_a_buffer_that_does_not_fit_leaves_the_model_unchanged(buffer, options, rule, tmp_path):
    model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=options, **SETTINGS)
    before = model.replay_buffer, dict(model.replay_buffer_kwargs), model.buffer_size
    (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(buffer))

    with pytest.raises(ValueError, match=rule):
        model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert model.replay_buffer is before[0]
    assert (model.replay_buffer_kwargs, model.buffer_size) == before[1:]


def test_unstacked_observations_do_not_fit_frames_stored_once(tmp_path):
    model = PERDQN("MlpPolicy", stacked_screens(1), replay_buffer_kwargs={"n_stack": 4}, **SETTINGS)
    own, other = model.replay_buffer, plain(model.observation_space, spaces.Discrete(2))
    other.next_observations += 1  # no frames of the observations before
    (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(other))

    with pytest.raises(ValueError, match="n_stack=4 needs observations of 4 frames"):
        model.load_replay_buffer(tmp_path / "buffer.pkl")
    assert model.replay_buffer is own


@pytest.mark.parametrize(
    ("theirs", "ours", "env", "options"),
    [
        (DQN, PERDQN, "CartPole-v1", {}),
        (DQN, PERDQN, "CartPole-v1", {"n_steps": 3}),
        (SAC, PERSAC, "Pendulum-v1", {}),
    ],
)
def test_a_model_of_sb3_continues_with_priorities(theirs, ours, env, options, tmp_path):
    model = trained(env, theirs, **options)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")

    again = ours.load(tmp_path / "model", env=gym.make(env), device="cpu")

    assert type(again.replay_buffer) is PrioritizedReplayBuffer
    assert again.replay_buffer.n_steps == model.n_steps
    assert again.num_timesteps == 60
    expected = {key: value.clone() for key, value in model.policy.state_dict().items()}
    assert all(th.equal(expected[key], value) for key, value in again.policy.state_dict().items())
    again.load_replay_buffer(tmp_path / "buffer")
    again.learn(60, reset_num_timesteps=False)
    assert again.num_timesteps == 120
    assert again._n_updates > model._n_updates
    assert again.replay_buffer.prioritization.largest_priority > 0


def test_a_hindsight_model_of_sb3_continues_with_priorities(tmp_path):
    options = {
        "replay_buffer_class": HerReplayBuffer,
        "replay_buffer_kwargs": {"n_sampled_goal": 3},
    }
    trained(goal_envs(1), policy="MultiInputPolicy", **options).save(tmp_path / "model")

    again = PERDQN.load(tmp_path / "model", env=goal_envs(1), device="cpu")

    assert type(again.replay_buffer) is PrioritizedHerReplayBuffer
    assert again.replay_buffer.n_sampled_goal == 3
    again.learn(60)
