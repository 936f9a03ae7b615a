"""Transitions by slot, against what SB3's buffers return for the same slots."""

import numpy as np
import pytest
import torch as th
from builders import BOX, DICT, IMAGE, MEMORY_OPTIMISED, TWO_ACTIONS, fill
from checks import assert_same_batch
from gymnasium import Env, spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

ENDS = {"done_at": {(3, 0), (9, 1), (13, 0)}, "truncated_at": {(5, 1), (7, 0), (15, 1)}}


def make(n_rows, *, size=8, kind=PrioritizedReplayBuffer, space=BOX, ends=None, **options):
    return fill(kind(size, space, TWO_ACTIONS, "cpu", **options), n_rows, **(ends or {}))


class Still(Env):
    """An environment to hang a VecNormalize on."""

    action_space = TWO_ACTIONS

    def __init__(self, space):
        self.observation_space = space


def normalizer(space):
    """A VecNormalize with statistics that change every number, and clip some rewards."""
    keys = ["vector"] if isinstance(space, spaces.Dict) else None
    env = VecNormalize(
        DummyVecEnv([lambda: Still(space)]), clip_reward=1.5, norm_obs_keys=keys, training=False
    )
    statistics = env.obs_rms["vector"] if keys else env.obs_rms
    statistics.mean, statistics.var = np.full(2, 0.5), np.full(2, 4.0)
    env.ret_rms.var = np.float64(9.0)
    return env


def samples_of_sb3(buffer, slots, env, monkeypatch):
    """What SB3 returns for these slots, its random choice of environments replaced by theirs."""
    rows, envs = np.divmod(slots, buffer.n_envs)
    with monkeypatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *args, **kwargs: envs)
        return buffer._get_samples(rows, env)


@pytest.mark.parametrize("n_rows", [5, 8, 19])
@pytest.mark.parametrize("is_normalized", [False, True])
@pytest.mark.parametrize(
    ("space", "options"),
    [
        (BOX, {}),
        (BOX, {"handle_timeout_termination": False}),
        (BOX, MEMORY_OPTIMISED),
        (IMAGE, {}),
        (spaces.Discrete(1000), {}),
        (DICT, {}),
    ],
)
def test_samples_equal_those_of_sb3(space, options, is_normalized, n_rows, monkeypatch):
    env = normalizer(space) if is_normalized and space in (BOX, DICT) else None
    kinds = PrioritizedReplayBuffer, ReplayBuffer
    if space is DICT:
        kinds = PrioritizedDictReplayBuffer, DictReplayBuffer
    common = {"size": 16, "space": space, "n_envs": 2, "ends": ENDS, **options}
    ours, theirs = (make(n_rows, kind=kind, **common) for kind in kinds)
    slots = np.random.default_rng(0).permutation(len(ours))

    samples = ours._get_samples(slots, env)

    assert_same_batch(samples, samples_of_sb3(theirs, slots, env, monkeypatch))


@pytest.mark.parametrize("n_rows", [1, 8, 19])
@pytest.mark.parametrize("n_steps", [2, 7, 12])
@pytest.mark.parametrize("is_normalized", [False, True])
def test_n_step_returns_equal_those_of_sb3(n_rows, n_steps, is_normalized, monkeypatch):
    env = normalizer(BOX) if is_normalized else None
    options = {"size": 16, "n_envs": 2, "n_steps": n_steps, "gamma": 0.9, "ends": ENDS}
    ours = make(n_rows, **options)
    theirs = make(n_rows, kind=NStepReplayBuffer, **options)
    slots = np.random.default_rng(0).permutation(len(ours))
    timeouts = ours.timeouts.copy()

    samples = ours._get_samples(slots, env)

    assert_same_batch(samples, samples_of_sb3(theirs, slots, env, monkeypatch))
    assert (ours.timeouts == timeouts).all()  # SB3 changes them for a moment


def test_end_episodes_marks_only_stored_rows():
    options = {"n_steps": 3, "gamma": 0.5, "handle_timeout_termination": False}
    buffer = make(0, **options)
    buffer.end_episodes()
    fill(buffer, 4).end_episodes()

    fill(buffer, 9, first=10)  # once round the ring, and one row more

    assert buffer._get_samples(np.array([1, 2])).discounts.flatten().tolist() == [0.125, 0.125]
    assert not buffer.timeouts.any()


def test_tensors_do_not_share_memory_with_the_storage():
    buffer = make(16, size=16)

    samples = buffer._get_samples(np.arange(16))
    for tensor in (samples.observations, samples.actions, samples.rewards, samples.dones):
        tensor.fill_(99)

    assert [
        getattr(buffer, name).max() for name in ("observations", "actions", "rewards", "dones")
    ] == [*(15, 1, 15, 0)]


class Doubles(PrioritizedReplayBuffer):
    def to_torch(self, array, copy=True):
        return super().to_torch(array, copy).double()


def test_to_torch_of_a_subclass_is_called():
    batch = make(3, kind=Doubles).sample(2)

    assert batch.observations.dtype == batch.weights.dtype == th.float64


def test_add_accepts_array_time_limit_flag():
    buffers = [kind(4, BOX, TWO_ACTIONS, "cpu") for kind in (ReplayBuffer, PrioritizedReplayBuffer)]

    for buffer in buffers:
        infos = [{"TimeLimit.truncated": np.ones(1, dtype=np.float32)}]
        buffer.add(*[np.zeros((1, 2))] * 2, *[np.zeros(1)] * 3, infos)

    assert buffers[0].timeouts.tolist() == buffers[1].timeouts.tolist() == [[1], [0], [0], [0]]
