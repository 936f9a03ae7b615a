import inspect
import io
import itertools
import re
import sys
import threading
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch as th
from builders import BOX, DICT, TWO_ACTIONS, fill, probabilities_in
from sb3_per.prioritization.sampling import SampledSlots
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.buffers.prioritized import OPTION_NAMES
from sb3_per.prioritization.proportional import Proportional
from sb3_per.prioritization.sampler import importance_weights

# Distributions are measured by many batches without updates.
pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")

MEMORY_OPTIMISED = {"optimize_memory_usage": True, "handle_timeout_termination": False}


@pytest.fixture(autouse=True)
def _seed_as_sb3_does():
    np.random.seed(0)  # noqa: NPY002  # SB3 seeds the global state; buffers take theirs from it


def make(n_rows=0, *, size=64, n_envs=1, space=BOX, **options):
    kind = PrioritizedDictReplayBuffer if space is DICT else PrioritizedReplayBuffer
    return fill(kind(size, space, TWO_ACTIONS, "cpu", n_envs=n_envs, **options), n_rows)


def slots_reached(buffer, n_batches=60):
    """Every slot that many batches hold."""
    return {slot for _ in range(n_batches) for slot in buffer.sample(32).slots.tolist()}


def assert_same_batch(left, right):
    assert (left.slots == right.slots).all()
    for own, other in zip(left[:-1], right[:-1], strict=True):
        assert own is other is None or th.equal(own, other)


# Probabilities


def test_probabilities_include_new_rows_and_the_uniform_share_as_the_weights_do():
    buffer = make(20, uniform_share=0.5, beta=1.0, weight_normalization="none")
    buffer.update_priorities(np.arange(20), np.linspace(0, 2, 20))
    fill(buffer, 10, first=20)

    shares = buffer.probabilities(np.arange(buffer.n_slots))

    batch = buffer.sample(32)
    weights = batch.weights.numpy().ravel()
    np.testing.assert_allclose(weights * 30 * shares[batch.slots], 1, rtol=1e-6)
    assert shares[:30].min() >= 0.5 / 30
    assert not shares[30:].any()
    assert shares.sum() == pytest.approx(1)


@pytest.mark.parametrize("slots", [[-1], [64], [0.5]])
def test_probabilities_of_other_slots_are_refused(slots):
    with pytest.raises(ValueError, match="slots must"):
        make(20).probabilities(slots)


# What a batch holds


def test_a_batch_has_sb3s_fields_first_and_its_shapes():
    batch = make(10, n_envs=2).sample(32)

    assert batch._fields[:6] == (
        "observations",
        "actions",
        "next_observations",
        "dones",
        "rewards",
        "discounts",
    )
    assert batch.observations.shape == (32, 2)
    assert batch.rewards.shape == batch.dones.shape == batch.actions.shape == (32, 1)
    assert (batch.weights.shape, batch.weights.dtype) == ((32, 1), th.float32)
    assert (batch.slots.shape, batch.slots.dtype) == ((32,), np.int64)
    assert batch.discounts is None


@pytest.mark.parametrize("space", [BOX, DICT])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_rows_of_a_batch_are_the_transitions_of_its_slots(space, n_envs):
    buffer = make(30, size=20 * n_envs, n_envs=n_envs, space=space)

    batch = buffer.sample(256)

    vector = batch.observations["vector"] if space is DICT else batch.observations
    steps, envs = np.divmod(batch.slots, n_envs)
    steps = np.where(steps < 10, steps + 20, steps)
    assert vector.tolist() == [[step, env] for step, env in zip(steps, envs, strict=True)]
    np.testing.assert_allclose(batch.rewards.flatten(), steps + envs / 10, rtol=1e-6)
    assert batch.actions.flatten().tolist() == ((steps + envs) % 2).tolist()


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
@pytest.mark.parametrize("n_rows", [1, 2, 15, 16, 17])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_every_stored_slot_is_reached_and_no_other(n_rows, n_envs, prioritization):
    buffer = make(n_rows, size=16 * n_envs, n_envs=n_envs, prioritization=prioritization)

    reached = slots_reached(buffer)

    assert reached == set(range(min(n_rows, 16) * n_envs))


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
def test_an_empty_buffer_has_probability_zero_everywhere(prioritization):
    buffer = make(0, size=8, prioritization=prioritization)

    assert probabilities_in(buffer, np.arange(8)).tolist() == [0.0] * 8


def test_every_row_and_env_is_drawn_by_its_own_priority_when_envs_do_not_divide_the_size():
    buffer = make(3, size=10, n_envs=4, alpha=1.0, eps=1e-6)
    assert buffer.n_slots == 8
    wanted = np.arange(8, dtype=np.float64)
    buffer.update_priorities(np.arange(8), wanted)

    counts = np.zeros(8)
    for _ in range(200):
        np.add.at(counts, buffer.sample(28).slots, 1)

    # 28 strata and priorities that add up to 28: each slot fills as many strata as its number says.
    assert np.abs(counts / 200 - wanted).max() < 0.15


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
@pytest.mark.parametrize("n_rows", [5, 8, 9, 21])
def test_the_write_head_of_memory_optimised_storage_has_probability_zero(n_rows, prioritization):
    options = {"alpha": 0.0, "prioritization": prioritization, **MEMORY_OPTIMISED}
    buffer = make(n_rows, size=8, **options)

    probabilities = probabilities_in(buffer, np.arange(8))
    reached = slots_reached(buffer)

    drawable = set(range(n_rows)) if n_rows < 8 else set(range(8)) - {n_rows % 8}
    assert set(np.flatnonzero(probabilities)) == drawable == reached
    assert buffer.n_sampleable == len(drawable)


def test_a_late_update_does_not_revive_the_write_head():
    buffer = make(8, size=8, **MEMORY_OPTIMISED)

    buffer.update_priorities(np.arange(8), np.full(8, 1e6))
    buffer.update_priorities(np.arange(8), np.full(8, 1e6))

    assert probabilities_in(buffer, np.array([0])) == 0


def test_extend_adds_what_as_many_adds_would():
    extended, added = make(size=8), make(6, size=8)
    rows = range(6)
    extended.extend(
        [np.array([[row, 0]], dtype=np.float32) for row in rows],
        [np.array([[row + 1, 0]], dtype=np.float32) for row in rows],
        [np.array([row % 2]) for row in rows],
        [np.array([float(row)]) for row in rows],
        [np.array([False]) for row in rows],
        [[{}] for row in rows],
    )

    assert extended.size() == 6
    assert (extended.observations == added.observations).all()
    assert probabilities_in(extended, np.arange(8)).tolist() == [1 / 6] * 6 + [0, 0]


def test_reset_empties_the_buffer_forgets_priorities_and_drops_errors_that_come_later():
    buffer = make(64, replacement=False)
    buffer.update_priorities(np.arange(64), np.arange(64.0) + 9)
    buffer.sample(64)  # each of them

    fill(buffer, 5)  # not drawn from before the buffer is emptied
    buffer.reset()
    with pytest.raises(ValueError, match="got 0"):
        buffer.sample(1)
    fill(buffer, 3)
    with pytest.raises(ValueError, match="got -1"):
        buffer.update_priorities([9, -1], [50.0, 50.0])
    # Too late: of what was there before, and where nothing is yet.
    buffer.update_priorities([0, 1, 2, 9], [50.0, 50.0, 50.0, 50.0])
    assert buffer.prioritization.largest_priority == 1.0
    for wrong in (9, 64, -1):  # nothing is awaited of 9 any more
        with pytest.raises(ValueError, match=rf"a slot must lie in \[0, 3\), .* got {wrong}"):
            buffer.update_priorities([0, wrong], [1.0, 1.0])
    buffer.update_priorities([0, 1, 2], [1.0, 1.0, 2.0])

    shares = probabilities_in(buffer, np.arange(64))
    np.testing.assert_allclose(shares[:3] / shares[0], [1, 1, 2**0.6], rtol=1e-5)
    assert not shares[3:].any()
    assert buffer.prioritization.largest_priority == pytest.approx(2.0, abs=1e-5)


# Weights


@pytest.mark.parametrize("n_rows", [1, 10])
def test_a_buffer_that_was_emptied_by_hand_samples_what_was_added_since(n_rows):
    buffer = make(100)
    buffer.sample(8)

    buffer.pos, buffer.full = 0, False
    fill(buffer, n_rows, first=1000)

    assert buffer.sample(64).observations[:, 0].min() >= 1000
    assert slots_reached(buffer) == set(range(n_rows))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("normalization", ["batch", "buffer", "none"])
@pytest.mark.parametrize("stratified", [True, False])
def test_weights_are_those_of_the_formula(beta, normalization, stratified):
    buffer = make(50, weight_normalization=normalization, stratified=stratified, beta=beta)
    errors = np.random.default_rng(0).uniform(-3, 3, 50)
    buffer.update_priorities(np.arange(50), errors)
    powers = (np.abs(errors) + 1e-6) ** 0.6
    all_weights = (50 * powers / powers.sum()) ** -beta

    batch = buffer.sample(16)

    weights = all_weights[batch.slots]
    divisor = {"batch": weights.max(), "buffer": all_weights.max(), "none": 1.0}[normalization]
    np.testing.assert_allclose(batch.weights.flatten(), weights / divisor, rtol=1e-5)
    assert batch.weights.max() <= 1 or normalization == "none"


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
@pytest.mark.parametrize("normalization", ["batch", "buffer", "none"])
@pytest.mark.parametrize("flags", list(itertools.product([True, False], repeat=2)))
def test_without_alpha_all_weigh_one_whatever_the_scheme(normalization, flags, prioritization):
    stratified, replacement = flags
    buffer = make(
        8,
        size=8,
        alpha=0.0,
        beta=1.0,
        weight_normalization=normalization,
        stratified=stratified,
        replacement=replacement,
        prioritization=prioritization,
        **MEMORY_OPTIMISED,
    )

    weights = buffer.sample(7).weights

    np.testing.assert_allclose(weights, 1.0, rtol=1e-6)


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
@pytest.mark.parametrize("flags", list(itertools.product([True, False], repeat=2)))
def test_with_full_correction_a_batch_estimates_the_mean_of_all_without_bias(flags, prioritization):
    stratified, replacement = flags
    values = np.arange(20.0)
    buffer = make(
        20,
        beta=1.0,
        weight_normalization="none",
        replacement=replacement,
        stratified=stratified,
        prioritization=prioritization,
    )
    buffer.update_priorities(np.arange(20), 0.1 + (values - 7) ** 2)

    batches = [buffer.sample(8) for _ in range(10_000)]
    estimates = [np.mean(b.weights.numpy()[:, 0] * values[b.slots]) for b in batches]

    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - values.mean()) < 5 * error
    assert error < 0.1


@pytest.mark.parametrize("normalization", ["batch", "buffer", "none"])
def test_rank_based_weights_are_those_of_the_formula(normalization):
    options = {"prioritization": "rank", "alpha": 0.7, "beta": 0.5}
    buffer = make(50, weight_normalization=normalization, **options)
    errors = np.random.default_rng(0).permutation(50) + 1.0
    buffer.update_priorities(np.arange(50), -errors)
    powers = (51 - errors) ** -0.7  # the largest error, 50, has rank 1
    all_weights = (50 * powers / powers.sum()) ** -0.5

    batch = buffer.sample(16)

    weights = all_weights[batch.slots]
    divisor = {"batch": weights.max(), "buffer": all_weights.max(), "none": 1.0}[normalization]
    np.testing.assert_allclose(batch.weights.flatten(), weights / divisor, rtol=1e-5)


def test_buffer_normalization_lets_one_solved_transition_shrink_all_weights():
    weights = {}
    for normalization in ("batch", "buffer"):
        buffer = make(50, weight_normalization=normalization, beta=1.0, alpha=1.0)
        errors = np.ones(50)
        errors[0] = 0.0
        buffer.update_priorities(np.arange(50), errors)
        batch = buffer.sample(32)
        weights[normalization] = batch.weights.max().item()

    assert weights["batch"] == 1.0
    assert weights["buffer"] == pytest.approx(1e-6, rel=0.01)


# Updating


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, th.int32, th.int64])
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_slots_and_errors_come_as_numpy_or_torch_of_any_width(dtype, shape):
    buffer = make(10, alpha=1.0, eps=0.5)
    slots, errors = np.array([1, 4, 9]).reshape(shape), np.array([0.5, 1.5, 2.5]).reshape(shape)
    if isinstance(dtype, th.dtype):
        slots, errors = th.as_tensor(slots, dtype=dtype), th.tensor(errors, requires_grad=True)
    else:
        slots = slots.astype(dtype)

    buffer.update_priorities(slots, errors)

    shares = probabilities_in(buffer, np.array([0, 1, 4, 9]))
    np.testing.assert_allclose(shares / shares[0], [1, 1, 2, 3])


@pytest.mark.parametrize("dtype", [th.bfloat16, th.float16, th.float32, th.float64])
def test_errors_of_every_width_of_torch_are_taken(dtype):
    buffer = make(10, alpha=1.0, eps=0.5)

    buffer.update_priorities(np.array([1]), th.tensor([1.5], dtype=dtype))

    shares = probabilities_in(buffer, np.array([0, 1]))
    assert shares[1] == 2 * shares[0]


def test_of_a_slot_named_twice_the_last_error_counts():
    buffer = make(10, alpha=1.0, eps=0.5)

    buffer.update_priorities([3, 5, 3], [9.5, 1.5, 0.5])

    shares = probabilities_in(buffer, np.array([0, 3, 5]))
    np.testing.assert_allclose(shares / shares[0], [1, 1, 2])


def test_an_empty_update_changes_nothing():
    buffer = make(10)

    buffer.update_priorities([], [])

    assert (probabilities_in(buffer, np.arange(10)) == 1 / 10).all()


def test_two_batches_may_be_drawn_before_one_is_updated():
    buffer = make(40, alpha=1.0, eps=1.0)
    first, second = buffer.sample(8), buffer.sample(8)

    buffer.update_priorities(second.slots, np.full(8, 4.0))
    buffer.update_priorities(first.slots, np.full(8, 2.0))

    shares = probabilities_in(buffer, np.arange(40)) * 40
    drawn_twice = set(first.slots) & set(second.slots)
    for slot in set(second.slots) - drawn_twice:
        assert shares[slot] / shares.min() == pytest.approx(5.0)
    for slot in first.slots:
        assert shares[slot] / shares.min() == pytest.approx(3.0)


def test_an_error_that_comes_after_the_ring_has_wrapped_leaves_the_newer_transition_alone():
    buffer = make(16, size=16, alpha=1.0)
    batch = buffer.sample(16)
    fill(buffer, 4, first=16)

    buffer.update_priorities(batch.slots, np.full(16, 50.0))

    shares = probabilities_in(buffer, np.arange(16))
    late = np.arange(16) < 4
    drawn = np.isin(np.arange(16), batch.slots)
    assert drawn[late].any()
    assert (shares[drawn & ~late] > 40 * shares[late].max()).all()
    buffer.update_priorities(np.arange(4), np.full(4, 50.0))
    assert probabilities_in(buffer, np.arange(4)) == pytest.approx(shares.max(), rel=0.9)


@pytest.mark.parametrize("is_emptied", [False, True])
@pytest.mark.parametrize(
    "drawn",
    [[[0, 1], [1, 0]], [[0, 0], [0, 1]], [[0] * 128 + [1]]],
    ids=["two batches", "twice in a batch", "more often than a byte can count"],
)
def test_no_error_of_any_batch_that_was_drawn_before_reaches_the_newer_transition(
    drawn, is_emptied
):
    buffer = make(2, size=2, alpha=1.0)
    for slots in drawn:
        buffer.sampler._pending.sample(np.array(slots))
    if is_emptied:
        buffer.reset()
    fill(buffer, 2, first=2)

    for slots in drawn:
        buffer.update_priorities(slots, np.full(len(slots), 9.0))

    assert buffer.prioritization.largest_priority == 1.0
    buffer.update_priorities([0, 1], [5.0, 3.0])
    assert probabilities_in(buffer, np.arange(2)) == pytest.approx([5 / 8, 3 / 8])


def test_a_batch_that_is_handed_over_in_halves_may_be_overwritten_in_between():
    buffer = make(1, size=1, alpha=1.0)
    slots = buffer.sample(2).slots  # the same one twice
    fill(buffer, 1, first=1)

    for half in (slots[:1], slots[1:]):
        buffer.update_priorities(half, [9.0])

    assert buffer.prioritization.largest_priority == 1.0


def test_a_slot_drawn_again_after_it_was_overwritten_takes_its_error():
    buffer = make(1, size=1, alpha=1.0)
    buffer.sample(1)
    fill(buffer, 1, first=1)
    batch = buffer.sample(1)

    buffer.update_priorities(batch.slots, [7.0])

    assert buffer.prioritization.largest_priority == pytest.approx(7.0)


def test_transitions_stored_before_the_first_update_do_not_starve():
    """Three rounds of 1000 / 32 batches see nearly all that entered at the top."""
    shares = {}
    for initial_priority in (1.0, 1e-6):
        buffer = make(1000, size=1000, initial_priority=initial_priority)
        seen = set()
        for _ in range(3 * 1000 // 32):
            batch = buffer.sample(32)
            seen.update(batch.slots.tolist())
            buffer.update_priorities(batch.slots, np.full(32, 0.1))
        shares[initial_priority] = len(seen) / 1000

    assert shares[1.0] > 0.95
    assert shares[1e-6] < 0.5


def test_one_tree_write_for_each_added_transition(monkeypatch):
    buffer = make(n_envs=3)
    writes = []
    monkeypatch.setattr(buffer.prioritization, "insert", lambda slots: writes.extend(slots))

    for n_rows in (4, 1):
        fill(buffer, n_rows)
        buffer.update_priorities([], [])

    assert writes == list(range(15))


# Bad input

BAD_UPDATES = [
    ([0, 1], [1.0, np.nan], "got nan for slot 1"),
    ([5, 1], [-np.inf, 1.0], "got -inf for slot 5"),
    ([5, 1], [1.0, 1e39], "got 1e.39 for slot 1"),
    ([5, 10], [1.0, 1.0], r"\[0, 10\).* got 10"),
    ([-1, 1], [1.0, 1.0], r"\[0, 10\).* got -1"),
    ([0, 1, 2], [1.0, 1.0], "as many TD errors as slots, got '2 TD errors, 3 slots'"),
    ([[0, 1]], [1.0, 1.0], r"shape \(B,\) or \(B, 1\), got \(1, 2\)"),
    ([0, 1], [[1.0, 1.0]], r"shape \(B,\) or \(B, 1\), got \(1, 2\)"),
    ([0.0, 1.0], [1.0, 1.0], "whole numbers, got .*float64"),
    ([0, 1], ["1.0", "1.0"], "real numbers, got .*U3"),
    ([0, 1], [1.0, 1j], "real numbers, got .*complex128"),
]


@pytest.mark.parametrize(("slots", "errors", "complaint"), BAD_UPDATES)
def test_a_bad_update_is_refused_and_the_buffer_samples_as_if_it_had_not_been_made(
    slots, errors, complaint
):
    buffer = make(10)
    buffer.sample(4)
    twin = deepcopy(buffer)

    with pytest.raises(ValueError, match=complaint):
        buffer.update_priorities(slots, errors)

    assert_same_batch(buffer.sample(8), twin.sample(8))
    assert buffer.prioritization.largest_priority == twin.prioritization.largest_priority
    everyone = np.arange(10)
    shares = [probabilities_in(one, everyone).tolist() for one in (buffer, twin)]
    assert shares[0] == shares[1]


@pytest.mark.parametrize(
    ("options", "n_rows", "batch_size", "complaint"),
    [
        ({}, 0, 4, "needs at least 1 transitions that can be sampled, got 0"),
        (
            {"size": 1, **MEMORY_OPTIMISED},
            3,
            1,
            r"can be sampled \(a larger buffer_size helps\), got 0",
        ),
        ({"replacement": False}, 3, 4, r"False \(a larger learning_starts helps\), got 3"),
        ({"replacement": False, "size": 3}, 3, 4, r"False \(a larger buffer_size helps\), got 3"),
        ({"replacement": False, "size": 4, **MEMORY_OPTIMISED}, 9, 4, "larger buffer_size helps"),
        ({"replacement": False, "size": 4, **MEMORY_OPTIMISED}, 9, 4, "needs at least 4 .* got 3"),
        ({}, 3, 0, "batch_size must be a whole number of at least 1, got 0"),
        ({}, 3, 2.0, "batch_size must be a whole number of at least 1, got 2.0"),
        ({}, 3, "2", "batch_size must be a whole number of at least 1, got '2'"),
    ],
)
def test_a_bad_sample_is_refused_and_does_not_use_up_random_numbers(
    options, n_rows, batch_size, complaint
):
    buffer = make(n_rows, **options)
    before = buffer.generator.bit_generator.state

    with pytest.raises(ValueError, match=complaint):
        buffer.sample(batch_size)

    assert buffer.generator.bit_generator.state == before


@pytest.mark.parametrize(
    ("options", "batch_size"),
    [({"stratified": False, "replacement": False}, 200), ({"uniform_share": 0.5}, 255)],
    ids=["without replacement", "half uniform"],
)
def test_a_batch_size_may_be_numpys_with_8_bits(options, batch_size):
    buffer = make(300, size=300, **options)
    twin = deepcopy(buffer)

    assert_same_batch(buffer.sample(np.uint8(batch_size)), twin.sample(batch_size))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"prioritization": "median"}, "prioritization must .* got 'median'"),
        ({"prioritization": ["rank"]}, r"prioritization must .* got \['rank'\]"),
        ({"prioritization": "rank", "eps": 0.1}, "eps must stay .* got 0.1"),
        ({"alpha": 1.5}, "alpha must .* got 1.5"),
        ({"beta": -0.1}, "beta must .* got -0.1"),
        ({"beta": float("nan")}, "beta must .* got nan"),
        ({"alpha": "0.7"}, "alpha must .* got '0.7'"),
        ({"beta": "0.4"}, "beta must .* got '0.4'"),
        ({"eps": 0.0}, "eps must .* got 0.0"),
        ({"eps": "small"}, "eps must .* got 'small'"),
        ({"td_error_clip": True}, "td_error_clip must .* got True"),
        ({"uniform_share": np.True_}, "uniform_share must .* got .*True"),
        ({"alpha": np.array([0.2, 0.5])}, "alpha must .* got array"),
        ({"td_error_clip": -1.0}, "td_error_clip must .* got -1.0"),
        ({"initial_priority": 0.0}, "initial_priority must .* got 0.0"),
        ({"new_priority": "mean"}, "new_priority must .* got 'mean'"),
        ({"stratified": "no"}, "stratified must be True or False, got 'no'"),
        ({"replacement": None}, "replacement must be True or False, got None"),
        ({"weight_normalization": "sum"}, "weight_normalization must .* got 'sum'"),
        ({"n_steps": 3, **MEMORY_OPTIMISED}, "n_steps must .* got 3"),
        ({"prioritization_kwargs": {"power": 1}}, "no option 'power': It takes no options"),
        ({"size": 0}, "buffer_size must be a whole number of at least 1, got 0"),
        ({"size": 1e3}, "buffer_size must be a whole number of at least 1, got 1000.0"),
    ],
)
def test_an_option_out_of_range_is_named_with_its_value(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(**options)


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
@pytest.mark.parametrize(
    ("option", "value", "other"),
    [
        ("alpha", 0.5, 0.7),
        ("eps", 1e-6, -2),
        ("td_error_clip", 3.0, 4.0),
        ("initial_priority", 2.0, 1.0),
        ("new_priority", "max_stored", "max_seen"),
    ],
)
def test_what_the_stored_priorities_came_of_cannot_change(prioritization, option, value, other):
    buffer = make(prioritization=prioritization, **{option: value})
    setattr(buffer.prioritization, option, value)

    with pytest.raises(
        ValueError, match=f"{option} must stay {value!r} .*make a new buffer.*, got "
    ):
        setattr(buffer.prioritization, option, other)
    assert getattr(buffer.prioritization, option) == value


OTHER_OPTIONS = {
    "alpha": 0.7,
    "eps": 0.1,
    "td_error_clip": 1.0,
    "initial_priority": 2.0,
    "new_priority": "max_stored",
    "uniform_share": 0.5,
    "weight_normalization": "buffer",
    "stratified": False,
    "replacement": False,
    "prioritization_kwargs": {"threshold": 1.0},
}


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_an_option_of_a_buffer_can_be_read_and_cannot_change(name):
    buffer = make(5)
    value = getattr(buffer, name)
    assert value == buffer.options()[name]

    with pytest.raises(ValueError, match=rf"{name} must stay {re.escape(repr(value))} .*, got "):
        setattr(buffer, name, OTHER_OPTIONS[name])

    setattr(buffer, name, value)
    assert getattr(buffer, name) == value
    assert th.isfinite(buffer.sample(4).weights).all()


def test_all_options_but_beta_and_the_kind_are_kept():
    assert {*OTHER_OPTIONS} == {*OPTION_NAMES} - {"beta", "prioritization"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((9, DICT, TWO_ACTIONS), {}),
        ((9,), {"observation_space": DICT, "action_space": TWO_ACTIONS}),
    ],
)
def test_dict_observations_name_the_buffer_for_them(arguments, named):
    with pytest.raises(ValueError, match=r"PrioritizedDictReplayBuffer, got 'Prioritized"):
        PrioritizedReplayBuffer(*arguments, **named)


def test_help_shows_all_arguments_of_the_buffer():
    shown = list(inspect.signature(PrioritizedReplayBuffer).parameters)

    assert shown[:3] == ["buffer_size", "observation_space", "action_space"]
    assert {"n_envs", "n_steps", "gamma", "alpha", "replacement"} <= set(shown)
    assert not {"args", "kwargs"} & set(shown)
    for name in shown:
        assert name not in OPTION_NAMES or shown.index(name) > shown.index("gamma")


def test_arguments_of_sb3s_buffer_come_first_in_its_order_with_its_defaults():
    theirs, ours = (
        inspect.signature(kind).parameters for kind in (ReplayBuffer, PrioritizedReplayBuffer)
    )

    assert [*ours][: len(theirs)] == [*theirs]
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind), name


def test_an_unknown_argument_is_answered_with_the_similar_one():
    with pytest.raises(
        ValueError, match=r"has no argument 'aplha': did you mean 'alpha'\? It takes"
    ):
        PrioritizedReplayBuffer(9, BOX, TWO_ACTIONS, aplha=3)


def test_alpha_of_the_buffer_is_that_of_its_prioritization():
    buffer = make(alpha=0.5)

    with pytest.raises(ValueError, match=r"alpha must stay 0.5 .*make a new buffer.*, got 0.7"):
        buffer.alpha = 0.7
    buffer.alpha = 0.5

    assert buffer.prioritization.alpha == buffer.alpha == 0.5


class AsDocumented(Proportional):
    """Takes what the buffer's documentation says, and nothing else."""

    def __init__(
        self,
        n_slots,
        *,
        alpha,
        eps,
        td_error_clip,
        initial_priority,
        new_priority,
        power,
    ):
        super().__init__(n_slots, alpha=alpha * power, eps=eps)
        self.rest = (td_error_clip, initial_priority, new_priority)


def test_a_class_of_ones_own_is_called_with_the_documented_options():
    buffer = make(
        4,
        prioritization=AsDocumented,
        prioritization_kwargs={"power": 0.5},
        alpha=0.3,
        weight_normalization="buffer",
    )

    assert buffer.prioritization.alpha == 0.15
    assert buffer.prioritization.rest == (None, 1.0, "max_seen")
    assert buffer.sample(2).weights.max() <= 1


def test_beta_is_checked_when_it_is_moved():
    buffer = make(beta=0.5)

    with pytest.raises(ValueError, match=r"beta must .* got 1.01"):
        buffer.beta = 1.01

    assert buffer.beta == 0.5


# Randomness and saving


def test_buffers_made_after_the_same_seed_draw_alike_and_others_do_not():
    batches = []
    for seed in (1, 1, 2):
        np.random.seed(seed)  # noqa: NPY002
        batches.append(make(64).sample(32).slots.tolist())

    assert batches[0] == batches[1] != batches[2]


def test_two_buffers_made_in_a_row_draw_differently():
    assert make(64).sample(32).slots.tolist() != make(64).sample(32).slots.tolist()


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
def test_a_saved_and_loaded_buffer_goes_on_as_one_that_was_not(options):
    buffer = make(70, **options)
    buffer.beta = 0.7
    buffer.update_priorities(buffer.sample(32).slots, np.linspace(-5, 5, 32))
    buffer.update_priorities(buffer.sample(32).slots, np.linspace(-1, 1, 32))
    file = io.BytesIO()
    save_to_pkl(file, buffer)
    file.seek(0)

    restored = load_from_pkl(file)

    for step in range(3):
        fill(buffer, 5, first=70 + 5 * step)
        fill(restored, 5, first=70 + 5 * step)
        left, right = buffer.sample(16), restored.sample(16)
        assert (left.slots == right.slots).all()
        assert th.equal(left.weights, right.weights)
        assert th.equal(left.rewards, right.rewards)
        for one, batch in ((buffer, left), (restored, right)):
            one.update_priorities(batch.slots, batch.rewards - 40)
    everyone = np.arange(64)
    shares = [probabilities_in(one, everyone).tolist() for one in (buffer, restored)]
    assert shares[0] == shares[1]


# Being an SB3 buffer


def test_a_prioritization_may_be_any_class_that_obeys_the_protocol():
    """Without inheriting from ours: the newest transition is always drawn."""

    class Newest:
        largest_priority = 1.0

        def __init__(self, n_slots, **options):
            self.newest, self.updates, self.options = None, [], options

        def insert(self, slots):
            self.newest = slots[-1]

        def update(self, slots, td_errors):
            self.updates.append((slots.tolist(), td_errors.tolist()))

        def sample(self, scheme, batch_size, uniforms, *, with_smallest=False):
            return SampledSlots(np.full(batch_size, self.newest), np.ones(batch_size))

    buffer = make(7, prioritization=Newest, alpha=0.3)
    batch = buffer.sample(3)
    buffer.update_priorities(batch.slots[:1], [0.5])

    assert batch.observations[:, 0].tolist() == [6, 6, 6]
    assert buffer.prioritization.updates == [([6], [0.5])]
    assert buffer.prioritization.options["alpha"] == 0.3


def test_it_is_a_replay_buffer_of_sb3():
    assert isinstance(make(), ReplayBuffer)
    assert isinstance(make(space=DICT), PrioritizedReplayBuffer)


def warnings_while(do, n_times=50):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(n_times):
            do()
    return [str(each.message) for each in caught]


def test_a_trainer_that_never_updates_priorities_is_warned_once_in_words_that_help():
    buffer = make(10)

    messages = warnings_while(lambda: buffer.sample(4))

    assert len(messages) == 1
    for word in ("PERDQN for DQN", "batch.weights", "update_priorities", "neither weight their"):
        assert word in messages[0]


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


def test_draws_cost_memory_for_the_batch_and_not_for_the_buffer():
    import tracemalloc

    buffer = make(2000, size=100_000)
    buffer.sample(32)
    tracemalloc.start()
    for _ in range(20):
        batch = buffer.sample(32)
        buffer.update_priorities(batch.slots, np.ones(32))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


# What people type


def test_a_batch_has_indices_and_takes_a_beta_of_its_own_and_the_buffer_a_length():
    buffer = make(10, n_envs=2)

    batch = buffer.sample(8, beta=0.0)

    assert batch.indices is batch.slots
    assert batch.weights.tolist() == [[1.0]] * 8
    assert (len(buffer), buffer.beta) == (20, 0.4)
    assert bool(make(0)), "an empty buffer is a buffer: `buffer or other` must not drop it"
    with pytest.raises(ValueError, match=r"beta must lie in \[0, 1\], got 2"):
        buffer.sample(8, beta=2)


def test_the_device_may_be_given_as_text_later():
    buffer = make(10)

    buffer.device = "cpu"

    assert buffer.device == th.device("cpu")
    assert buffer.sample(4).observations.device.type == "cpu"


def test_a_buffer_goes_to_the_device_that_its_model_names_as_sb3s_does():
    buffer = make(10)

    buffer.device = th.device("cuda")  # whether or not there is one: SB3 does not ask here either

    assert buffer.device.type == "cuda"


def test_the_buffer_alone_does_not_know_the_threshold_of_a_loss():
    with pytest.raises(ValueError, match=r"only an algorithm knows its loss.*got 'loss'"):
        make(td_error_clip="loss")


# Threads


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
def test_rows_that_one_thread_adds_while_another_one_samples_are_all_sampleable(prioritization):
    buffer = make(1, size=4000, prioritization=prioritization)
    adder = threading.Thread(target=lambda: fill(buffer, 6000, first=1))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    try:
        adder.start()
        while adder.is_alive():
            batch = buffer.sample(8)
            buffer.update_priorities(batch.slots, np.ones(8))
        adder.join()
    finally:
        sys.setswitchinterval(interval)

    assert (probabilities_in(buffer, np.arange(4000)) > 0).all()
    assert buffer.sampler.n_sampleable == 4000


def test_an_interrupted_add_leaves_the_row_out():
    """Ctrl-C may come between any two lines of ``add``; the row counts with the last one."""
    buffer = make(3, size=8)

    class Interrupted(list):
        def __iter__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        buffer.add(*[np.zeros((1, 2))] * 2, *[np.zeros(1)] * 3, Interrupted([{}]))

    assert (buffer.pos, buffer.full, buffer.size()) == (3, False, 3)
    assert set(buffer.sample(100).slots) == {0, 1, 2}


def test_gamma_of_numpy_leaves_rewards_in_float32():
    buffer = make(20, n_steps=3, gamma=np.float64(0.9))

    batch = buffer.sample(4)

    assert batch.rewards.dtype == batch.discounts.dtype == th.float32


def test_a_whole_number_for_beta_compiles_nothing():
    buffer = make(20)
    buffer.sample(4, beta=0.5)
    n_before = len(importance_weights.signatures)

    buffer.sample(4, beta=1)

    assert len(importance_weights.signatures) == n_before
