"""Damaged files raise ValueError, and no number in them reaches a kernel that checks no bounds."""

import contextlib
import io
import tracemalloc
import zipfile

import numpy as np
import pytest
from builders import STACKS, make_buffer
from checks import assert_same_buffer, check_valid
from corridor import Corridor, make
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import (
    PERDQN,
    load_buffer,
    load_checkpoint,
    save_buffer,
    save_checkpoint,
)

SLOTS, VALUES = "priorities/slots", "priorities/values"


KINDS = {
    "proportional": {},
    "rank": {"prioritization": "rank"},
    "frames": {"space": STACKS, "n_stack": 4, "n_envs": 2},
}


def buffer_of(kind, n_rows=0):
    return make_buffer(n_rows, size=16, **KINDS[kind])


@pytest.fixture
def file(kind, tmp_path):
    """A file of a buffer that had more rows than it can hold."""
    buffer = buffer_of(kind, 20)
    buffer.update_priorities(buffer.sample(8).slots, np.linspace(-2, 5, 8))
    save_buffer(buffer, tmp_path / "whole")
    return tmp_path / "whole"


@pytest.mark.parametrize("kind", ["proportional", "rank", "frames"])
def test_flipped_bit_anywhere_is_refused_or_changes_nothing(kind, file, tmp_path):
    whole, path = file.read_bytes(), tmp_path / "file"
    buffer, other, n_refused = buffer_of(kind), buffer_of(kind), 0
    load_buffer(file, buffer)
    places = range(0, len(whole), 7)
    for place in places:
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        try:
            load_buffer(path, other)
        except ValueError:
            n_refused += 1
            check_valid(other)  # empty, or as it was before
        else:
            assert_same_buffer(other, buffer)  # a date, for example, does not matter
    assert n_refused > 0.8 * len(places)


@pytest.mark.parametrize("kind", ["rank"])
def test_file_that_was_cut_is_refused_before_anything_changes(kind, file, tmp_path):
    whole, path, buffer = file.read_bytes(), tmp_path / "file", buffer_of(kind, 5)
    for length in range(0, len(whole), 31):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=str(path)):
            load_buffer(path, buffer)
    assert buffer.size() == 5


def write_changed(file, path, name, change):
    """Write a file whose checksums are right, with another array in it."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
        for member in old.namelist():
            content = old.read(member)
            if member == f"{name}.npy":
                array = change(np.load(io.BytesIO(content)))
                target = io.BytesIO()
                np.lib.format.write_array(target, array, version=(1, 0))
                content = target.getvalue()
            new.writestr(member, content)


def entry(value, place=3):
    def change(array):
        array.flat[place] = value
        return array

    return change


def plus(number):
    return lambda array: array + number


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("proportional", VALUES, entry(-1.0)),
        ("proportional", VALUES, entry(0.0)),
        ("proportional", VALUES, entry(np.nan)),
        ("proportional", VALUES, entry(1e300)),
        ("proportional", VALUES, lambda array: np.concatenate([array, array])),
        ("proportional", VALUES, lambda array: array.astype(">f8")),
        ("proportional", "arrays/rewards", lambda array: array[:-1]),
        ("proportional", "arrays/actions", lambda array: array.astype(np.int32)),
        ("rank", SLOTS, entry(-1)),
        ("rank", SLOTS, entry(16)),
        ("rank", SLOTS, entry(2**40)),
        ("rank", SLOTS, plus(1)),
        ("rank", SLOTS, lambda array: array[:1].repeat(16)),
        ("rank", SLOTS, lambda array: array[:-1]),
        ("frames", "frames/starts", entry(1000)),
        ("frames", "frames/starts", entry(-1)),
        ("frames", "frames/ages", lambda array: array[:-1]),
    ],
)
def test_numbers_out_of_range_never_reach_a_kernel(kind, name, change, file, tmp_path):
    write_changed(file, tmp_path / "changed", name, change)
    buffer = buffer_of(kind, 5)

    with pytest.raises(ValueError, match="must"):
        load_buffer(tmp_path / "changed", buffer)

    assert buffer.size() == buffer.n_sampleable == 0
    check_valid(buffer)


@pytest.mark.parametrize("kind", ["proportional"])
def test_array_with_a_false_shape_takes_little_memory(kind, file, tmp_path):
    def change(array):
        return np.lib.stride_tricks.as_strided(np.zeros(10), (10**7,), (0,))

    path = tmp_path / "changed"
    write_changed(file, path, SLOTS, change)
    path.write_bytes(path.read_bytes()[: -(10**7)])
    buffer = buffer_of(kind)
    tracemalloc.start()
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_buffer(path, buffer)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 10e6


def test_other_files_are_refused_with_what_reads_them(tmp_path):
    model = make(kind=PERDQN).learn(30)
    model.save(tmp_path / "model.zip")
    save_buffer(model.replay_buffer, tmp_path / "buffer.npz")
    save_checkpoint(model, tmp_path / "model.ckpt")

    for name in ("model.zip", "model.ckpt"):
        with pytest.raises(ValueError, match="load_buffer reads whole files of save_buffer"):
            load_buffer(tmp_path / name, model.replay_buffer)
    (tmp_path / "text").write_text("text")
    for name in ("model.zip", "text"):
        with pytest.raises(ValueError, match=f"^[^<]*{name}.* save_"):
            model.load_replay_buffer(tmp_path / name)
    assert model.replay_buffer.size() == 30
    for name in ("model.zip", "buffer.npz"):
        with pytest.raises(ValueError, match="load_checkpoint of save_checkpoint"):
            load_checkpoint(tmp_path / name, Corridor())
    with pytest.raises(FileNotFoundError):
        load_buffer(tmp_path / "nowhere", model.replay_buffer)


def test_damaged_checkpoint_is_refused_or_whole(tmp_path):
    env, path = VecNormalize(make_vec_env(Corridor)), tmp_path / "file"
    save_checkpoint(make(env, PERDQN, buffer_size=48).learn(60), path)
    whole = path.read_bytes()

    for place in range(0, len(whole), len(whole) // 30):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with contextlib.suppress(ValueError):
            check_valid(load_checkpoint(path, env, "cpu").replay_buffer)
        path.write_bytes(whole[:place])
        with pytest.raises(ValueError, match="whole file"):
            load_checkpoint(path, env, "cpu")
