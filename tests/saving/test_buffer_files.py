"""Buffers in files: what is saved and loaded continues bit by bit, without pickle."""

import json
import tracemalloc
from functools import partial

import numpy as np
import pytest
from builders import BOX, DICT, IMAGE, TWO_ACTIONS, fill, fill_with_stacks
from checks import assert_same_batch, assert_same_buffer, check_valid
from goal_line import GOAL_SPACE, goal_envs
from gymnasium import spaces
from own_prioritization import Storable

from examples.custom_priorities import RarelyReplayed
from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    load_buffer,
    save_buffer,
)
from sb3_per.prioritization.proportional import LossAdjusted, Proportional
from sb3_per.saving.buffers import as_json, space_from_json, space_to_json

STACKS = spaces.Box(0, 255, (2, 3, 4), np.uint8)
MEMORY_OPTIMIZED = {"optimize_memory_usage": True, "handle_timeout_termination": False}
KINDS = [
    {},
    {"prioritization": "rank"},
    {"prioritization": "rank", "new_priority": "max_stored", "weight_normalization": "buffer"},
    {"prioritization": "rank", "replacement": False, **MEMORY_OPTIMIZED},
    {"prioritization": "lap", "uniform_share": 0.5, "weight_normalization": "mean"},
    {"prioritization": "lap", "prioritization_kwargs": {"threshold": np.float32(0.5)}},
    {"alpha": np.float32(0.5), "handle_timeout_termination": 1},
    {"new_priority": "max_stored", "weight_normalization": "buffer", "td_error_clip": 2.0},
    {"replacement": False, "stratified": False, "n_steps": 3, "n_envs": 3, "gamma": 0.5},
    {"space": DICT, "n_envs": 2, "prioritization": "rank"},
    {"space": STACKS, "n_stack": 4, "n_envs": 2, "uniform_share": 0.5},
    {**MEMORY_OPTIMIZED, "n_envs": 2, "uniform_share": 0.5},
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


def make(n_rows=0, *, size=64, space=BOX, **options):
    kind = PrioritizedDictReplayBuffer if space is DICT else PrioritizedReplayBuffer
    n_slots = size * options.get("n_envs", 1)
    return add_rows(kind(n_slots, space, TWO_ACTIONS, "cpu", **options), n_rows)


@pytest.mark.parametrize("n_rows", [0, 9, 64, 90])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_loaded_buffer_continues_bit_by_bit(options, n_rows, path):
    buffer = make(n_rows, **options)
    buffer.beta = 0.7
    if n_rows:
        stale = buffer.sample(1).slots
        buffer.update_priorities(buffer.sample(1).slots, [-3.0])
        slots = np.arange(n_rows % 64)
        buffer.update_priorities(slots, 0.1 + slots)
    add_rows(buffer, 2, first=n_rows)

    save_buffer(buffer, path)
    loaded = load_buffer(path, "cpu")

    assert type(loaded) is type(buffer)
    assert_same_buffer(loaded, buffer)
    assert loaded.arguments() | {"beta": None} == buffer.arguments() | {"beta": None}
    if n_rows:  # the transition may have been overwritten before the file was written
        for one in (buffer, loaded):
            one.update_priorities(stale, [40.0])
    for step in range(3):
        for one in (buffer, loaded):
            add_rows(one, 25, first=n_rows + 2 + 25 * step)
        batch, other = buffer.sample(16), loaded.sample(16)
        assert_same_batch(batch, other)
        for one in (buffer, loaded):
            one.update_priorities(batch.slots, batch.rewards - 40)
    if buffer.n_stack == 1:  # else frames may lie in other places
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
    save_buffer(buffer, path)

    loaded = load_buffer(path, "cpu")

    with pytest.raises(ValueError, match="set_env"):
        loaded.sample(4)
    assert loaded.n_sampleable == buffer.n_sampleable > 0
    loaded.set_env(goal_envs(2))
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
    save_buffer(buffer, path)

    loaded = load_buffer(path, "cpu")

    assert_same_batch(loaded.sample(8), buffer.sample(8))  # saving took no random number, either


def test_numpy_opens_the_file_without_pickle(path):
    for buffer in (make(30, size=10_000), make(30, size=10_000, space=DICT, prioritization="rank")):
        save_buffer(buffer, path)

        with np.load(path, allow_pickle=False) as arrays:
            names = [name for name in arrays.files if name != "header.json"]
            stored = {name: arrays[name] for name in names}
        for name, array in buffer.storage().items():
            np.testing.assert_array_equal(stored[name], array)
        assert stored["rewards"].shape == (30, 1)  # only what was written
        assert {array.dtype.kind for array in stored.values()} <= set("iufb")


def test_memory_is_not_taken_twice(path):
    space, n_envs = spaces.Box(-1, 1, (50,), np.float32), 4000
    buffer = PrioritizedReplayBuffer(40_000, space, TWO_ACTIONS, "cpu", n_envs=n_envs)
    observations, zeros = np.zeros((n_envs, 50), np.float32), np.zeros(n_envs)
    for _ in range(10):
        buffer.add(observations, observations, zeros, zeros, zeros, [{}] * n_envs)
    size = sum(part.nbytes for part in buffer.storage().values())
    save_buffer(buffer, path)
    load_buffer(path, "cpu")

    peaks = []
    for work in (lambda: save_buffer(buffer, path), lambda: load_buffer(path, "cpu")):
        tracemalloc.start()
        work()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert size > 16e6
    assert peaks[0] < 3e6
    assert peaks[1] < size + 5e6  # the new buffer itself, and its tree


# Prioritizations of one's own


def test_own_prioritization_with_state_is_stored_and_named_on_loading(path):
    own = {"prioritization": Storable, "prioritization_kwargs": {"bonus": 2.0}}
    buffer = make(20, **own, alpha=0.9)
    for _ in range(3):
        buffer.update_priorities(buffer.sample(8).slots, np.arange(8.0))
    save_buffer(buffer, path)

    loaded = load_buffer(path, "cpu", prioritization=Storable)

    restored = loaded.prioritization
    assert (restored.n_updates, restored.bonus, restored.alpha) == (3, 2.0, 0.9)
    assert_same_buffer(loaded, buffer)
    with pytest.raises(ValueError, match="prioritization=Storable"):
        load_buffer(path, "cpu")
    save_buffer(make(20, prioritization=Storable), path)
    with pytest.raises(ValueError, match="prioritization=Storable"):
        load_buffer(path, "cpu", prioritization=Proportional)


def test_function_that_makes_a_prioritization_is_needed_again(path):
    function = partial(LossAdjusted, threshold=2.0)
    save_buffer(make(20, prioritization=function), path)

    assert load_buffer(path, "cpu", prioritization=function).prioritization.floor == 2.0
    with pytest.raises(ValueError, match="prioritization=LossAdjusted"):
        load_buffer(path, "cpu")


class MyBuffer(PrioritizedReplayBuffer):
    pass


class WithSet(Storable):
    def state(self):
        return {**super().state(), "own": {1}}

    def restore(self, state):
        super().restore(state)


def with_bonus(bonus):
    return make(5, prioritization=Storable, prioritization_kwargs={"bonus": bonus})


@pytest.mark.parametrize(
    ("buffer", "named"),
    [
        (lambda: MyBuffer(10, BOX, TWO_ACTIONS), "MyBuffer"),
        (lambda: make(5, prioritization=RarelyReplayed), "RarelyReplayed"),
        (lambda: make(5, prioritization=WithSet), "JSON"),
        (lambda: with_bonus(np.ones(1)), "prioritization_kwargs"),
        (lambda: with_bonus((1, 2)), "prioritization_kwargs"),
        (lambda: with_bonus({1: 2.0}), "prioritization_kwargs"),
        (lambda: make_her(9, copy_info_dict=True)[0], "copy_info_dict"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_no_file_is_left(buffer, named, path):
    made = buffer()

    with pytest.raises(ValueError, match=named):
        save_buffer(made, path)

    assert not [*path.parent.iterdir()]


# The file on disk


def test_file_is_replaced_where_a_link_leads_to_and_folders_are_made(path):
    target = path.parent / "some" / "folder" / "target.npz"
    save_buffer(make(5), target)
    path.symlink_to(target)

    save_buffer(make(9), path)

    assert path.is_symlink()
    assert load_buffer(target).size() == 9
    assert [*target.parent.iterdir()] == [target]


# Spaces


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        IMAGE,
        spaces.Box(np.array([-1.5, 0.1], np.float32), np.array([np.inf, 0.2], np.float32)),
        spaces.Box(-1, 1, (), np.float64),
        spaces.Box(-(2**62) - 1, 2**62 + 1, (2, 1), np.int64),
        spaces.Discrete(5),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiDiscrete([[3, 4], [5, 6]]),
        spaces.MultiDiscrete([3, 4], dtype=np.int32),
        spaces.MultiBinary(4),
        spaces.MultiBinary([2, 3]),
        DICT,
        spaces.Dict([("z", spaces.Dict({"deep": BOX})), ("a", spaces.Discrete(2))]),
    ],
    ids=str,
)
def test_space_comes_back_equal_and_in_order(space):
    returned = space_from_json(json.loads(as_json(space_to_json(space))))

    assert returned == space
    assert (returned.dtype, returned.shape) == (space.dtype, space.shape)
    if isinstance(space, spaces.Dict):
        assert [*returned] == [*space]


class MyBox(spaces.Box):
    pass


@pytest.mark.parametrize(
    "space", [spaces.Tuple([BOX]), spaces.Dict({"text": spaces.Text(3)}), MyBox(-1, 1, (2,))]
)
def test_other_spaces_are_refused(space):
    with pytest.raises(ValueError, match="without pickle"):
        space_to_json(space)
