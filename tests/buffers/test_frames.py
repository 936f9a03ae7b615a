"""Frames that are stored once: batches equal, byte for byte, those of whole observations."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch as th
from builders import TWO_ACTIONS
from checks import assert_same_batch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from models import Point
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from sb3_per import PERDQN, PrioritizedReplayBuffer
from sb3_per.buffers.frames import FrameStore

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


HAPPENINGS = ["extend", "sample", "reset", "restart", "elsewhere", "pickle", "file", "move"]


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
        st.sampled_from([*["add"] * 3, *HAPPENINGS]),
        min_size=8,
        max_size=25,
    ),
)
def test_batches_equal_those_of_whole_observations(
    frames, first, n_stack, n_rows, sizes, options, happenings
):
    player = Player(frames, n_stack=n_stack, first=first, **sizes)
    ours = make(player, n_rows, n_stack=n_stack, **options)
    plain = make(player, n_rows, **options)

    for happening in ["add", *happenings]:
        ours = happen(happening, player, ours, plain)
        assert_all_equal(ours, plain)


def happen(happening, player, ours, plain):  # noqa: C901  # one branch for each
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
    elif happening == "elsewhere":  # as when the model's environments were used for an evaluation
        before, *_ = player.step()
        _, *others = player.step()
        ours.add(before, *others)
        plain.add(before, *others)
    elif happening == "move":
        move(player, ours, plain)
    return COPIES.get(happening, lambda buffer: buffer)(ours)


def move(player, ours, plain):
    """Set ``pos`` and ``full`` of both buffers, and add a row; reset both if ours refuses."""
    pos, full = int(player.random.integers(plain.buffer_size)), player.random.random() < 0.5
    for buffer in (ours, plain):
        buffer.pos, buffer.full = pos, plain.full and full
    transition = player.step()
    try:
        ours.add(*transition)
    except ValueError as error:
        assert "reset()" in str(error)  # noqa: PT017  # not every move is refused
        ours.reset()
        plain.reset()
    else:
        plain.add(*transition)


def from_arrays(buffer):
    """Store frames in other arrays, as a file does."""
    before, n_rows = buffer.frames, buffer.size()
    buffer.frames = after = FrameStore(buffer.buffer_size, before.layout)
    after.load_state_dict(before.state_dict(), n_rows)
    return buffer


COPIES = {"pickle": lambda buffer: pickle.loads(pickle.dumps(buffer)), "file": from_arrays}


def test_observations_can_be_read_like_an_array():
    player = Player("colours", n_envs=3)
    ours, plain = make(player, 7, n_stack=4), make(player, 7)
    add(player, 9, ours, plain)

    keys = [3, -1, slice(2, 5), [0, 6, 2], (1, 2), (np.array([1, 2]), np.array([0, 2]), slice(3))]
    keys += [..., (..., 1), (2, ..., 1), (2, 1, ..., 0), (..., slice(2)), (2, 1, ...)]
    for name in ("observations", "next_observations"):
        found, whole = getattr(ours, name), getattr(plain, name)
        for key in keys:
            assert np.array_equal(found[key], whole[key])
        for attribute in ("shape", "dtype", "ndim"):
            assert getattr(found, attribute) == getattr(whole, attribute)


# When `pos` is set by hand


@pytest.mark.parametrize(
    ("n_added", "pos", "full"), [(6, 8, False), (13, 5, True), (13, 1, True), (13, 6, False)]
)
def test_rows_that_would_change_others_are_refused(n_added, pos, full):
    player = Player()
    buffer = make(player, 10, n_stack=4)
    add(player, n_added, buffer)
    buffer.pos, buffer.full = pos, full

    with pytest.raises(ValueError, match=rf"call reset\(\) .* got {pos}"):
        add(player, 1, buffer)


@pytest.mark.parametrize(
    ("n_added", "pos", "full"), [(6, 2, False), (13, 0, False), (13, 2, False), (20, 9, False)]
)
def test_newest_rows_may_be_dropped(n_added, pos, full):
    player = Player()
    ours, plain = make(player, 10, n_stack=4), make(player, 10)
    add(player, n_added, ours, plain)
    for buffer in (ours, plain):
        buffer.pos, buffer.full = pos, full

    add(player, 3, ours, plain)

    assert_all_equal(ours, plain)


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
def test_the_axis_of_the_frames_follows_from_the_space(shape, dtype, is_first):
    space = spaces.Box(0, 255, shape, dtype)
    buffer = PrioritizedReplayBuffer(9, space, TWO_ACTIONS, "cpu", n_stack=4)

    assert buffer.frames.layout.frames_first == is_first


# Memory


@pytest.mark.parametrize("ends_in", [10**9, 50, 1])
def test_frame_is_stored_once(ends_in):
    player = Player(ends_in=ends_in)
    ours, plain = make(player, 100, n_stack=4), make(player, 100)

    for _ in range(20):
        add(player, 50, ours, plain)

        # The oldest transition needs four frames that are older.
        n_episodes = plain.dones.sum() + (4 if ends_in == 1 else 1) * 2
        n_frames, a_frame = 2 * (100 + 4) + n_episodes, 5 * 4
        assert ours.frames.nbytes <= n_frames * a_frame + 2 * (100 + 4) * 4
        assert_all_equal(ours, plain)


def test_repr_shows_frames_and_bytes():
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    buffer = PrioritizedReplayBuffer(1_000_000, space, TWO_ACTIONS, "cpu", n_stack=4)

    assert "1000000 transitions, 7,080.0 MB, n_stack=4" in repr(buffer)


# Errors


@pytest.mark.parametrize(
    "spoil",
    [
        lambda now, then: (now, then[:1]),
        lambda now, then: (now.swapaxes(1, -1), then.swapaxes(1, -1)),
    ],
)
def test_observations_of_another_shape_change_nothing(spoil):
    player = Player()
    buffer = make(player, 10, n_stack=4)
    add(player, 5, buffer)
    before = pickle.dumps(buffer)
    observations, then, *rest = player.step()

    with pytest.raises(ValueError, match="shape"):
        buffer.add(*spoil(observations, then), *rest)

    assert pickle.dumps(buffer) == before


# In an algorithm

IMAGE = spaces.Box(0, 255, (36, 40, 1), np.uint8)
EITHER_AXIS = spaces.Box(0, 1, (4, 6, 8), np.float32)  # stacks can be read along both axes


class Flipped(VecEnvWrapper):
    """Changes the frames of a stack in every step, so that they are not the same any more."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        observations, *rest = self.venv.step_wait()
        return 255 - observations, *rest


def stacked(space=IMAGE, order=None):
    return VecFrameStack(DummyVecEnv([lambda: Point(True, deepcopy(space))] * 2), 4, order)


def make_model(env, policy="CnnPolicy", **kwargs):
    sizes = {"buffer_size": 60, "learning_starts": 20, "batch_size": 8, "seed": 0, "device": "cpu"}
    if policy == "CnnPolicy":
        sizes["policy_kwargs"] = {"features_extractor_kwargs": {"features_dim": 8}}
    options = kwargs.pop("options", {})
    return PERDQN(policy, env, replay_buffer_kwargs=options, **sizes, **kwargs)


def assert_same_training(ours, plain):
    assert ours.replay_buffer.n_stack == 4
    assert plain.replay_buffer.n_stack == 1
    assert_all_equal(ours.replay_buffer, plain.replay_buffer)
    for found, other in zip(ours.policy.parameters(), plain.policy.parameters(), strict=True):
        assert th.equal(found, other)


@pytest.mark.parametrize(
    ("space", "order", "n_stack"),
    [(IMAGE, None, None), (EITHER_AXIS, "first", 4), (EITHER_AXIS, "last", 4)],
)
def test_perdqn_learns_the_same_as_with_whole_observations(space, order, n_stack):
    models = []
    for n in (n_stack, 1):
        policy = "MlpPolicy" if order else "CnnPolicy"
        model = make_model(stacked(space, order), policy, options={"n_stack": n})
        models.append(model.learn(60).learn(60, reset_num_timesteps=False))

    assert_same_training(*models)


@pytest.mark.parametrize("use", ["evaluation", "stop", "other environments", "normalization"])
def test_perdqn_learns_the_same_after_an_interruption(use):
    models = []
    for n_stack in (None, 1):
        env = stacked()
        if use == "normalization":
            env = VecNormalize(env)
        model = make_model(env, "MlpPolicy", options={"n_stack": n_stack})
        if use == "stop":
            model.learn(1000, callback=StopTrainingOnMaxEpisodes(3))
        else:
            model.learn(61)
        if use == "evaluation":
            evaluate_policy(model, model.get_env(), n_eval_episodes=1, warn=False)
        elif use == "other environments":
            env = Flipped(stacked())
            env.seed(0)
            model.set_env(env)
        models.append(model.learn(30, reset_num_timesteps=False))

    assert_same_training(*models)


WHOLE = {"handle_timeout_termination": False}


class OwnBuffer(PrioritizedReplayBuffer):
    """A user's class may know nothing about frames."""


@pytest.mark.parametrize(
    ("wrap", "kwargs", "n_stack", "said"),
    [
        (VecMonitor, {}, 4, "frames once"),
        (lambda env: VecNormalize(env, norm_obs=False), {}, 4, "frames once"),
        (VecTransposeImage, {}, 4, "frames once"),
        (Flipped, {}, 1, "because of Flipped"),
        (Flipped, {"options": {"n_stack": 4}}, 4, ""),
        (VecMonitor, {"options": {"n_stack": 1}}, 1, ""),
        (VecMonitor, {"optimize_memory_usage": True, "options": WHOLE}, 1, "optimize_memory_usage"),
        (VecMonitor, {"replay_buffer_class": OwnBuffer}, 1, "OwnBuffer"),
        (lambda _: stacked(FRAMES["vector"]), {"policy": "MlpPolicy"}, 1, ""),
        (lambda _: DummyVecEnv([lambda: Point(True, IMAGE)]), {"policy": "MlpPolicy"}, 1, ""),
    ],
)
def test_frames_are_stored_once_by_default(wrap, kwargs, n_stack, said, capsys):
    model = make_model(wrap(stacked()), verbose=1, **kwargs)

    assert model.replay_buffer.n_stack == n_stack
    assert model.replay_buffer_kwargs.get("n_stack", 1) == n_stack
    lines = [line for line in capsys.readouterr().out.splitlines() if "Storing" in line]
    assert [said in line for line in lines] == ([True] if said else [])


@pytest.mark.parametrize("wrap", [None, lambda env: env, Flipped])
def test_loaded_model_stores_frames_as_before(wrap, tmp_path):
    make_model(stacked()).save(tmp_path / "model")

    model = PERDQN.load(tmp_path / "model", None if wrap is None else wrap(stacked()))
    assert model.replay_buffer.n_stack == 4
    model.set_env(stacked())
    model.learn(30)


def test_frames_of_demonstrations_are_stored_once():
    expert, models = make_model(stacked()).learn(20).replay_buffer, []
    for n_stack in (None, 1):
        model = make_model(stacked(), options={"n_stack": n_stack})
        model.add_demonstrations(expert)
        models.append(model.learn(40))

    assert_same_training(*models)
    assert_all_equal(*(model.demonstrations for model in models))
