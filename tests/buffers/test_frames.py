"""Frames that are stored once: batches equal, byte for byte, those of whole observations."""

import pickle
from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from builders import DICT, TWO_ACTIONS
from checks import assert_same_batch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from sb3_per import PERDQN, PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")

# Of a frame.
FRAMES = {
    "image": spaces.Box(0, 255, (5, 4, 1), np.uint8),
    "colours": spaces.Box(0, 255, (5, 4, 3), np.uint8),
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    # With stacks of 2 or 4, these can be read along either axis.
    "small image": spaces.Box(0, 255, (4, 4, 4), np.uint8),
    "planes": spaces.Box(0, 1, (4, 5, 8), np.bool_),
    "row": spaces.Box(-np.inf, np.inf, (4, 8), np.float32),
}


class Player:
    """Environments with episodes of random lengths, behind ``VecFrameStack``'s own stacking."""

    def __init__(self, frames="image", *, n_envs=2, n_stack=4, ends_in=4, first=False, seed=0):
        self.random = np.random.default_rng(seed)
        self.frame_space, self.n_envs, self.ends_in = FRAMES[frames], n_envs, ends_in
        order = "first" if first else "last"
        self.stacking = StackedObservations(n_envs, n_stack, self.frame_space, order)
        self.space = self.stacking.stacked_observation_space
        self.reset()

    def reset(self):
        self.observations = self.stacking.reset(self.frames()).copy()

    def frames(self):
        shape = (self.n_envs, *self.frame_space.shape)
        if self.frame_space.dtype == np.float32:
            return self.random.normal(size=shape).astype(np.float32)
        # Many zeros: frames that are black must not be taken for those before an episode.
        is_black = self.random.random((self.n_envs, *[1] * (len(shape) - 1))) < 0.3
        numbers = self.random.integers(0, 3, size=shape)
        return np.where(is_black, 0, numbers).astype(self.frame_space.dtype)

    def step(self):
        """What an algorithm adds to its buffer: as ``OffPolicyAlgorithm._store_transition``."""
        dones = self.random.random(self.n_envs) < 1 / self.ends_in
        cuts = dones & (self.random.random(self.n_envs) < 0.5)
        last = self.frames()
        infos = [
            {"TimeLimit.truncated": cut, **({"terminal_observation": frame} if done else {})}
            for cut, done, frame in zip(cuts, dones, last, strict=True)
        ]
        before = self.observations
        new = np.where(dones.reshape(-1, *[1] * (last.ndim - 1)), self.frames(), last)
        stacked, infos = self.stacking.update(new, dones, infos)
        self.observations = stacked.copy()
        then = self.observations.copy()
        for env in np.flatnonzero(dones):
            then[env] = infos[env]["terminal_observation"]
        actions = self.random.integers(2, size=self.n_envs)
        return before, then, actions, self.random.normal(size=self.n_envs), dones, infos


def make(player, n_rows, **options):
    np.random.seed(1)  # noqa: NPY002  # where buffers take their seed from
    sizes = (n_rows * player.n_envs, player.space, TWO_ACTIONS, "cpu", player.n_envs)
    return PrioritizedReplayBuffer(*sizes, **options)


def add(player, n_rows, *buffers):
    for _ in range(n_rows):
        transition = player.step()
        for buffer in buffers:
            buffer.add(*transition)


def assert_all_equal(ours, plain):
    slots = np.arange(len(plain))
    for found, other in zip(ours._get_samples(slots), plain._get_samples(slots), strict=True):
        assert found is other is None or found.numpy().tobytes() == other.numpy().tobytes()
        assert found is other is None or (found.dtype, found.shape) == (other.dtype, other.shape)


def assert_frames_are_kept(buffer):
    """No frame is both free and in use, none is lost, and none is listed twice."""
    store, n_stored_rows = buffer.frames, buffer.size()
    if store.counters[2] != buffer.pos + buffer.full * buffer.buffer_size:
        return  # after `reset`, the next `add` makes the list
    used = set(store.following[:n_stored_rows].ravel().tolist())
    for frame in store.newest[:n_stored_rows].ravel().tolist():
        for _ in range(store.n_stack):
            if frame >= 0:
                used.add(frame)
                frame = store.previous[frame]
    free, frame = [], store.counters[0]
    while frame >= 0:
        free.append(int(frame))
        frame = store.previous[frame]
    assert sorted([*used, *free]) == list(range(store.n_frames))


@settings(max_examples=100)
@given(
    frames=st.sampled_from([*FRAMES]),
    first=st.booleans(),
    n_stack=st.integers(2, 5),
    n_rows=st.integers(1, 9),
    sizes=st.fixed_dictionaries(
        {
            "n_envs": st.integers(1, 3),
            "ends_in": st.sampled_from([1, 2, 4, 30]),
            "seed": st.integers(0, 10_000),
        }
    ),
    options=st.fixed_dictionaries(
        {
            "prioritization": st.sampled_from(["proportional", "rank"]),
            "n_steps": st.sampled_from([1, 3]),
            "handle_timeout_termination": st.booleans(),
        }
    ),
    happenings=st.lists(
        st.sampled_from(["add", "add", "add", "extend", "sample", "reset", "restart", "pickle"]),
        min_size=8,
        max_size=25,
    ),
)
def test_batches_equal_those_of_a_buffer_that_stores_whole_observations(
    frames, first, n_stack, n_rows, sizes, options, happenings
):
    player = Player(frames, n_stack=n_stack, first=first, **sizes)
    ours = make(player, n_rows, n_stack=n_stack, frames_first=first, **options)
    plain = make(player, n_rows, **options)

    for happening in ["add", *happenings]:
        ours = happen(happening, player, ours, plain)
        assert_all_equal(ours, plain)
        assert_frames_are_kept(ours)


def happen(happening, player, ours, plain):
    """Do the same to both buffers; return ours, which may be a new one."""
    if happening == "add":
        add(player, 3, ours, plain)
    elif happening == "extend":
        steps = [player.step() for _ in range(5)]
        ours.extend(*zip(*steps, strict=True))
        plain.extend(*zip(*steps, strict=True))
    elif happening == "sample" and len(plain):
        batch = ours.sample(6)
        assert_same_batch(batch, plain.sample(6))
        for buffer in (ours, plain):
            buffer.update_priorities(batch.slots, batch.rewards)
    elif happening == "reset":
        ours.reset()
        plain.reset()
    elif happening == "restart":  # no episode ends, as when `learn` is called again
        player.reset()
    elif happening == "pickle":
        ours = pickle.loads(pickle.dumps(ours))
    return ours


# On which axis frames are stacked


@pytest.mark.parametrize(
    ("shape", "dtype", "is_first"),
    [
        ((4, 5, 12), np.uint8, True),  # SB3 takes the shortest axis of an image for its channels
        ((12, 8, 4), np.uint8, False),
        ((3, 3, 4), np.uint8, False),
        ((4, 8), np.float32, True),  # as gymnasium stacks
        ((8, 8), np.float32, False),
        ((8, 3), np.float32, True),
    ],
)
def test_axis_of_the_frames_follows_from_the_space(shape, dtype, is_first):
    space = spaces.Box(0, 255, shape, dtype)
    buffer = PrioritizedReplayBuffer(9, space, TWO_ACTIONS, "cpu", n_stack=4)

    assert buffer.frames.layout.frames_first == is_first


@pytest.mark.parametrize("first", [True, False])
def test_frames_on_another_axis_are_refused_with_the_option(first):
    player = Player("row", first=first)
    buffer = make(player, 30, n_stack=4, frames_first=not first)

    with pytest.raises(ValueError, match=f"set frames_first={first}"):
        add(player, 9, buffer)


# Memory


def test_frame_is_stored_once():
    player = Player(ends_in=10**9)
    buffer = make(player, 100, n_stack=4)

    add(player, 1000, buffer)

    # For each environment: a frame of each step, the last one, and three before the oldest.
    assert buffer.frames.n_frames <= 2 * (100 + 1 + 3 + 1)


def test_short_episodes_lose_nothing():
    player = Player(n_envs=1, ends_in=1)
    ours, plain = make(player, 200, n_stack=4), make(player, 200)

    add(player, 500, ours, plain)

    assert_all_equal(ours, plain)
    assert ours.frames.n_frames <= 2 * (200 + 1)


# Errors


@pytest.mark.parametrize("first", [False, True])
def test_observation_that_is_no_stack_changes_nothing(first):
    player = Player(first=first)
    buffer = make(player, 10, n_stack=4, frames_first=first)
    add(player, 5, buffer)
    before = pickle.dumps(buffer)
    observations, then, *rest = player.step()
    then[1].flat[0] += 1  # one pixel of one frame

    with pytest.raises(ValueError, match="n_stack"):
        buffer.add(observations, then, *rest)

    assert pickle.dumps(buffer) == before


def test_add_may_be_repeated_after_it_failed():
    player = Player(n_stack=3)
    ours, plain = make(player, 7, n_stack=3), make(player, 7)

    for i in range(60):
        transition = player.step()
        if i % 5 == 4:
            observations, then, _, *rest = transition
            with pytest.raises(ValueError, match="reshape"):
                ours.add(observations, then, np.zeros(5), *rest)
        ours.add(*transition)
        plain.add(*transition)
        assert_all_equal(ours, plain)
        assert_frames_are_kept(ours)


def test_spaces_without_stacks_are_refused():
    with pytest.raises(ValueError, match="Box"):
        PrioritizedDictReplayBuffer(10, DICT, TWO_ACTIONS, "cpu", n_stack=4)
    with pytest.raises(ValueError, match="divide"):
        make(Player(n_stack=3), 10, n_stack=2)


# In an algorithm


class ThroughPixels(gym.Env):
    """Random images after a blank one, and short episodes, the longest cut by a time limit."""

    observation_space = spaces.Box(0, 255, (36, 40, 1), np.uint8)
    action_space = TWO_ACTIONS

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps = 0
        return np.zeros_like(self.observation_space.low), {}

    def step(self, action):
        self.n_steps += 1
        ended = bool(self.np_random.random() < 0.1)
        return self.observation_space.sample(), 1.0, ended, self.n_steps == 15, {}


class FloatImages(ThroughPixels):
    """Stacks of these images can be read along either axis."""

    observation_space = spaces.Box(0, 1, (4, 6, 8), np.float32)


def train(env_kind, n_stack, order):
    env = VecFrameStack(DummyVecEnv([env_kind] * 2), 4, order)
    for one in env.unwrapped.envs:
        one.observation_space = deepcopy(one.observation_space)
        one.observation_space.seed(0)
    cnn = {"features_extractor_kwargs": {"features_dim": 8}}
    model = PERDQN(
        "MlpPolicy" if order else "CnnPolicy",
        env,
        buffer_size=60,
        learning_starts=20,
        batch_size=8,
        seed=0,
        device="cpu",
        policy_kwargs={} if order else cnn,
        replay_buffer_kwargs={"n_stack": n_stack},
    )
    return model.learn(60).learn(60, reset_num_timesteps=False)


@pytest.mark.parametrize(
    ("env_kind", "order"), [(ThroughPixels, None), (FloatImages, "first"), (FloatImages, "last")]
)
def test_perdqn_learns_the_same_with_the_option(env_kind, order):
    ours, plain = (train(env_kind, n_stack, order) for n_stack in (4, 1))

    assert ours.replay_buffer.frames is not None
    assert_all_equal(ours.replay_buffer, plain.replay_buffer)
    for found, other in zip(ours.policy.parameters(), plain.policy.parameters(), strict=True):
        assert th.equal(found, other)


def cart_pole():
    env = VecFrameStack(make_vec_env("CartPole-v1"), 4)
    options = {"buffer_size": 500, "learning_starts": 10, "seed": 0, "device": "cpu"}
    return PERDQN("MlpPolicy", env, **options, replay_buffer_kwargs={"n_stack": 4})


def test_training_goes_on_after_a_callback_has_stopped_it():
    model = cart_pole().learn(1000, callback=StopTrainingOnMaxEpisodes(3))

    model.learn(50, reset_num_timesteps=False)

    assert model.replay_buffer.size() == model.num_timesteps - 1  # SB3 drops the step of the stop


def test_set_env_helps_after_environments_were_used_elsewhere():
    model = cart_pole().learn(103)
    evaluate_policy(model, model.get_env(), n_eval_episodes=1)
    with pytest.raises(ValueError, match="set_env"):
        model.learn(50, reset_num_timesteps=False)

    model.set_env(model.get_env())

    model.learn(50, reset_num_timesteps=False)


def test_normalized_observations_are_refused_before_training():
    model = cart_pole()
    env = model.get_env()

    with pytest.raises(ValueError, match="norm_obs"):
        model.set_env(VecNormalize(VecFrameStack(make_vec_env("CartPole-v1"), 4)))

    assert model.get_env() is env
