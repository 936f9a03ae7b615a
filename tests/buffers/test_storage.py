import itertools

import numpy as np
import pytest
import torch as th
from builders import BOX, DICT, IMAGE, TWO_ACTIONS, fill
from gymnasium import Env, spaces
from sb3_per.buffers.n_step import n_step_windows
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_per.buffers.storage import SlotDictReplayBuffer, SlotReplayBuffer

ENDS = {"done_at": {(3, 0), (9, 1), (13, 0)}, "truncated_at": {(5, 1), (7, 0), (15, 1)}}


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


def sb3_rows(buffer, slots, env, monkeypatch):
    """What SB3 gathers for these slots, its random choice of environments replaced by theirs."""
    rows, envs = np.divmod(slots, buffer.n_envs)
    with monkeypatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *args, **kwargs: envs)
        return buffer._get_samples(rows, env)


def assert_equal_samples(ours, theirs):
    for name, own, other in zip(ours._fields, ours, theirs, strict=True):
        if isinstance(own, dict):
            assert own.keys() == other.keys()
            pairs = [(own[key], other[key]) for key in own]
        else:
            pairs = [(own, other)]
        for left, right in pairs:
            if right is None:
                assert left is None, name
                continue
            assert left.dtype == right.dtype, name
            assert left.shape == right.shape, name
            assert th.equal(left, right), name


@pytest.mark.parametrize("n_rows", [5, 8, 19])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("space", "options"),
    [
        (BOX, {}),
        (BOX, {"handle_timeout_termination": False}),
        (BOX, {"optimize_memory_usage": True, "handle_timeout_termination": False}),
        (IMAGE, {}),
        (spaces.Discrete(1000), {}),
        (DICT, {}),
    ],
)
def test_rows_are_those_of_sb3_for_the_same_slots(space, options, normalized, n_rows, monkeypatch):
    is_dict = isinstance(space, spaces.Dict)
    ours_class, theirs_class = (
        (SlotDictReplayBuffer, DictReplayBuffer) if is_dict else (SlotReplayBuffer, ReplayBuffer)
    )
    env = normalizer(space) if normalized and (is_dict or space is BOX) else None
    ours, theirs = (
        fill(kind(16, space, TWO_ACTIONS, "cpu", n_envs=2, **options), n_rows, **ENDS)
        for kind in (ours_class, theirs_class)
    )
    slots = np.random.default_rng(0).permutation(ours.n_stored)

    gathered = ours.gather(slots, env)

    assert_equal_samples(gathered, sb3_rows(theirs, slots, env, monkeypatch))


@pytest.mark.parametrize("n_rows", [1, 5, 8, 11, 19])
@pytest.mark.parametrize("n_steps", [2, 3, 7, 12])
@pytest.mark.parametrize("normalized", [False, True])
def test_n_step_returns_are_those_of_sb3_for_the_same_slots(
    n_rows, n_steps, normalized, monkeypatch
):
    env = normalizer(BOX) if normalized else None
    ours, theirs = (
        fill(
            kind(16, BOX, TWO_ACTIONS, "cpu", n_envs=2, n_steps=n_steps, gamma=0.9), n_rows, **ENDS
        )
        for kind in (SlotReplayBuffer, NStepReplayBuffer)
    )
    slots = np.random.default_rng(0).permutation(ours.n_stored)
    timeouts = ours.timeouts.copy()

    gathered = ours.gather(slots, env)

    assert_equal_samples(gathered, sb3_rows(theirs, slots, env, monkeypatch))
    assert (ours.timeouts == timeouts).all()


def test_a_three_step_return_is_worked_out_by_hand():
    buffer = SlotReplayBuffer(20, BOX, TWO_ACTIONS, "cpu", n_steps=3, gamma=0.5)
    fill(buffer, 8, done_at={(4, 0)})

    gathered = buffer.gather(np.array([0, 3, 7]))

    # Rewards equal steps: 0 + 1/2 + 2/4; 3 + 4/2 up to the end at 4; 7 alone at the write head.
    assert gathered.rewards.flatten().tolist() == [1.0, 5.0, 7.0]
    assert gathered.discounts.flatten().tolist() == [1 / 8, 1 / 4, 1 / 2]
    assert gathered.dones.flatten().tolist() == [0.0, 1.0, 0.0]
    assert gathered.next_observations[:, 0].tolist() == [3.0, 5.0, 8.0]


def test_dict_observations_take_n_steps_too():
    buffer = SlotDictReplayBuffer(20, DICT, TWO_ACTIONS, "cpu", n_steps=3, gamma=0.5)
    fill(buffer, 8)

    gathered = buffer.gather(np.array([2]))

    assert gathered.rewards.item() == 2 + 3 / 2 + 4 / 4
    assert gathered.next_observations["number"].item() == 5


def test_windows_stop_at_ends_truncations_and_the_newest_row():
    dones, timeouts = np.zeros((6, 1)), np.zeros((6, 1))
    dones[1], timeouts[4] = 1, 1

    windows = n_step_windows(np.arange(6), 3, (dones, timeouts), newest_row=2)

    assert windows.within.sum(axis=1).tolist() == [2, 1, 1, 2, 1, 3]
    assert windows.last_slots.tolist() == [1, 1, 2, 4, 4, 1]


def test_episodes_that_are_broken_off_end_as_by_a_time_limit():
    buffer = SlotReplayBuffer(24, BOX, TWO_ACTIONS, "cpu", n_envs=2, n_steps=3, gamma=0.5)
    fill(buffer, 4, done_at={(3, 1)})

    buffer.end_episodes()
    gathered = fill(buffer, 2, first=10).gather(np.array([4, 6, 5, 7]))

    # Steps 2 and 3 of the first environment, then of the second; 10 is another episode's.
    np.testing.assert_allclose(gathered.rewards.flatten(), [3.5, 3.0, 3.65, 3.1], rtol=1e-6)
    assert gathered.dones.flatten().tolist() == [0, 0, 1, 1]
    assert gathered.next_observations[:, 0].tolist() == [4, 4, 4, 4]


def test_an_end_that_was_noted_goes_with_its_row():
    options = {"n_steps": 3, "gamma": 0.5, "handle_timeout_termination": False}
    buffer = fill(SlotReplayBuffer(8, BOX, TWO_ACTIONS, "cpu", **options), 4)

    buffer.end_episodes()
    fill(buffer, 9, first=10)  # once round the ring, and one row more

    assert buffer.gather(np.array([1, 2])).discounts.flatten().tolist() == [0.125, 0.125]


def test_steps_may_be_numpys():
    buffer = SlotReplayBuffer(8, BOX, TWO_ACTIONS, "cpu", n_steps=np.int64(3))

    assert (buffer.n_steps, type(buffer.n_steps)) == (3, int)


def test_sizes_may_be_numpys_unsigned_numbers_although_these_wrap_around_below_0():
    sizes = {"buffer_size": np.uint32(8), "n_envs": np.uint8(1)}
    buffer = SlotReplayBuffer(
        observation_space=BOX, action_space=TWO_ACTIONS, device="cpu", n_steps=3, gamma=0.5, **sizes
    )
    fill(buffer, 8)

    newest = buffer.gather(np.array([7]))
    buffer.end_episodes()

    assert (newest.rewards.item(), newest.discounts.item()) == (7, 0.5)
    assert np.flatnonzero(buffer.timeouts).tolist() == [7]


@pytest.mark.parametrize("flag", [None, 0, np.False_])
def test_memory_is_not_shared_for_what_sb3_takes_as_false(flag):
    buffer = fill(SlotReplayBuffer(4, BOX, TWO_ACTIONS, "cpu", optimize_memory_usage=flag), 3)

    assert len(buffer.storage()["observations"]) == 3


def test_memory_optimised_storage_ends_broken_episodes_as_done_since_it_loses_where_they_stopped():
    options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    buffer = fill(SlotReplayBuffer(8, BOX, TWO_ACTIONS, "cpu", **options), 4)

    buffer.end_episodes()

    assert fill(buffer, 1, first=10).gather(np.arange(4)).dones.flatten().tolist() == [0, 0, 0, 1]


def test_an_empty_buffer_has_no_episodes_to_end():
    buffer = SlotReplayBuffer(8, BOX, TWO_ACTIONS, "cpu", n_steps=3)

    buffer.end_episodes()

    assert not buffer.timeouts.any()


def test_gathered_tensors_do_not_share_memory_with_the_storage():
    buffer = fill(SlotReplayBuffer(16, BOX, TWO_ACTIONS, "cpu"), 16)

    gathered = buffer.gather(np.arange(16))
    for tensor in (gathered.observations, gathered.actions, gathered.rewards, gathered.dones):
        tensor.fill_(99)

    assert buffer.observations.max() == 15
    assert buffer.actions.max() == 1
    assert buffer.rewards.max() == 15
    assert buffer.dones.max() == 0


def test_the_excluded_row_is_the_write_head_of_full_memory_optimised_storage():
    options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    buffer = SlotReplayBuffer(8, BOX, TWO_ACTIONS, "cpu", n_envs=2, **options)

    heads = []
    for step in range(6):
        fill(buffer, 1, first=step)
        heads.append((buffer.excluded_row, buffer.n_sampleable))

    assert heads == [(None, 2), (None, 4), (None, 6), (0, 6), (1, 6), (2, 6)]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"n_steps": 0}, "n_steps must .* got 0"),
        ({"n_steps": 2.5}, "n_steps must .* got 2.5"),
        ({"gamma": 1.5}, "gamma must .* got 1.5"),
        ({"gamma": -0.5}, "gamma must .* got -0.5"),
        ({"gamma": True}, "gamma must .* got True"),
        ({"n_steps": 3, "optimize_memory_usage": True}, "optimize_memory_usage, got 3"),
        ({"optimize_memory_usage": "no"}, "optimize_memory_usage must be True or False, got 'no'"),
        ({"n_envs": 0}, "n_envs must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_options_are_named_with_their_value(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        SlotReplayBuffer(8, BOX, TWO_ACTIONS, "cpu", handle_timeout_termination=False, **options)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_gamma_may_be_as_small_as_0_and_as_large_as_1(gamma):
    buffer = fill(SlotReplayBuffer(8, BOX, TWO_ACTIONS, "cpu", n_steps=2, gamma=gamma), 3)

    rewards = buffer.gather(np.array([0])).rewards

    assert rewards.item() == 0 + gamma * 1


def test_a_size_not_divisible_by_the_environments_is_counted_after_sb3_rounded_it():
    buffer = fill(SlotReplayBuffer(10, BOX, TWO_ACTIONS, "cpu", n_envs=4), 3)

    gathered = buffer.gather(np.arange(buffer.n_slots))

    assert buffer.n_slots == 8
    rows_and_envs = list(itertools.product([2, 1], range(4)))
    assert gathered.observations.tolist() == [[row, env] for row, env in rows_and_envs]


def test_the_flag_of_a_time_limit_may_be_an_array_of_one_as_in_sb3s_own_test():
    buffers = [kind(4, BOX, TWO_ACTIONS, "cpu") for kind in (ReplayBuffer, SlotReplayBuffer)]

    for buffer in buffers:
        infos = [{"TimeLimit.truncated": np.ones(1, dtype=np.float32)}]
        buffer.add(*[np.zeros((1, 2))] * 2, *[np.zeros(1)] * 3, infos)

    assert buffers[0].timeouts.tolist() == buffers[1].timeouts.tolist() == [[1], [0], [0], [0]]
