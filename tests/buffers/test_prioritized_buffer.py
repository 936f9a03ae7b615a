"""The buffer at its public door: batches, weights, updates, stale TD errors, hooks, threads."""

import io
import itertools
import sys
import threading
import tracemalloc
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch as th
from builders import BOX, DICT, TWO_ACTIONS, fill
from checks import assert_same_batch, assert_same_buffer, check_valid
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

# Distributions are measured by many batches without updates.
pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")

MEMORY_OPTIMISED = {"optimize_memory_usage": True, "handle_timeout_termination": False}
KINDS = pytest.mark.parametrize("prioritization", ["proportional", "rank"])


@pytest.fixture(autouse=True)
def _seed_as_sb3_does():
    np.random.seed(0)  # noqa: NPY002  # SB3 seeds the global state; buffers take theirs from it


def make(n_rows=0, *, size=64, n_envs=1, space=BOX, kind=PrioritizedReplayBuffer, **options):
    kind = PrioritizedDictReplayBuffer if space is DICT else kind
    return fill(kind(size, space, TWO_ACTIONS, "cpu", n_envs=n_envs, **options), n_rows)


def slots_reached(buffer, n_batches=60):
    """Every slot that many batches hold."""
    return {slot for _ in range(n_batches) for slot in buffer.sample(32).slots.tolist()}


def relative(buffer, slots):
    """Probabilities of slots relative to the smallest one of the buffer."""
    probabilities = buffer.probabilities(np.arange(buffer.n_stored))
    return probabilities[slots] / probabilities.min()


# What a batch holds


def test_a_batch_has_sb3s_fields_first_and_sb3s_shapes():
    batch = make(10, n_envs=2).sample(32)

    names = "observations actions next_observations dones rewards discounts weights slots"
    assert batch._fields == tuple(names.split())
    assert batch.observations.shape == (32, 2)
    assert batch.rewards.shape == batch.dones.shape == batch.actions.shape == (32, 1)
    assert (batch.weights.shape, batch.weights.dtype) == ((32, 1), th.float32)
    assert (batch.slots.shape, batch.slots.dtype) == ((32,), np.int64)
    assert batch.discounts is None
    assert batch.indices is batch.slots


@pytest.mark.parametrize("space", [BOX, DICT])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_batch_holds_the_transitions_of_its_slots(space, n_envs):
    buffer = make(30, size=20 * n_envs, n_envs=n_envs, space=space)

    batch = buffer.sample(256)

    vector = batch.observations["vector"] if space is DICT else batch.observations
    steps, envs = np.divmod(batch.slots, n_envs)
    steps = np.where(steps < 10, steps + 20, steps)
    assert vector.tolist() == [[step, env] for step, env in zip(steps, envs, strict=True)]
    np.testing.assert_allclose(batch.rewards.flatten(), steps + envs / 10, rtol=1e-6)
    assert batch.actions.flatten().tolist() == ((steps + envs) % 2).tolist()


@KINDS
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("n_rows", [1, 2, 15, 16, 17])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_every_stored_slot_is_sampled_and_no_other(n_rows, n_envs, share, prioritization):
    options = {"prioritization": prioritization, "uniform_share": share}
    buffer = make(n_rows, size=16 * n_envs, n_envs=n_envs, **options)

    assert slots_reached(buffer) == set(range(min(n_rows, 16) * n_envs))


@KINDS
@pytest.mark.parametrize("n_rows", [5, 8, 9, 21])
def test_the_write_head_of_memory_optimised_storage_has_probability_zero(n_rows, prioritization):
    buffer = make(n_rows, size=8, alpha=0.0, prioritization=prioritization, **MEMORY_OPTIMISED)
    sampleable = set(range(n_rows)) if n_rows < 8 else set(range(8)) - {n_rows % 8}

    for _ in range(2):  # also after TD errors for the write head, which are ignored
        assert set(np.flatnonzero(buffer.probabilities(np.arange(8)))) == sampleable
        assert slots_reached(buffer) == sampleable
        assert buffer.n_sampleable == len(sampleable)
        buffer.update_priorities(np.arange(min(n_rows, 8)), np.full(min(n_rows, 8), 1e6))
    check_valid(buffer)


@pytest.mark.parametrize("n_rows", [5, 8, 9, 14])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("storage", [{}, MEMORY_OPTIMISED])
def test_a_uniform_share_of_1_samples_exactly_uniformly_whatever_is_missing(
    n_rows, n_envs, storage
):
    buffer = make(n_rows, size=8 * n_envs, n_envs=n_envs, uniform_share=1.0, **storage)
    buffer.update_priorities(np.arange(buffer.n_stored), np.arange(buffer.n_stored) ** 2.0)
    expected = np.flatnonzero(buffer.prioritization.probabilities(np.arange(buffer.n_slots)))

    # As many strata as transitions: one sample of each.
    assert buffer.sample(len(expected)).slots.tolist() == expected.tolist()
    assert (buffer.probabilities(expected) == 1 / len(expected)).all()


def test_an_interrupted_add_leaves_the_row_out():
    """Ctrl-C may come between any two lines of ``add``; the row counts with the last one."""
    buffer = make(3, size=8)

    class Interrupted(list):
        def __iter__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        buffer.add(*[np.zeros((1, 2))] * 2, *[np.zeros(1)] * 3, Interrupted([{}]))

    assert (buffer.pos, buffer.full, buffer.size()) == (3, False, 3)
    assert slots_reached(buffer) == {0, 1, 2}


def test_transitions_stored_before_the_first_update_do_not_starve():
    """Three rounds of 1000 / 32 batches see nearly all of those that entered at the top."""
    shares = {}
    for initial_priority in (1.0, 1e-6):
        buffer, seen = make(1000, size=1000, initial_priority=initial_priority), set()
        for _ in range(3 * 1000 // 32):
            batch = buffer.sample(32)
            seen.update(batch.slots.tolist())
            buffer.update_priorities(batch.slots, np.full(32, 0.1))
        shares[initial_priority] = len(seen) / 1000

    assert shares[1.0] > 0.95
    assert shares[1e-6] < 0.5


def test_each_added_transition_is_inserted_once(monkeypatch):
    buffer, inserted = make(n_envs=3), []
    monkeypatch.setattr(buffer.prioritization, "insert", inserted.extend)

    fill(buffer, 5)
    buffer.update_priorities([], [])

    assert inserted == list(range(15))


# Weights


@KINDS
@pytest.mark.parametrize("normalization", ["batch", "buffer", "mean", "none"])
@pytest.mark.parametrize("flags", list(itertools.product([True, False], repeat=2)))
def test_with_alpha_0_all_weights_are_1_whatever_the_scheme(normalization, flags, prioritization):
    options = {"weight_normalization": normalization, "prioritization": prioritization}
    options |= {"stratified": flags[0], "replacement": flags[1], **MEMORY_OPTIMISED}

    weights = make(8, size=8, alpha=0.0, beta=1.0, **options).sample(7).weights

    np.testing.assert_allclose(weights, 1.0, rtol=1e-6)


@KINDS
@pytest.mark.parametrize("flags", list(itertools.product([True, False], repeat=2)))
def test_with_full_correction_a_batch_estimates_the_mean_without_bias(flags, prioritization):
    values = np.arange(20.0)
    options = {"prioritization": prioritization, "stratified": flags[0], "replacement": flags[1]}
    buffer = make(20, beta=1.0, weight_normalization="none", **options)
    buffer.update_priorities(np.arange(20), 0.1 + (values - 7) ** 2)

    batches = [buffer.sample(8) for _ in range(10_000)]
    estimates = [np.mean(b.weights.numpy()[:, 0] * values[b.slots]) for b in batches]
    unweighted = [np.mean(values[b.slots]) for b in batches]

    # Five standard errors: a false alarm in 1.7 million seeds.
    bound = 5 * np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - values.mean()) < bound
    assert abs(np.mean(unweighted) - values.mean()) > bound


def test_a_batch_may_have_its_own_beta():
    buffer = make(10)
    buffer.update_priorities(np.arange(10), np.arange(10.0))

    assert buffer.sample(8, beta=0).weights.tolist() == [[1.0]] * 8
    assert buffer.sample(8).weights.min() < 1
    assert buffer.beta == 0.4


# Updates


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, th.int32, th.int64])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_slots_and_td_errors_may_be_numpy_or_torch_of_any_width(dtype, shape):
    buffer = make(10, alpha=1.0, eps=0.5)
    slots, errors = np.array([1, 4, 9]).reshape(shape), np.array([0.5, -1.5, 2.5]).reshape(shape)
    if isinstance(dtype, th.dtype):
        slots, errors = th.as_tensor(slots, dtype=dtype), th.tensor(errors, requires_grad=True)
    else:
        slots = slots.astype(dtype)

    buffer.update_priorities(slots, errors)

    np.testing.assert_allclose(relative(buffer, [0, 1, 4, 9]), [1, 1, 2, 3])


@pytest.mark.parametrize("dtype", [th.bfloat16, th.float16, th.float32, th.float64])
def test_td_errors_may_be_tensors_of_any_width(dtype):
    buffer = make(10, alpha=1.0, eps=0.5)

    buffer.update_priorities(np.array([1]), th.tensor([1.5], dtype=dtype))

    assert relative(buffer, [0, 1]).tolist() == [1, 2]


def test_td_errors_of_slots_that_were_never_sampled_count():
    buffer = make(10, alpha=1.0, eps=0.5)

    buffer.update_priorities([3], [1.5])
    fill(buffer, 64, first=10)  # each slot is overwritten
    buffer.update_priorities([5], [3.5])

    np.testing.assert_allclose(relative(buffer, [4, 5]), [1, 2])  # new ones enter with 2


BAD_UPDATES = [
    ([0, 1], [1.0, np.nan], "nan for slot 1"),
    ([5, 1], [-np.inf, 1.0], "-inf for slot 5"),
    ([5, 1], [1.0, 1e39], "1e.39 for slot 1"),
    ([5, 10], [1.0, 1.0], "10"),
    ([-1, 1], [1.0, 1.0], "-1"),
    ([0, 1, 2], [1.0, 1.0], "2 .* for 3"),
    ([[0, 1]], [1.0, 1.0], "shape"),
    ([0, 1], [[1.0, 1.0]], "shape"),
    ([0.0, 1.0], [1.0, 1.0], "whole numbers"),
    ([0, 1], ["1.0", "1.0"], "real numbers"),
    ([0, 1], [1.0, 1j], "real numbers"),
]


@pytest.mark.parametrize(("slots", "td_errors", "complaint"), BAD_UPDATES)
def test_a_bad_update_is_refused_before_anything_has_changed(slots, td_errors, complaint):
    buffer = make(10)
    buffer.sample(4)
    twin = deepcopy(buffer)

    with pytest.raises(ValueError, match=complaint):
        buffer.update_priorities(slots, td_errors)

    assert_same_buffer(buffer, twin)
    assert_same_batch(buffer.sample(8), twin.sample(8))


@pytest.mark.parametrize("slots", [[-1], [64], [0.5]])
def test_probabilities_of_what_is_no_slot_are_refused(slots):
    with pytest.raises(ValueError, match="slots must"):
        make(20).probabilities(slots)


TOO_FEW = [
    ({}, 0, 4, "at least 1 transition .* got 0"),
    ({"size": 1, **MEMORY_OPTIMISED}, 3, 1, "larger buffer_size"),
    ({"replacement": False}, 3, 4, "at least 4 .* larger learning_starts .* got 3"),
    ({"replacement": False, "size": 3}, 3, 4, "larger buffer_size"),
    ({"replacement": False, "size": 4, **MEMORY_OPTIMISED}, 9, 4, "larger buffer_size .* got 3"),
    *[({}, 3, batch_size, "batch_size") for batch_size in (0, 2.0, "2", True)],
]


@pytest.mark.parametrize(("options", "n_rows", "batch_size", "complaint"), TOO_FEW)
def test_a_bad_sample_is_refused_and_uses_no_random_numbers(options, n_rows, batch_size, complaint):
    buffer = make(n_rows, **options)
    before = buffer.generator.bit_generator.state

    with pytest.raises(ValueError, match=complaint):
        buffer.sample(batch_size)

    assert buffer.generator.bit_generator.state == before


@pytest.mark.parametrize(
    ("options", "batch_size"),
    [({"stratified": False, "replacement": False}, 200), ({"uniform_share": 0.5}, 255)],
)
def test_a_batch_size_may_be_numpys_with_8_bits(options, batch_size):
    buffer = make(300, size=300, **options)
    twin = deepcopy(buffer)

    assert_same_batch(buffer.sample(np.uint8(batch_size)), twin.sample(batch_size))


# Stale TD errors


@KINDS
@pytest.mark.parametrize("n_new", [1, 7, 8, 9, 24])
def test_stale_td_errors_are_dropped(prioritization, n_new):
    buffer, twin = (make(8, size=8, prioritization=prioritization) for _ in range(2))
    slots = np.unique(buffer.sample(8).slots)
    for one in (buffer, twin):
        fill(one, n_new, first=8)

    stale = slots < n_new
    buffer.update_priorities(slots, np.where(stale, 1e6, 3.0))
    twin.update_priorities(slots[~stale], np.full((~stale).sum(), 3.0))

    everything = np.arange(8)
    assert buffer.probabilities(everything).tolist() == twin.probabilities(everything).tolist()
    assert buffer.prioritization.largest_priority == twin.prioritization.largest_priority < 4
    check_valid(buffer)


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("n_batches", [1, 2, 130])
def test_td_errors_of_every_batch_from_before_a_wraparound_or_reset_are_dropped(
    n_batches, is_reset
):
    buffer = make(2, size=2, alpha=1.0)
    batches = [buffer.sample(2).slots for _ in range(n_batches)]
    if is_reset:
        buffer.reset()
    fill(buffer, 2, first=2)

    for slots in batches:
        buffer.update_priorities(slots[:1], [9.0])
        buffer.update_priorities(slots[1:], [9.0])

    assert buffer.prioritization.largest_priority == 1.0
    batch = buffer.sample(2)  # of the new transitions
    buffer.update_priorities(batch.slots, [5.0, 3.0])
    assert buffer.probabilities([0, 1]) == pytest.approx([5 / 8, 3 / 8])


def test_td_errors_of_a_transition_that_was_sampled_after_it_replaced_a_sampled_one_count():
    buffer = make(1, size=1, alpha=1.0)
    buffer.sample(1)
    fill(buffer, 1, first=1)
    batch = buffer.sample(1)

    buffer.update_priorities(batch.slots, [7.0])

    assert buffer.prioritization.largest_priority == pytest.approx(7.0)


def test_reset_empties_the_buffer_and_drops_td_errors_that_come_later():
    buffer = make(64, replacement=False)
    buffer.update_priorities(np.arange(64), np.arange(64.0) + 9)
    buffer.sample(50)
    sampled = np.flatnonzero(np.isin(np.arange(64), buffer.last_batch.slots))

    buffer.reset()

    assert (len(buffer), buffer.n_sampleable) == (0, 0)
    assert not buffer.probabilities(np.arange(64)).any()
    with pytest.raises(ValueError, match="got 0"):
        buffer.sample(1)
    buffer.update_priorities(sampled, np.full(len(sampled), 50.0))  # where nothing is
    fill(buffer, 3)
    buffer.update_priorities(sampled, np.full(len(sampled), 50.0))  # where something else is
    assert buffer.prioritization.largest_priority == 1.0
    never_sampled = np.setdiff1d(np.arange(3, 64), sampled)[0]
    for slot in (never_sampled, 64, -1):
        with pytest.raises(ValueError, match=f"got {slot}"):
            buffer.update_priorities([sampled[-1], slot], [1.0, 1.0])
    assert buffer.sample(3).observations[:, 0].sort()[0].tolist() == [0, 1, 2]
    check_valid(buffer)


# SB3's hooks


class Relabelling(PrioritizedReplayBuffer):
    """SB3's hook for batches, overridden as contrib's and imitation's buffers do."""

    def _get_samples(self, batch_inds, env=None):
        samples = super()._get_samples(batch_inds, env)
        self.called_with = batch_inds, env
        return samples._replace(rewards=samples.rewards + 100)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_a_subclasss_get_samples_is_called(n_envs, n_steps):
    options = {"n_envs": n_envs, "n_steps": n_steps, "gamma": 0.5}
    buffer, plain = make(20, kind=Relabelling, **options), make(20, **options)

    batch = buffer.sample(32)

    assert buffer.called_with[0].tolist() == batch.slots.tolist()
    expected = plain._get_samples(batch.slots)
    assert th.equal(batch.rewards, expected.rewards + 100)
    assert th.equal(batch.observations, expected.observations)
    # Rewards equal steps: t + (t + 1) / 2 + (t + 2) / 4 = 1.75 t + 1, except at the write head.
    steps, envs = np.divmod(batch.slots, n_envs)
    returns = steps + envs / 10 if n_steps == 1 else 1.75 * (steps + envs / 10) + 1
    inner = steps < 18
    np.testing.assert_allclose(batch.rewards.numpy()[inner, 0], 100 + returns[inner], rtol=1e-6)


class Replacing(PrioritizedReplayBuffer):
    """The documented pattern for rewards of the user's own."""

    def sample(self, batch_size, env=None, **options):
        batch = super().sample(batch_size, env, **options)
        return batch._replace(rewards=-batch.observations[:, :1])


def test_an_overridden_sample_may_replace_rewards():
    buffer = make(20, kind=Replacing)

    batch = buffer.sample(8)
    buffer.update_priorities(batch.slots, batch.rewards)

    assert batch.rewards.flatten().tolist() == (-batch.slots).tolist()
    assert batch.weights.shape == (8, 1)
    assert buffer.prioritization.largest_priority == pytest.approx(batch.slots.max())


# Being an SB3 buffer


def test_buffers_are_replay_buffers_of_sb3_with_a_length():
    assert isinstance(make(), ReplayBuffer)
    assert isinstance(make(space=DICT), PrioritizedReplayBuffer)
    assert len(make(10, n_envs=2)) == 20
    assert bool(make(0)), "an empty buffer is a buffer: `buffer or other` must not drop it"


def test_the_device_can_be_set_as_text_or_to_one_that_does_not_exist():
    buffer = make(10)

    buffer.device = th.device("cuda")  # SB3 does not check here either
    assert buffer.device.type == "cuda"
    buffer.device = "cpu"
    assert buffer.sample(4).observations.device == buffer.device == th.device("cpu")


def test_numpys_seed_determines_the_batches():
    batches = []
    for seed in (1, 1, 2):
        np.random.seed(seed)  # noqa: NPY002
        batches += [make(64).sample(32).slots.tolist(), make(64).sample(32).slots.tolist()]

    assert batches[:2] == batches[2:4] != batches[4:]
    assert batches[0] != batches[1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prioritization": "rank"},
        {"prioritization": "rank", "new_priority": "max_stored", "weight_normalization": "buffer"},
        {"prioritization": "rank", "replacement": False, **MEMORY_OPTIMISED},
        {"new_priority": "max_stored", "weight_normalization": "buffer"},
        {"replacement": False, "n_steps": 3},
        {"space": DICT},
        MEMORY_OPTIMISED,
        {"uniform_share": 0.3, "prioritization": "lap"},
        {"uniform_share": 0.5, "prioritization": "rank", **MEMORY_OPTIMISED},
        {"uniform_share": 0.5, "n_envs": 2, "n_steps": 3, "weight_normalization": "mean"},
    ],
)
def test_a_pickled_buffer_continues_with_the_same_batches(options):
    buffer = make(70, **options)
    buffer.beta = 0.7
    buffer.update_priorities(buffer.sample(32).slots, np.linspace(-5, 5, 32))
    stale = buffer.sample(32).slots
    file = io.BytesIO()
    save_to_pkl(file, buffer)
    file.seek(0)

    restored = load_from_pkl(file)

    for step in range(3):
        for one in (buffer, restored):
            fill(one, 5, first=70 + 5 * step)
            one.update_priorities(stale, np.linspace(-1, 1, 32))
        batch = buffer.sample(16)
        assert_same_batch(restored.sample(16), batch)
        for one in (buffer, restored):
            one.update_priorities(batch.slots, batch.rewards - 40)
    assert_same_buffer(restored, buffer)


def warnings_while(do, n_times=50):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(n_times):
            do()
    return [str(each.message) for each in caught]


def test_a_trainer_that_never_updates_priorities_is_warned_once():
    buffer = make(10)

    messages = warnings_while(lambda: buffer.sample(4))

    assert len(messages) == 1
    assert "update_priorities" in messages[0]


def test_a_trainer_that_updates_priorities_is_not_warned_until_it_stops():
    buffer = make(10)

    def train():
        for _ in range(9):
            batch = buffer.sample(4)
        buffer.update_priorities(batch.slots, np.ones(4))

    assert warnings_while(train) == []
    for _ in range(2):
        assert len(warnings_while(lambda: buffer.sample(4))) == 1
        train()


# Memory and threads


def test_a_step_takes_memory_for_the_batch_and_not_for_the_buffer():
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
def test_transitions_that_one_thread_adds_while_another_samples_can_all_be_sampled(options):
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
