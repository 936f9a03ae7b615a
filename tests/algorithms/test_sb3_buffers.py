"""Buffers and models that SB3 has saved continue with priorities."""

import numpy as np
import pytest
from goal_line import goal_envs
from gymnasium import spaces
from models import Point, make
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_per import (
    PERDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
)

DICT = spaces.Dict({"all": spaces.Box(-9, 9, (3,), np.float32)})
SCREEN = spaces.Box(0, 255, (8, 8, 1), np.uint8)


def points(n_envs, space=None):
    return make_vec_env(lambda: Point(True, space), n_envs)


def in_order(buffer, name):
    """Return an array of a buffer, the oldest row first."""
    store = getattr(buffer, name)
    if isinstance(store, dict):
        store = np.concatenate([part.reshape(*part.shape[:2], -1) for part in store.values()], -1)
    return np.roll(store[: buffer.size()], -buffer.pos if buffer.full else 0, axis=0)


@pytest.mark.parametrize("steps", [60, 200])  # half full, and overwritten
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(
    ("space", "policy", "kind"),
    [
        (None, "MlpPolicy", PrioritizedReplayBuffer),
        (DICT, "MultiInputPolicy", PrioritizedDictReplayBuffer),
    ],
)
def test_transitions_get_the_initial_priority(space, policy, kind, n_envs, steps, tmp_path):
    theirs = make(DQN, points(n_envs, space), policy).learn(steps)
    theirs.save_replay_buffer(tmp_path / "buffer")
    model = make(PERDQN, points(n_envs, space), policy)

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
    options = {"optimize_memory_usage": True, "options": optimized, "buffer_size": 120}
    theirs = make(DQN, points(2), **options).learn(200)
    theirs.save_replay_buffer(tmp_path / "buffer")
    # The row at the write head has the newest next observation, and no transition.
    shown = np.roll(theirs.replay_buffer.observations, -theirs.replay_buffer.pos - 1, axis=0)
    for kwargs in ({"buffer_size": 120}, options):
        model = make(PERDQN, points(2), **kwargs)
        model.load_replay_buffer(tmp_path / "buffer")
        ours = model.replay_buffer
        found = ours._get_samples(np.arange(118))
        assert np.array_equal(found.observations.reshape(59, 2, 3), shown[:-1])
        assert np.array_equal(found.next_observations.reshape(59, 2, 3), shown[1:])
        assert ours.n_sampleable == 118


@pytest.mark.parametrize("steps", [60, 200])
def test_frames_of_sb3_buffers_are_stored_once(steps, tmp_path):
    env = VecFrameStack(points(2, SCREEN), 4)
    theirs = make(DQN, env).learn(steps)
    theirs.save_replay_buffer(tmp_path / "buffer")
    model = make(PERDQN, env)

    model.load_replay_buffer(tmp_path / "buffer")

    ours = model.replay_buffer
    found = ours._get_samples(np.arange(len(ours)))
    for name in ("observations", "next_observations"):
        expected = in_order(theirs.replay_buffer, name).reshape(len(ours), -1)
        assert np.array_equal(getattr(found, name).reshape(len(ours), -1), expected)
    assert ours.frames.nbytes < 0.5 * theirs.replay_buffer.observations.nbytes


@pytest.mark.parametrize("truncates", [True, False])
@pytest.mark.parametrize("steps", [60, 203])
@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
def test_hindsight_buffers_are_loaded(steps, truncates, tmp_path):
    options = {"replay_buffer_class": HerReplayBuffer}
    theirs = make(DQN, goal_envs(1), "MultiInputPolicy", **options).learn(steps)
    theirs.save_replay_buffer(tmp_path / "buffer")
    model = make(PERDQN, goal_envs(1), "MultiInputPolicy", **options).learn(20)

    model.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=truncates)

    ours, theirs, model_steps = model.replay_buffer, theirs.replay_buffer, theirs.num_timesteps
    assert type(ours) is PrioritizedHerReplayBuffer
    for name in ("observations", "next_observations", "actions", "rewards"):
        assert np.array_equal(in_order(ours, name), in_order(theirs, name))
    n_running = len(ours) - ours.n_sampleable
    assert n_running == (0 if truncates else model_steps % 9)  # episodes have nine steps
    model.learn(30)
