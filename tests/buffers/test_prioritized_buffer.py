"""The buffer at its public door: batches, weights, updates, hooks, threads."""

import sys
import threading
import tracemalloc
from copy import deepcopy

import numpy as np
import pytest
import torch as th
from builders import DICT, MEMORY_OPTIMISED, fill
from builders import make_buffer as make
from checks import assert_same_batch, assert_same_buffer, check_valid
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_per import PrioritizedReplayBuffer

# Distributions are measured by many batches without updates.
pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")


@pytest.fixture(autouse=True)
def _seed_as_sb3_does():
    np.random.seed(0)  # noqa: NPY002  # SB3 seeds the global state; buffers take theirs from it


def slots_reached(buffer, n_batches=60):
    """Every slot that many batches hold."""
    return {slot for _ in range(n_batches) for slot in buffer.sample(32).slots.tolist()}


# What a batch holds


def test_batch_has_sb3s_fields_first():
    batch = make(10, n_envs=2).sample(32)

    assert batch._fields[:6] == ReplayBufferSamples._fields
    assert batch.rewards.shape == batch.dones.shape == batch.actions.shape == (32, 1)
    assert (batch.weights.shape, batch.weights.dtype) == ((32, 1), th.float32)
    assert (batch.slots.shape, batch.slots.dtype) == ((32,), np.int64)
    assert batch.discounts is batch.infos is None


def test_interrupted_add_leaves_the_row_out():
    """Ctrl-C may come between any two lines of ``add``; the row counts with the last one."""
    buffer = make(3, size=8)

    class Interrupted(list):
        def __iter__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        buffer.add(*[np.zeros((1, 2))] * 2, *[np.zeros(1)] * 3, Interrupted([{}]))

    assert (buffer.pos, buffer.full, buffer.size()) == (3, False, 3)
    assert slots_reached(buffer) == {0, 1, 2}


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
def test_interrupted_reset_leaves_nothing_that_cannot_be_sampled(prioritization):
    """Ctrl-C may come between any two lines of ``reset``."""
    is_interrupted, n_lines = True, 0
    while is_interrupted:
        buffer = make(8, size=8, prioritization=prioritization)
        is_interrupted, n_lines = interrupted_at(n_lines, buffer.reset), n_lines + 1
        fill(buffer, 3)

        stored = set(range(8 if buffer.full else buffer.pos))
        assert stored in ({0, 1, 2}, set(range(8)))
        assert slots_reached(buffer) == stored
        assert {*np.flatnonzero(buffer.probabilities(np.arange(8)))} == stored
        assert buffer.n_sampleable == len(stored)

    assert n_lines > 5


def interrupted_at(n_lines, function):
    """Call a function with Ctrl-C at one of its lines, and return whether it has that line."""
    lines = iter(range(n_lines, -1, -1))

    def trace(frame, event, argument):
        if event == "line" and next(lines, None) == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


# Weights


def test_batch_may_have_its_own_beta():
    buffer = make(10)
    buffer.update_priorities(np.arange(10), np.arange(10.0))

    assert buffer.sample(8, beta=0).weights.tolist() == [[1.0]] * 8
    assert buffer.sample(8).weights.min() < 1
    assert buffer.beta == 0.4


# Updates


@pytest.mark.parametrize("dtype", ["int32", "uint64", "int64"])
@pytest.mark.parametrize("error_dtype", [th.bfloat16, th.float32, th.float64])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_update_accepts_arrays_and_tensors(dtype, error_dtype, shape):
    slots, errors = np.array([1, 4, 9], dtype).reshape(shape), np.array([0.5, -1.5, 2.5])
    tensor = th.tensor(errors, dtype=error_dtype, requires_grad=True)
    for given in ((slots, errors), (th.from_numpy(slots), tensor.reshape(shape))):
        buffer = make(10, alpha=1.0, eps=0.5)

        buffer.update_priorities(*given)

        probabilities = buffer.probabilities(np.arange(10))
        np.testing.assert_allclose(probabilities[[0, 1, 4, 9]] / probabilities[1], [1, 1, 2, 3])


BAD_UPDATES = [
    ([0, 1], [1.0, np.nan], "nan for slot 1"),
    ([5, 1], [-np.inf, 1.0], "-inf for slot 5"),
    ([5, 64], [1.0, 1.0], "64"),
    ([-1, 1], [1.0, 1.0], "-1"),
    ([0, 1, 2], [1.0, 1.0], "2 .* for 3"),
    ([[0, 1]], [1.0, 1.0], "shape"),
    ([0, 1], [[1.0, 1.0]], "shape"),
    ([0.0, 1.0], [1.0, 1.0], "whole numbers"),
]


@pytest.mark.parametrize(("slots", "td_errors", "complaint"), BAD_UPDATES)
def test_bad_update_changes_nothing(slots, td_errors, complaint):
    buffer = make(10)
    buffer.sample(4)
    twin = deepcopy(buffer)

    with pytest.raises(ValueError, match=complaint):
        buffer.update_priorities(slots, td_errors)

    assert_same_buffer(buffer, twin)
    assert_same_batch(buffer.sample(8), twin.sample(8))


TOO_FEW = [
    ({}, 0, 4, "at least 1 transitions .* got 0"),
    ({"size": 1, **MEMORY_OPTIMISED}, 3, 1, "larger learning_starts or buffer_size .* got 0"),
    ({"replacement": False}, 3, 4, "at least 4 .* got 3"),
    *[({}, 3, batch_size, "batch_size") for batch_size in (0, 2.0)],
]


@pytest.mark.parametrize(("options", "n_rows", "batch_size", "complaint"), TOO_FEW)
def test_bad_sample_uses_no_random_numbers(options, n_rows, batch_size, complaint):
    buffer = make(n_rows, **options)
    before = buffer.generator.bit_generator.state

    with pytest.raises(ValueError, match=complaint):
        buffer.sample(batch_size)

    assert buffer.generator.bit_generator.state == before


# SB3's hooks


class Relabelling(PrioritizedReplayBuffer):
    """SB3's hook for batches, overridden as contrib's and imitation's buffers do."""

    def _get_samples(self, batch_inds, env=None):
        samples = super()._get_samples(batch_inds, env)
        return samples._replace(rewards=samples.rewards + 100)


def test_get_samples_of_a_subclass_is_called():
    buffer, plain = make(20, kind=Relabelling), make(20)

    batch = buffer.sample(32)

    assert th.equal(batch.rewards, plain._get_samples(batch.slots).rewards + 100)


# Being an SB3 buffer


def test_buffers_are_replay_buffers_of_sb3():
    assert isinstance(make(), ReplayBuffer)
    assert isinstance(make(space=DICT), DictReplayBuffer)
    assert len(make(10, n_envs=2)) == 20
    assert bool(make(0)), "an empty buffer is a buffer: `buffer or other` must not drop it"


@pytest.mark.filterwarnings("error")
def test_missing_updates_cause_one_warning():
    buffer = make(10)
    for _ in range(20):
        for _ in range(9):
            batch = buffer.sample(4)
        buffer.update_priorities(batch.slots, np.ones(4))

    with pytest.warns(UserWarning, match="update_priorities.*algorithm of sb3_per") as caught:
        [buffer.sample(4) for _ in range(50)]
    assert len(caught) == 1


# Memory and threads


def test_step_takes_memory_for_the_batch_alone():
    buffer = make(2000, size=100_000)
    buffer.update_priorities(buffer.sample(32).slots, np.ones(32))
    tracemalloc.start()
    for step in range(20):
        fill(buffer, 1, first=2000 + step)
        batch = buffer.sample(32)
        buffer.update_priorities(batch.slots, np.ones(32))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prioritization": "rank"},
        {"uniform_share": 0.5},
        {"prioritization": "rank", "new_priority": "max_stored", "replacement": False},
    ],
)
def test_one_thread_may_add_while_another_samples(options):
    buffer = make(8, size=4000, **options)
    adder = threading.Thread(target=lambda: fill(buffer, 6000, first=8))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    n_batches = 0
    try:
        adder.start()
        while adder.is_alive():
            batch = buffer.sample(8)
            buffer.update_priorities(batch.slots, np.ones(8))
            n_batches += 1
        adder.join()
    finally:
        sys.setswitchinterval(interval)

    assert n_batches > 10, "never at the same time: the test would show nothing"
    assert buffer.n_sampleable == 4000
    check_valid(buffer)
    if options.get("uniform_share"):
        assert len(slots_reached(buffer, n_batches=3000)) > 3900
