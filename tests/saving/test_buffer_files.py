"""Buffers in files: what is saved and loaded continues bit by bit, without pickle."""

import tracemalloc
from types import MappingProxyType

import numpy as np
import pytest
from builders import (
    BOX,
    DICT,
    IMAGE,
    MEMORY_OPTIMISED,
    STACKS,
    TWO_ACTIONS,
    fill,
    fill_with_stacks,
    make_buffer,
)
from checks import arrays_of, assert_same_batch, assert_same_buffer, check_valid, saved_and_loaded
from goal_line import GOAL_SPACE, goal_envs
from gymnasium import spaces
from own_prioritization import Storable
from stable_baselines3.common.buffers import ReplayBuffer

from examples.custom_priorities import RarelyReplayed
from sb3_per import (
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    load_buffer,
    save_buffer,
)

KINDS = [
    {},
    {"prioritization": "rank"},
    {"prioritization": "rank", "new_priority": "max_stored", "weight_normalization": "buffer"},
    {"prioritization": "rank", "replacement": False, **MEMORY_OPTIMISED},
    {"prioritization": "lap", "uniform_share": 0.5, "weight_normalization": "mean"},
    {"prioritization": "lap", "prioritization_kwargs": {"threshold": np.float32(0.5)}},
    {"alpha": np.float32(0.5), "handle_timeout_termination": 1},
    {"new_priority": "max_stored", "weight_normalization": "buffer", "td_error_clip": 2.0},
    {"replacement": False, "stratified": False, "n_steps": 3, "n_envs": 3, "gamma": 0.5},
    {"space": DICT, "n_envs": 2, "prioritization": "rank"},
    {"space": STACKS, "n_stack": 4, "n_envs": 2, "uniform_share": 0.5},
    {**MEMORY_OPTIMISED, "n_envs": 2, "uniform_share": 0.5},
    {"prioritization": Storable, "prioritization_kwargs": {"bonus": (1, np.ones(1))}},
]
KINDS_OF_HER = [
    {},
    {"prioritization": "rank", "goal_selection_strategy": "episode", "n_sampled_goal": 2},
    {"uniform_share": 0.5, "goal_selection_strategy": "final"},
    {"new_priority": "max_stored", "handle_timeout_termination": False},
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "buffer.npz"


@pytest.fixture(autouse=True)
def _seed():
    np.random.seed(0)  # noqa: NPY002  # where buffers take their seed from


def add_rows(buffer, n_rows, first=0):
    if buffer.n_stack > 1:
        return fill_with_stacks(buffer, n_rows, first=first)
    return fill(buffer, n_rows, first=first, done_at={(9, 0)}, truncated_at={(12, 0)})


def make(n_rows=0, **options):
    return add_rows(make_buffer(**options), n_rows)


@pytest.mark.parametrize("n_rows", [0, 9, 64, 90])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_loaded_buffer_continues_bit_by_bit(options, n_rows, path):
    buffer = make(n_rows, **options)
    buffer.beta = 0.7
    if n_rows:
        buffer.update_priorities(buffer.sample(1).slots, [-3.0])
        slots = np.arange(n_rows % 64)
        buffer.update_priorities(slots, 0.1 + slots)
    add_rows(buffer, 2, first=n_rows)

    loaded = saved_and_loaded(buffer, path)

    assert_same_buffer(loaded, buffer)
    for step in range(3):
        for one in (buffer, loaded):
            add_rows(one, 25, first=n_rows + 2 + 25 * step)
        batch, other = buffer.sample(16), loaded.sample(16)
        assert_same_batch(batch, other)
        for one in (buffer, loaded):
            one.update_priorities(batch.slots, batch.rewards - 40)
    assert_same_buffer(loaded, buffer)
    check_valid(loaded)


def make_her(n_rows, **options):
    """Episodes of other lengths in the two environments."""
    buffer = PrioritizedHerReplayBuffer(
        24, GOAL_SPACE, TWO_ACTIONS, goal_envs(2), "cpu", n_envs=2, **options
    )
    done_at = [(step, env) for env in range(2) for step in range(3 + env, 40, 4 + env)]
    fill(buffer, n_rows, done_at=done_at)
    buffer.update_priorities(buffer.sample(8).slots, np.linspace(-2, 5, 8))
    buffer.sample(4)
    return buffer, done_at


@pytest.mark.parametrize("n_rows", [7, 19])
@pytest.mark.parametrize("options", KINDS_OF_HER, ids=str)
def test_loaded_buffer_for_hindsight_continues_bit_by_bit(options, n_rows, path):
    buffer, done_at = make_her(n_rows, **options)

    loaded = saved_and_loaded(buffer, path)

    assert loaded.n_sampleable == buffer.n_sampleable > 0
    for step in range(n_rows, n_rows + 9):  # episodes are overwritten meanwhile
        batch, other = buffer.sample(6), loaded.sample(6)
        assert_same_batch(batch, other)
        for one in (buffer, loaded):
            one.update_priorities(batch.slots, np.arange(6.0) + step)
            fill(one, 1, first=step, done_at=done_at)
    assert_same_buffer(loaded, buffer)


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_each_generator_of_numpy_continues(kind, path):
    buffer = make(20)
    buffer.generator = np.random.Generator(getattr(np.random, kind)(5))
    buffer.generator.integers(9, size=3, dtype=np.int32)  # half a number is left over

    loaded = saved_and_loaded(buffer, path)

    assert_same_batch(loaded.sample(8), buffer.sample(8))  # saving took no random number, either


def test_numpy_opens_the_file_without_pickle(path):
    for buffer in (make(30, size=10_000), make(30, size=10_000, space=DICT, prioritization="rank")):
        save_buffer(buffer, path)

        with np.load(path, allow_pickle=False) as arrays:
            stored = {name: arrays[name] for name in arrays.files if name != "header.json"}
        expected = arrays_of(buffer._state_dict())
        assert stored.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(stored[name], array)
        assert stored["arrays/rewards"].shape == (30, 1)  # only what was written


def test_memory_is_not_taken_twice(path):
    space, n_envs = spaces.Box(-1, 1, (50,), np.float32), 4000

    def empty():
        return PrioritizedReplayBuffer(40_000, space, TWO_ACTIONS, "cpu", n_envs=n_envs)

    observations, zeros = np.zeros((n_envs, 50), np.float32), np.zeros(n_envs)
    buffer = empty()
    for _ in range(10):
        buffer.add(observations, observations, zeros, zeros, zeros, [{}] * n_envs)
    size = 2 * buffer.observations.nbytes
    other = saved_and_loaded(buffer, path)

    peaks = []
    for work in (save_buffer, lambda buffer, path: load_buffer(path, buffer)):
        tracemalloc.start()
        work(other, path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert size >= 16e6
    assert max(peaks) < 4e6


# Buffers that differ from the stored one


class Tenths(PrioritizedReplayBuffer):
    """Rewards are divided by ten when they come in."""

    def add(self, obs, next_obs, action, reward, done, infos):
        super().add(obs, next_obs, action, reward / 10, done, infos)


def test_transitions_are_loaded_as_they_were_stored(path):
    buffer = fill(Tenths(4, BOX, TWO_ACTIONS, "cpu"), 3)
    save_buffer(buffer, path)
    other = Tenths(4, BOX, TWO_ACTIONS, "cpu")

    load_buffer(path, other)

    assert np.array_equal(other.rewards[:3], buffer.rewards[:3])
    assert other.rewards.max() > 0
    sb3s = fill(ReplayBuffer(4, BOX, TWO_ACTIONS, "cpu"), 3)
    other._refill_from(sb3s)
    assert np.allclose(other.rewards[:3], sb3s.rewards[:3] / 10)


def test_arrays_in_another_order_of_memory_are_filled(path):
    buffer = make(5)
    save_buffer(buffer, path)
    other = make()
    other.observations = np.asfortranarray(other.observations)

    load_buffer(path, other)

    assert_same_batch(other._get_samples(np.arange(5)), buffer._get_samples(np.arange(5)))


@pytest.mark.parametrize(
    ("options", "others"),
    [
        # Returns, shares and weights are the buffer's own.
        ({"n_steps": 3, "gamma": 0.5, "weight_normalization": "buffer"}, {"uniform_share": 0.5}),
        ({"prioritization": "rank"}, {"prioritization": "rank", "eps": 0.1}),
        ({"prioritization": "lap"}, {"prioritization": "lap", "eps": 0.1}),
    ],
)
def test_options_without_effect_on_priorities_may_differ(options, others, path):
    stored, buffer = make(40, **options), make(**others)
    stored.update_priorities(np.arange(40), np.arange(40.0))
    save_buffer(stored, path)

    load_buffer(path, buffer)

    found = [one.prioritization.probabilities(np.arange(40)).tolist() for one in (stored, buffer)]
    assert found[0] == found[1]


def test_options_in_any_mapping_are_compared_by_value(path):
    thresholds = [MappingProxyType({"threshold": x}) for x in (1.0, 5.0)]
    stored, other = (make(9, prioritization="lap", prioritization_kwargs=x) for x in thresholds)
    save_buffer(stored, path)

    load_buffer(path, make(9, prioritization="lap", prioritization_kwargs={"threshold": 1.0}))
    with pytest.raises(ValueError, match=r"prioritization_kwargs .*1\.0.*, got .*5\.0"):
        load_buffer(path, other)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"space": IMAGE}, "observation_space"),
        ({"n_envs": 2}, "n_envs"),
        ({"optimize_memory_usage": True, "handle_timeout_termination": False}, "optimize_memory"),
        ({"info_keys": ["cost"]}, "info_keys"),
        ({"size": 32}, "buffer_size 64, got 32"),
        ({"alpha": 0.1}, "alpha 0.6, got 0.1"),
        ({"prioritization": "rank"}, "prioritization proportional, got rank"),
    ],
)
def test_buffer_that_the_file_does_not_fit_stays_as_it_is(options, named, path):
    save_buffer(make(30), path)
    buffer = make(**options)
    if not buffer.info_keys:
        add_rows(buffer, 20)
    n_rows, before = buffer.size(), buffer.probabilities(np.arange(20)).tolist()

    with pytest.raises(ValueError, match=f"must be like the stored one, .*{named}"):
        load_buffer(path, buffer)

    assert buffer.size() == n_rows
    assert buffer.probabilities(np.arange(20)).tolist() == before


def test_discrete_spaces_with_another_start_do_not_fit(path):
    save_buffer(PrioritizedReplayBuffer(4, BOX, spaces.Discrete(2, start=5), "cpu"), path)

    with pytest.raises(ValueError, match=r"action_space .*start=5"):
        load_buffer(path, make())


@pytest.mark.parametrize(
    ("buffer", "named"),
    [
        (lambda: make(5, prioritization=RarelyReplayed), "RarelyReplayed"),
        (lambda: make_her(9, copy_info_dict=True)[0], "copy_info_dict"),
    ],
)
def test_buffer_that_cannot_be_stored_leaves_no_file(buffer, named, path):
    made = buffer()

    with pytest.raises(ValueError, match=named):
        save_buffer(made, path)

    assert not [*path.parent.iterdir()]


def test_linked_file_is_replaced(path):
    target = path.parent / "some" / "folder" / "target.npz"
    save_buffer(make(5), target)
    path.symlink_to(target)

    save_buffer(make(9), path)

    buffer = make()
    load_buffer(target, buffer)
    assert path.is_symlink()
    assert buffer.size() == 9
    assert [*target.parent.iterdir()] == [target]
