import pickle
from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from builders import DICT, TWO_ACTIONS
from checks import assert_same_batch, assert_same_buffer
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from sb3_per import (
    PERDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    load_buffer,
    load_checkpoint,
    save_buffer,
    save_checkpoint,
)

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")

FRAMES = {
    "image": spaces.Box(0, 255, (5, 4, 1), np.uint8),
    "colours": spaces.Box(0, 255, (5, 4, 3), np.uint8),
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "planes": spaces.Box(0, 1, (4, 5, 2), np.bool_),
}


class Player:
    """Environments with episodes of random lengths, behind ``VecFrameStack``'s own stacking."""

    def __init__(self, seed, frame_space, n_envs, n_stack, ends_in=4, transposed=False):
        self.random = np.random.default_rng(seed)
        self.frame_space, self.n_envs, self.ends_in = frame_space, n_envs, ends_in
        self.stacking = StackedObservations(n_envs, n_stack, frame_space)
        space = self.stacking.stacked_observation_space
        self.transposed = transposed
        if transposed:
            height, width, channels = space.shape
            space = spaces.Box(0, 255, (channels, height, width), np.uint8)
        self.space = space
        self.reset()

    def reset(self):
        self.observations = self.stacking.reset(self.frames()).copy()

    def frames(self):
        shape = (self.n_envs, *self.frame_space.shape)
        if self.frame_space.dtype == np.float32:
            return self.random.normal(size=shape).astype(np.float32)
        # Many zeros: frames that are black must not be taken for those before an episode.
        return self.random.integers(0, 3, size=shape).astype(self.frame_space.dtype) * (
            self.random.random((self.n_envs, *[1] * (len(shape) - 1))) < 0.7
        ).astype(self.frame_space.dtype)

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
        if self.transposed:
            before, then = (np.moveaxis(each, -1, 1) for each in (before, then))
        actions = self.random.integers(2, size=self.n_envs)
        return before, then, actions, self.random.normal(size=self.n_envs), dones, infos


def seeded(*arguments, **options):
    np.random.seed(1)  # noqa: NPY002  # where buffers take their seed from
    return PrioritizedReplayBuffer(*arguments, **options)


def make(player, n_rows, **options):
    arguments = (n_rows * player.n_envs, player.space, TWO_ACTIONS, "cpu", player.n_envs)
    return seeded(*arguments, **options)


def assert_all_equal(ours, plain):
    if not plain.n_stored:
        return
    slots = np.arange(plain.n_stored)
    for own, other in zip(ours.gather(slots), plain.gather(slots), strict=True):
        assert own is other is None or own.numpy().tobytes() == other.numpy().tobytes()
        assert own is other is None or (own.dtype, own.shape) == (other.dtype, other.shape)


def assert_frames_are_kept(buffer):
    """No frame is both free and in use, none is lost, and none is listed twice."""
    store, n_stored_rows = buffer.frames, buffer.size()
    if store.counters[2] != buffer.n_added:
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


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([*FRAMES, "transposed"]),
    n_stack=st.integers(2, 5),
    n_envs=st.integers(1, 3),
    n_rows=st.integers(1, 9),
    ends_in=st.sampled_from([1, 2, 4, 30]),
    seed=st.integers(0, 10_000),
    options=st.fixed_dictionaries(
        {
            "prioritization": st.sampled_from(["proportional", "rank"]),
            "alpha": st.sampled_from([0.0, 0.6]),
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
    kind, n_stack, n_envs, n_rows, ends_in, seed, options, happenings
):
    transposed = kind == "transposed"
    frame_space = FRAMES["image" if transposed else kind]
    player = Player(seed, frame_space, n_envs, n_stack, ends_in, transposed)
    ours = make(player, n_rows, n_stack=n_stack, **options)
    plain = make(player, n_rows, **options)

    for happening in ["add", *happenings]:
        ours = happen(happening, player, ours, plain)
        assert_all_equal(ours, plain)
        assert_frames_are_kept(ours)


def happen(happening, player, ours, plain):
    """Do to both buffers the same; return our buffer, which may be a new one."""
    if happening == "add":
        add_to_both(player, 3, ours, plain)
    elif happening == "extend":
        steps = [player.step() for _ in range(5)]
        ours.extend(*zip(*steps, strict=True))
        plain.extend(*zip(*steps, strict=True))
    elif happening == "sample" and plain.n_stored:
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


def add_to_both(player, n_rows, ours, plain):
    for _ in range(n_rows):
        transition = player.step()
        ours.add(*transition)
        plain.add(*transition)


def test_one_environment_that_ends_leaves_the_others_alone_over_many_wraparounds():
    player = Player(3, FRAMES["image"], n_envs=4, n_stack=4, ends_in=6)
    ours, plain = make(player, 11, n_stack=4), make(player, 11)

    for _ in range(200):
        add_to_both(player, 1, ours, plain)
        assert_all_equal(ours, plain)

    assert_frames_are_kept(ours)


def test_after_a_reset_within_an_episode_the_frames_before_it_are_still_seen():
    player = Player(0, FRAMES["vector"], n_envs=2, n_stack=4, ends_in=30)
    ours, plain = make(player, 9, n_stack=4), make(player, 9)
    add_to_both(player, 6, ours, plain)

    ours.reset()
    plain.reset()
    add_to_both(player, 3, ours, plain)

    assert_all_equal(ours, plain)
    assert_frames_are_kept(ours)


def test_a_frame_is_stored_once():
    player = Player(0, FRAMES["image"], n_envs=2, n_stack=4, ends_in=10**9)
    buffer = make(player, 100, n_stack=4)

    for _ in range(1000):
        buffer.add(*player.step())

    # For each environment: a frame of each step, the last one, and three before the oldest.
    assert buffer.frames.n_frames <= 2 * (100 + 1 + 3 + 1)
    assert len(buffer.frames.chunks) == 1


def test_short_episodes_take_more_memory_and_lose_nothing():
    player = Player(0, FRAMES["image"], n_envs=1, n_stack=4, ends_in=1)
    ours, plain = make(player, 200, n_stack=4), make(player, 200)

    add_to_both(player, 500, ours, plain)

    assert_all_equal(ours, plain)
    assert len(ours.frames.chunks) > 1
    assert ours.frames.n_frames <= 2 * (200 + 1)


@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_no_stack_is_refused_before_anything_changes(transposed):
    player = Player(0, FRAMES["image"], n_envs=2, n_stack=4, transposed=transposed)
    buffer = make(player, 10, n_stack=4)
    for _ in range(5):
        buffer.add(*player.step())
    before = pickle.dumps(buffer)
    observations, then, *rest = player.step()
    then = then.copy()
    then[1].flat[0] += 1  # one pixel of one frame

    axis = "first" if transposed else "last"
    with pytest.raises(ValueError, match=f"on the {axis} axis.*leave n_stack out.*set_env"):
        buffer.add(observations, then, *rest)

    assert pickle.dumps(buffer) == before


def test_an_add_that_fails_after_the_frames_can_be_made_up_for():
    player = Player(0, FRAMES["image"], n_envs=2, n_stack=3)
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


def test_dict_observations_are_refused():
    with pytest.raises(ValueError, match=r"n_stack=4 needs Box observations.*leave n_stack out"):
        PrioritizedDictReplayBuffer(10, DICT, TWO_ACTIONS, "cpu", n_stack=4)


def test_memory_optimised_storage_is_refused():
    player = Player(0, FRAMES["image"], n_envs=1, n_stack=4)
    with pytest.raises(ValueError, match="n_stack must be 1 with optimize_memory_usage"):
        make(player, 9, n_stack=4, optimize_memory_usage=True, handle_timeout_termination=False)


def test_channels_that_are_not_so_many_frames_are_refused():
    player = Player(0, FRAMES["image"], n_envs=1, n_stack=3)
    with pytest.raises(ValueError, match="n_stack=2 must divide the number of channels"):
        make(player, 10, n_stack=2)


@pytest.mark.parametrize("n_stack", [0, -1, 2.0, True, "4"])
def test_n_stack_must_be_a_whole_number(n_stack):
    player = Player(0, FRAMES["image"], n_envs=1, n_stack=4)
    with pytest.raises(ValueError, match="n_stack must be a whole number of at least 1"):
        make(player, 10, n_stack=n_stack)


@pytest.mark.parametrize("n_added", [0, 3, 8, 30])
@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
def test_a_stored_buffer_goes_on_with_the_same_batches(n_added, prioritization, tmp_path):
    player = Player(5, FRAMES["image"], n_envs=2, n_stack=4, ends_in=2)
    buffer = make(player, 8, n_stack=4, prioritization=prioritization)
    for _ in range(n_added):
        buffer.add(*player.step())

    save_buffer(buffer, tmp_path / "buffer")
    loaded = load_buffer(tmp_path / "buffer", "cpu")

    assert_same_buffer(loaded, buffer)
    for _ in range(30):
        transition = player.step()
        loaded.add(*transition)
        buffer.add(*transition)
        assert_same_batch(loaded.sample(5), buffer.sample(5))
        assert_all_equal(loaded, buffer)


@pytest.mark.parametrize(
    ("name", "frame"), [("newest", -1), ("newest", 10**9), ("following", 10**9), ("previous", -2)]
)
def test_a_file_that_names_frames_that_it_does_not_have_is_refused(name, frame, tmp_path):
    player = Player(5, FRAMES["image"], n_envs=2, n_stack=4)
    buffer = make(player, 8, n_stack=4)
    for _ in range(5):
        buffer.add(*player.step())
    buffer.storage()[f"frames/{name}"].flat[3] = frame

    save_buffer(buffer, tmp_path / "buffer")

    with pytest.raises(ValueError, match=f"{name} frames must lie in"):
        load_buffer(tmp_path / "buffer", "cpu")


@pytest.mark.parametrize("n_frames", [None, -1, 10**9, 2.0, "all"])
def test_a_number_of_frames_that_do_not_fit_is_refused(n_frames):
    buffer = make(Player(5, FRAMES["image"], n_envs=2, n_stack=4), 8, n_stack=4)

    with pytest.raises(ValueError, match=r"n_frames must lie in \[0, 90\]"):
        buffer.restore({**buffer.state(), "n_frames": n_frames})


class Memory:
    """A ``psutil`` that knows of a kilobyte of free memory."""

    available = 1000

    @classmethod
    def virtual_memory(cls):
        return cls


def test_the_constructor_warns_of_memory_that_is_not_free(monkeypatch):
    monkeypatch.setattr("sb3_per.buffers.frames.psutil", Memory)
    space = spaces.Box(0, 255, (84, 84, 4), np.uint8)

    with pytest.warns(UserWarning, match=r"needs 7\.\d+ GB when it is full, and 0\.00 GB are free"):
        PrioritizedReplayBuffer(1_000_000, space, TWO_ACTIONS, "cpu", n_stack=4)


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
def test_a_thousand_steps_of_breakout_are_sampled_as_without_the_option(transposed):
    import ale_py  # not among the oldest versions, with which the slow tests do not run

    gym.register_envs(ale_py)
    env = make_atari_env("BreakoutNoFrameskip-v4", n_envs=2, seed=0)
    env = VecFrameStack(env, 4)
    env = VecTransposeImage(env) if transposed else env
    arguments = (800, env.observation_space, env.action_space, "cpu", 2)
    ours, plain = (seeded(*arguments, n_stack=n_stack) for n_stack in (4, 1))
    random = np.random.default_rng(0)
    observations = env.reset()
    n_ends = 0

    for _ in range(600):
        actions = random.integers(env.action_space.n, size=2)
        new, rewards, dones, infos = env.step(actions)
        then = deepcopy(new)
        for i in np.flatnonzero(dones):
            then[i] = infos[i]["terminal_observation"]
        ours.add(observations, then, actions, rewards, dones, infos)
        plain.add(observations, then, actions, rewards, dones, infos)
        observations, n_ends = new, n_ends + dones.sum()

    assert n_ends > 5
    assert_all_equal(ours, plain)
    for _ in range(9):
        assert_same_batch(ours.sample(32), plain.sample(32))


class ThroughPixels(gym.Env):
    """Random images and short episodes, the longest of which a time limit ends."""

    observation_space = spaces.Box(0, 255, (36, 40, 1), np.uint8)
    action_space = TWO_ACTIONS

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.n_steps += 1
        ended = bool(self.np_random.random() < 0.1)
        return self.observation_space.sample(), 1.0, ended, self.n_steps == 15, {}


def train(n_stack, alpha):
    env = VecFrameStack(DummyVecEnv([ThroughPixels] * 2), 4)
    for one in env.unwrapped.envs:
        one.observation_space = deepcopy(one.observation_space)
        one.observation_space.seed(0)
    model = PERDQN(
        "CnnPolicy",
        env,
        buffer_size=60,
        learning_starts=20,
        batch_size=8,
        seed=0,
        device="cpu",
        policy_kwargs={"features_extractor_kwargs": {"features_dim": 8}},
        replay_buffer_kwargs={"n_stack": n_stack, "alpha": alpha, "n_steps": 1},
    )
    return model.learn(60).learn(60, reset_num_timesteps=False)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_perdqn_learns_the_same_with_the_option(alpha):
    ours, plain = train(4, alpha), train(1, alpha)

    assert ours.replay_buffer.frames is not None
    assert_all_equal(ours.replay_buffer, plain.replay_buffer)
    for own, other in zip(ours.policy.parameters(), plain.policy.parameters(), strict=True):
        assert th.equal(own, other)


class FloatImages(gym.Env):
    """Random images of floating-point numbers, whose stacks can be read along either axis."""

    observation_space = spaces.Box(0, 1, (4, 6, 8), np.float32)
    action_space = TWO_ACTIONS

    def __init__(self):
        self.random = np.random.default_rng(0)

    def image(self):
        return self.random.random(self.observation_space.shape).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        return self.image(), {}

    def step(self, action):
        return self.image(), 0.0, self.random.random() < 0.2, False, {}


@pytest.mark.parametrize("channels_order", ["first", "last"])
def test_the_first_row_tells_the_axis_if_the_space_does_not(channels_order, tmp_path):
    ours, plain = (
        PERDQN(
            "MlpPolicy",
            VecFrameStack(DummyVecEnv([FloatImages]), 4, channels_order),
            learning_starts=5,
            seed=0,
            replay_buffer_kwargs={"n_stack": n_stack},
        )
        .learn(40)
        .replay_buffer
        for n_stack in (4, 1)
    )
    save_buffer(ours, tmp_path / "buffer")

    assert_all_equal(ours, plain)
    assert_all_equal(load_buffer(tmp_path / "buffer", "cpu"), plain)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_state_without_an_axis_has_the_likelier_one(transposed):
    player = Player(5, FRAMES["image"], n_envs=2, n_stack=4, transposed=transposed)
    state = make(player, 8, n_stack=4).state()
    del state["channels_first"]
    buffer = make(player, 8, n_stack=4)

    buffer.restore(state)

    assert buffer.state()["channels_first"] == transposed


@pytest.mark.parametrize("axis", [True, None, "first", [False], 1.5])
def test_an_axis_that_does_not_exist_is_refused(axis):
    buffer = make(Player(5, FRAMES["image"], n_envs=2, n_stack=4), 8, n_stack=4)

    with pytest.raises(ValueError, match=r"channels_first must be one of \[False\]"):
        buffer.restore({**buffer.state(), "channels_first": axis})


def cart_pole(*, normalized=False):
    env = VecFrameStack(make_vec_env("CartPole-v1"), 4)
    env = VecNormalize(env, norm_obs=True) if normalized else env
    options = {"buffer_size": 500, "learning_starts": 10, "seed": 0, "device": "cpu"}
    return PERDQN("MlpPolicy", env, **options, replay_buffer_kwargs={"n_stack": 4})


def test_training_goes_on_after_a_callback_has_stopped_it():
    model = cart_pole().learn(1000, callback=StopTrainingOnMaxEpisodes(3))

    model.learn(50, reset_num_timesteps=False)

    assert model.replay_buffer.size() == model.num_timesteps - 1  # SB3 drops the step of the stop


def test_after_the_models_environments_were_used_elsewhere_set_env_helps():
    model = cart_pole().learn(103)
    evaluate_policy(model, model.get_env(), n_eval_episodes=1)
    with pytest.raises(ValueError, match=r"reset .* environments yourself, call .*set_env"):
        model.learn(50, reset_num_timesteps=False)

    model.set_env(model.get_env())

    model.learn(50, reset_num_timesteps=False)


def test_normalized_observations_are_refused_before_training():
    with pytest.raises(ValueError, match=r"VecNormalize with norm_obs=False.*got 'norm_obs=True'"):
        cart_pole(normalized=True)
    model = cart_pole()
    env = model.get_env()
    with pytest.raises(ValueError, match="VecNormalize with norm_obs=False"):
        model.set_env(VecNormalize(VecFrameStack(make_vec_env("CartPole-v1"), 4)))
    assert model.get_env() is env


def test_a_checkpoint_goes_on_with_the_same_frames(tmp_path):
    model = train(4, 0.6)

    save_checkpoint(model, tmp_path / "checkpoint")
    loaded = load_checkpoint(tmp_path / "checkpoint", model.get_env(), "cpu")

    assert_same_buffer(loaded.replay_buffer, model.replay_buffer)
    assert loaded.replay_buffer_kwargs["n_stack"] == 4
    loaded.learn(30, reset_num_timesteps=False)
