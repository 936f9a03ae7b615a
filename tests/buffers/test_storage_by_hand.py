"""Transitions that users write into SB3's arrays, and ``pos`` and ``full`` that they set."""

from functools import partial

import numpy as np
import pytest
from builders import (
    BOX,
    DICT,
    MEMORY_OPTIMISED,
    fill,
    make_buffer,
    observation,
)
from checks import check_valid, saved_and_loaded

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")

N_ROWS = 8
make = partial(make_buffer, size=N_ROWS)


def write(buffer, n_rows):
    """Write rows as ``fill`` would add them, without ``add``, from ``pos`` on."""
    for row in range(buffer.pos, buffer.pos + n_rows):
        now, then = (observation(buffer.observation_space, row + i, buffer.n_envs) for i in (0, 1))
        put(buffer.observations, row, now)
        if buffer.optimize_memory_usage:
            put(buffer.observations, (row + 1) % N_ROWS, then)
        else:
            put(buffer.next_observations, row, then)
        buffer.rewards[row] = row + np.arange(buffer.n_envs) / 10
    buffer.full |= buffer.pos + n_rows >= N_ROWS
    buffer.pos = (buffer.pos + n_rows) % N_ROWS


def put(store, row, values):
    if isinstance(store, dict):
        for key, part in store.items():
            put(part, row, values[key])
    else:
        store[row] = values.reshape(store[row].shape)


def rows_reached(buffer):
    slots = {slot for _ in range(60) for slot in buffer.sample(32).slots.tolist()}
    return {slot // buffer.n_envs for slot in slots}


@pytest.fixture(params=["sample", "update_priorities", "probabilities", "save_buffer"])
def touch(request, tmp_path):
    """Each call before which a buffer looks at its storage; it returns the buffer to look at."""

    def call(buffer):
        if request.param == "save_buffer":
            return saved_and_loaded(buffer, tmp_path / "buffer")
        argument = {"sample": [4], "update_priorities": [[0], [0.5]], "probabilities": [[0]]}
        getattr(buffer, request.param)(*argument[request.param])
        return buffer

    return call


LAYOUTS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_envs": 3},
        {"space": DICT, "n_envs": 2},
        {**MEMORY_OPTIMISED, "n_envs": 2},
        {"prioritization": "rank", "uniform_share": 0.5},
        {"n_steps": 3, "n_envs": 2},
    ],
)


@LAYOUTS
@pytest.mark.parametrize("n_added", [0, 3])
@pytest.mark.parametrize("n_written", [2, 5, 8])
def test_written_transitions_are_sampled_like_added_ones(options, n_added, n_written, touch):
    buffer = make(n_added, **options)
    n_written = min(n_written, N_ROWS - n_added)

    write(buffer, n_written)
    buffer = touch(buffer)

    check_valid(buffer)
    at_write_head = {buffer.pos} if buffer.optimize_memory_usage and buffer.full else set()
    assert rows_reached(buffer) == set(range(n_added + n_written)) - at_write_head
    batch = buffer.sample(32)
    rows, envs = np.divmod(batch.slots, buffer.n_envs)
    if buffer.n_steps == 1:
        np.testing.assert_allclose(batch.rewards[:, 0], rows + envs / 10, rtol=1e-6)


def test_written_transitions_get_the_priority_of_new_ones():
    buffer = make(2, alpha=1.0)
    buffer.update_priorities([0, 1], [3.0, 0.5])

    write(buffer, 2)

    shares = buffer.probabilities(np.arange(4))
    np.testing.assert_allclose(shares, np.array([3.0, 0.5, 3.0, 3.0]) / 9.5, rtol=1e-5)


@LAYOUTS
@pytest.mark.parametrize("n_rows", [3, 8, 13])
def test_cleared_buffer_samples_only_what_comes_after(options, n_rows, touch):
    buffer = make(n_rows, **options)

    buffer.pos, buffer.full = 0, False
    with pytest.raises(ValueError, match="needs at least 1"):
        buffer.sample(1)
    buffer.pos, buffer.full = n_rows % N_ROWS, n_rows >= N_ROWS
    buffer.sample(1)
    buffer.pos, buffer.full = 0, False
    fill(buffer, 2)
    buffer = touch(buffer)

    check_valid(buffer)
    assert rows_reached(buffer) == {0, 1}


def test_as_many_transitions_may_be_written_as_dropped(touch):
    buffer = make()
    write(buffer, 3)
    fill(buffer, 3, first=3)

    buffer.pos = 3
    buffer = touch(buffer)

    check_valid(buffer)
    assert rows_reached(buffer) == {0, 1, 2}


@LAYOUTS
def test_dropped_newest_transitions_are_not_sampled(options, touch):
    buffer = make(6, **options)
    late = buffer.sample(8).slots

    buffer.pos -= 3
    buffer = touch(buffer)
    buffer.update_priorities(late, np.full(8, 100.0))

    check_valid(buffer)
    assert rows_reached(buffer) == {0, 1, 2}
    assert rows_reached(fill(buffer, 1, first=3)) == {0, 1, 2, 3}


@pytest.mark.parametrize(("pos", "full"), [(2, True), (3, False), (5, False), (7, False)])
def test_row_at_pos_of_shared_storage_is_not_sampled(pos, full, touch):
    """With ``pos`` in the last row of shortened storage, as many are stored as in full storage."""
    buffer = make(13, n_envs=2, **MEMORY_OPTIMISED)
    assert rows_reached(buffer) == {*range(N_ROWS)} - {5}

    buffer.pos, buffer.full = pos, full
    buffer = touch(buffer)

    check_valid(buffer)
    assert rows_reached(buffer) == {*range(N_ROWS if full else pos)} - {pos}


@pytest.mark.parametrize("prioritization", ["proportional", "rank", "lap"])
def test_changed_transitions_can_be_made_new_ones(prioritization):
    buffer = make(N_ROWS, prioritization=prioritization, alpha=1.0)
    buffer.update_priorities(np.arange(N_ROWS), np.arange(N_ROWS) / 100)
    buffer.update_priorities([N_ROWS - 1], [5.0])
    buffer.rewards[:2] = 9.0

    buffer.sampler.insert(np.arange(2))

    found = buffer.probabilities(np.arange(N_ROWS))
    assert (found[:2] >= found[2:7].max()).all()
    check_valid(buffer)


def test_transitions_are_gathered_by_any_sequence_of_slots():
    buffer = make(4)
    for slots in ([1, 3], range(1, 4, 2)):
        assert buffer._get_samples(slots).rewards[:, 0].tolist() == [1, 3]


def test_action_of_another_size_changes_nothing():
    buffer = make(N_ROWS + 3)
    before = buffer._get_samples(np.arange(N_ROWS))
    now = observation(BOX, 50, 1)

    with pytest.raises(ValueError, match="reshape"):
        buffer.add(now, now, np.zeros((1, 2)), np.ones(1), np.zeros(1), [{}])

    for part, value in zip(buffer._get_samples(np.arange(N_ROWS))[:5], before[:5], strict=True):
        assert (part == value).all()
