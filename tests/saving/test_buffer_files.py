import json
import pickle
import tracemalloc
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import stored_buffers
from builders import BOX, DICT, TWO_ACTIONS, fill, probabilities_in
from checks import assert_same_batch, assert_same_buffer, check_valid
from gymnasium import spaces
from sb3_per.prioritization.lap import LossAdjusted

from examples.custom_priorities import SeldomReplayed
from sb3_per import (
    PERDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    load_buffer,
    load_checkpoint,
    save_buffer,
    save_checkpoint,
)
from sb3_per.prioritization.proportional import Proportional

MEMORY_OPTIMISED = {"optimize_memory_usage": True, "handle_timeout_termination": False}
KINDS = [
    {},
    {"prioritization": "rank"},
    {"prioritization": "rank", "new_priority": "max_stored", "weight_normalization": "buffer"},
    {"prioritization": "rank", "replacement": False, **MEMORY_OPTIMISED},
    {"new_priority": "max_stored", "weight_normalization": "buffer", "td_error_clip": 2.0},
    {"replacement": False, "stratified": False, "n_steps": 3, "n_envs": 3, "gamma": 0.5},
    {"space": DICT, "n_envs": 2, "prioritization": "rank"},
    {**MEMORY_OPTIMISED, "n_envs": 2},
]


class Storable(Proportional):
    """A prioritization of one's own that offers its state."""

    def __init__(self, n_slots, **options):
        super().__init__(n_slots, **options)
        self.n_updates = 0

    def update(self, slots, td_errors):
        super().update(slots, td_errors)
        self.n_updates += 1

    def state(self):
        return {**super().state(), "n_updates": self.n_updates}

    def restore(self, state):
        super().restore(state)
        self.n_updates = state["n_updates"]


class WithOption(Storable):
    def __init__(self, n_slots, *, bonus=1.0, **options):
        super().__init__(n_slots, **options)
        self.bonus = bonus

    def state(self):
        return super().state()

    def restore(self, state):
        super().restore(state)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "buffer.npz"


@pytest.fixture(autouse=True)
def _seed():
    np.random.seed(0)  # noqa: NPY002  # where buffers take their seed from


def make(n_rows=0, *, size=64, space=BOX, **options):
    kind = PrioritizedDictReplayBuffer if space is DICT else PrioritizedReplayBuffer
    buffer = kind(size, space, TWO_ACTIONS, "cpu", **options)
    return fill(buffer, n_rows, done_at={(9, 0)}, truncated_at={(12, 0)})


@pytest.mark.parametrize("n_rows", [0, 1, 9, 63, 64, 90])
@pytest.mark.parametrize("options", KINDS)
def test_a_stored_buffer_goes_on_as_one_that_was_not(options, n_rows, path):
    size = 64 * options.get("n_envs", 1)
    buffer = make(n_rows, size=size, **options)
    buffer.beta = 0.7
    if n_rows > 1:
        waiting = buffer.sample(1).slots
        for errors in (np.linspace(-5, 5, 32), np.linspace(-1, 1, 32)):
            buffer.update_priorities(buffer.sample(1).slots, errors[:1])
            buffer.update_priorities(np.arange(n_rows % 64), errors.mean() + np.arange(n_rows % 64))
        buffer.sample(1)
    fill(buffer, 2, first=n_rows)

    save_buffer(buffer, path)
    loaded = load_buffer(path, "cpu")

    assert type(loaded) is type(buffer)
    assert_same_buffer(loaded, buffer)
    assert_same_batch(buffer.sample(2), loaded.sample(2))
    if n_rows > 1:  # a TD error that was awaited, perhaps of what is overwritten by now
        for one in (buffer, loaded):
            one.update_priorities(waiting, [40.0])
    for step in range(3):
        for one in (buffer, loaded):
            fill(one, 25, first=n_rows + 2 + 25 * step)
        left, right = buffer.sample(16), loaded.sample(16)
        assert_same_batch(left, right)
        for one in (buffer, loaded):
            one.update_priorities(left.slots, left.rewards - 40)
    assert_same_buffer(loaded, buffer)
    check_valid(loaded)


def test_a_buffer_that_is_being_stored_draws_as_if_it_were_not(path):
    buffer, twin = make(20), make(20)
    twin.generator.bit_generator.state = buffer.generator.bit_generator.state

    save_buffer(buffer, path)

    assert_same_batch(buffer.sample(8), twin.sample(8))


@pytest.mark.parametrize("is_updated", [False, True])
def test_whoever_loads_a_buffer_and_never_updates_it_is_warned(is_updated, path):
    buffer = make(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(20):
            batch = buffer.sample(4)
    if is_updated:
        buffer.update_priorities(batch.slots, np.ones(4))
    save_buffer(buffer, path)

    for loaded in (load_buffer(path, "cpu"), pickle.loads(pickle.dumps(buffer))):
        for _ in range(9):
            loaded.sample(4)
        with pytest.warns(UserWarning, match="update_priorities was not called"):
            loaded.sample(4)


@pytest.mark.parametrize(("space", "name"), [(BOX, "observations"), (DICT, "observations/vector")])
def test_only_what_was_written_is_stored(space, name, path):
    save_buffer(make(30, size=10_000, space=space), path)

    with np.load(path) as arrays:
        assert arrays[name].shape == (30, 1, 2)
        assert arrays["rewards"].shape == (30, 1)


def test_storage_tells_of_draws_whose_transition_was_replaced_just_now():
    buffer = make(8, size=8)
    buffer.sample(8)

    fill(buffer, 2, first=8)
    buffer.hand_over_new_rows()

    assert (~buffer.storage()["draw_log"]).tolist() == [2, 2, 1, 1, 1, 1, 1, 1]


def test_storing_makes_no_second_copy_in_memory(path):
    big = spaces.Box(-1, 1, (50,), np.float32)
    buffer = PrioritizedReplayBuffer(40_000, big, TWO_ACTIONS, "cpu")
    buffer.full = True
    buffer.prioritization.insert(np.arange(40_000))
    size = sum(part.nbytes for part in buffer.storage().values())

    tracemalloc.start()
    save_buffer(buffer, path)
    saving = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tracemalloc.start()
    load_buffer(path, "cpu")
    loading = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert size > 16e6
    assert saving < 3e6
    assert loading < size + 4e6  # the new buffer itself, and its leaves


@pytest.mark.parametrize("name", stored_buffers.NAMES)
def test_buffers_of_the_first_format_load_and_draw_what_they_drew_when_they_were_written(name):
    expected = json.loads(stored_buffers.FOLDER.joinpath(f"{name}.json").read_text())

    loaded = load_buffer(stored_buffers.FOLDER / f"{name}.npz", "cpu")

    check_valid(loaded)
    for drawn, wanted in zip(stored_buffers.next_batches(loaded), expected, strict=True):
        assert drawn[0] == wanted[0]
        for column, figures in zip(drawn[1:], wanted[1:], strict=True):
            np.testing.assert_allclose(column, figures, rtol=1e-6)


# Prioritizations of one's own


def test_a_prioritization_that_offers_its_state_is_stored_and_named_on_loading(path):
    buffer = make(20, prioritization=Storable, alpha=0.9)
    for _ in range(3):
        buffer.update_priorities(buffer.sample(8).slots, np.arange(8.0))
    save_buffer(buffer, path)

    loaded = load_buffer(path, "cpu", prioritization=Storable)

    assert (loaded.prioritization.n_updates, loaded.prioritization.alpha) == (3, 0.9)
    assert_same_buffer(loaded, buffer)
    for wrong in (None, Proportional):
        with pytest.raises(ValueError, match=r"buffer.npz needs prioritization=Storable, got"):
            load_buffer(path, "cpu", prioritization=wrong)


def test_options_that_only_a_function_knows_are_not_lost(path):
    function = partial(LossAdjusted, threshold=2.0)
    save_buffer(make(20, prioritization=function), path)

    assert load_buffer(path, "cpu", prioritization=function).prioritization.floor == 2.0
    with pytest.raises(ValueError, match="needs prioritization=LossAdjusted, got None"):
        load_buffer(path, "cpu")


def test_a_prioritization_with_options_of_its_own_is_asked_for(path):
    options = {"prioritization": WithOption, "prioritization_kwargs": {"bonus": 2.0}}
    save_buffer(make(20, **options), path)

    with pytest.raises(ValueError, match="needs prioritization=WithOption, got None"):
        load_buffer(path, "cpu")
    assert load_buffer(path, "cpu", prioritization=WithOption).prioritization.bonus == 2.0


def test_flags_that_are_numbers_are_stored_as_flags(path):
    save_buffer(make(9, handle_timeout_termination=1), path)

    assert load_buffer(path, "cpu").handle_timeout_termination is True


def test_a_function_that_makes_a_prioritization_loads_what_it_made(path):
    buffer = make(20, prioritization=partial(Storable), alpha=0.9)
    buffer.update_priorities([1, 2], [3.0, 4.0])
    save_buffer(buffer, path)

    assert_same_buffer(load_buffer(path, "cpu", prioritization=partial(Storable)), buffer)
    with pytest.raises(ValueError, match=r"needs prioritization=Storable, got"):
        load_buffer(path, "cpu", prioritization=partial(Proportional))


def test_a_prioritization_that_would_lose_what_it_adds_is_refused(path):
    with pytest.raises(ValueError, match=r"state\(\) and restore\(state\) .* got 'SeldomReplayed'"):
        save_buffer(make(20, prioritization=SeldomReplayed), path)

    assert not path.exists()


def test_a_subclass_of_a_buffer_is_refused(path):
    class Mine(PrioritizedReplayBuffer):
        pass

    with pytest.raises(ValueError, match=r"no subclass \(save_replay_buffer .*\), got 'Mine'"):
        save_buffer(Mine(10, BOX, TWO_ACTIONS), path)


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"slots": [0, 0], "priorities": [2.0, 1.0]}, "slots must be distinct"),
        ({"slots": [0, 9], "priorities": [2.0, 1.0]}, "slots must be distinct"),
        ({"slots": [-1, 2], "priorities": [2.0, 1.0]}, "slots must be distinct"),
        ({"slots": [0, 1], "priorities": [1.0, 2.0]}, "by descending priority"),
        ({"slots": [0, 1], "priorities": [2.0, np.nan]}, r"priorities must be in \(0, 2.0\]"),
        ({"slots": [0, 1], "priorities": [2.0]}, "slots must be distinct"),
        ({"slots": [0.5, 1.5], "priorities": [2.0, 1.0]}, "slots must be .* type int64"),
        ({"slots": [[0], [1]], "priorities": [2.0, 1.0]}, "slots must be .* on one axis"),
        ({"slots": [*range(9)], "priorities": [2.0] * 9}, "slots must be at most 8 numbers"),
        ({"slots": [0, 1], "priorities": [3.0, 1.0]}, r"priorities must be in \(0, 2.0\]"),
        ({"slots": [0, 1], "priorities": [2.0, 0.0]}, r"priorities must be in \(0, 2.0\]"),
        ({"slots": [0, 1], "priorities": [2, 1]}, "priorities must be .* type float64"),
        ({"leaves": [1.0, 0.7]}, r"leaves must be rank\^-0.6 for 2 ranks"),
        ({"leaves": [1.0]}, r"leaves must be rank\^-0.6 for 2 ranks"),
        ({"largest_priority": np.nan}, "largest_priority must be a number in"),
        ({"largest_priority": 0.5}, r"largest_priority must be a number in \[1.0,"),
        ({"largest_priority": "2"}, "largest_priority must be a number in .* got '2'"),
        ({"largest_priority": None}, "largest_priority must be a number in .* got None"),
        ({"slots": None}, "slots must be .* got None"),
    ],
)
def test_an_order_that_cannot_be_is_refused(state, complaint):
    buffer = make(3, size=8, prioritization="rank")
    before = probabilities_in(buffer, np.arange(8)).tolist()
    whole = {"slots": [0, 1], "priorities": [2.0, 1.0], "leaves": [1.0, 2**-0.6], **state}
    crafted = {key: np.array(own) if isinstance(own, list) else own for key, own in whole.items()}

    with pytest.raises(ValueError, match=complaint):
        buffer.prioritization.restore({"largest_priority": 2.0, **crafted})

    assert probabilities_in(buffer, np.arange(8)).tolist() == before


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"leaves": np.ones(9)}, "leaves must be at most 8 numbers"),
        ({"leaves": np.ones((2, 2))}, "leaves must be .* on one axis"),
        ({"leaves": np.ones(2, dtype=np.float32)}, "leaves must be .* type float64"),
        ({"leaves": np.array([0.5, -0.5])}, r"leaves must be in \[0, "),
        ({"leaves": np.array([0.5, np.nan])}, r"leaves must be in \[0, "),
        ({"leaves": np.array([0.5, 1.6])}, r"leaves must be in \[0, "),
        ({"leaves": None}, "leaves must be .* got None"),
        ({"largest_priority": np.inf}, "largest_priority must be a number in"),
        ({"largest_priority": -1}, "largest_priority must be a number in"),
        ({"largest_priority": True}, "largest_priority must be a number in"),
    ],
)
def test_leaves_that_cannot_be_are_refused(state, complaint):
    buffer = make(3, size=8)
    before = probabilities_in(buffer, np.arange(8)).tolist()

    with pytest.raises(ValueError, match=complaint):
        buffer.prioritization.restore({"largest_priority": 2.0, "leaves": np.ones(3), **state})

    assert probabilities_in(buffer, np.arange(8)).tolist() == before


def test_slots_that_are_no_whole_numbers_never_reach_a_kernel():
    """Floats in [0, 16) are distinct by the thousand: they were written beyond arrays for 16."""
    buffer = make(3, size=16, prioritization="rank")
    order = buffer.prioritization._order

    for n_slots in (16, 1000):
        with pytest.raises(ValueError, match="slots must be distinct whole numbers"):
            order.restore(np.linspace(0, 15.99, n_slots), np.linspace(2, 1, n_slots))


# In a model


def model_of(**options):
    options = {"buffer_size": 64, "policy_kwargs": {"net_arch": [8]}, **options}
    return PERDQN("MlpPolicy", "CartPole-v1", device="cpu", seed=0, **options)


def test_a_model_goes_on_with_a_loaded_buffer(path):
    model = model_of(learning_starts=20).learn(50)
    save_buffer(model.replay_buffer, path)
    other = model_of(learning_starts=20)

    other.use_replay_buffer(load_buffer(path))

    assert_same_buffer(other.replay_buffer, model.replay_buffer)
    other.learn(50)


def test_a_file_of_save_replay_buffer_is_told_what_reads_it(tmp_path):
    model_of().save_replay_buffer(tmp_path / "buffer.pkl")

    with pytest.raises(ValueError, match=r"buffer.pkl must not be a pickle, .*load_replay_buffer"):
        load_buffer(tmp_path / "buffer.pkl")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"n_steps": 3}, "n_steps must equal the model's 1, got 3"),
        ({"n_envs": 2}, "n_envs must equal the model's 1, got 2"),
        ({}, "observation_space must equal the model's"),
    ],
)
def test_a_model_refuses_a_buffer_that_does_not_fit(options, complaint, path):
    save_buffer(make(5, **options), path)
    model = model_of()
    own = model.replay_buffer

    with pytest.raises(ValueError, match=complaint):
        model.use_replay_buffer(load_buffer(path))

    assert model.replay_buffer is own


def test_n_step_returns_of_another_discount_are_refused(path):
    save_buffer(model_of(n_steps=3, gamma=0.9).replay_buffer, path)

    with pytest.raises(ValueError, match=r"gamma must equal the model's 0.5, got 0.9"):
        model_of(n_steps=3, gamma=0.5).use_replay_buffer(load_buffer(path))
    model_of(n_steps=3, gamma=0.9).use_replay_buffer(load_buffer(path))


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_model_takes_over_how_a_buffer_stores_observations(is_shared, tmp_path):
    shared = {
        "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
    }
    ours, theirs = ({}, shared) if is_shared else (shared, {})
    model = model_of(**ours, learning_starts=20)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the buffer keeps its own handling of time limits
        model.use_replay_buffer(model_of(**theirs, learning_starts=20).learn(50).replay_buffer)

    env = gym.make("CartPole-v1")
    save_checkpoint(model, tmp_path / "checkpoint")
    model.save(tmp_path / "model")
    loaded = [load_checkpoint(tmp_path / "checkpoint", env), PERDQN.load(tmp_path / "model", env)]
    for each in (model, *loaded):
        assert each.replay_buffer.optimize_memory_usage == is_shared
        each.learn(50, reset_num_timesteps=False)


def test_the_buffer_takes_the_models_device(path):
    save_buffer(model_of().replay_buffer, path)
    model = model_of()

    model.use_replay_buffer(load_buffer(path, "meta"))

    assert model.replay_buffer.device == model.device
