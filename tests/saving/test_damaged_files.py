"""Files that were damaged or crafted raise ValueError, or load as a whole buffer."""

import contextlib
import copy
import io
import json
import random
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from builders import BOX, DICT, TWO_ACTIONS, fill, fill_with_stacks
from checks import assert_same_buffer, check_valid
from corridor import Corridor, make
from goal_line import GOAL_SPACE, goal_envs
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import (
    PERDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    load_buffer,
    load_checkpoint,
    save_buffer,
    save_checkpoint,
)

STACKS = spaces.Box(0, 255, (2, 3, 4), np.uint8)
KINDS = {
    "proportional": {"new_priority": "max_stored", "weight_normalization": "buffer"},
    "lap": {"prioritization": "lap", "uniform_share": 0.25, "n_steps": 3},
    "rank": {"prioritization": "rank", "weight_normalization": "buffer"},
    "dict": {"space": DICT, "prioritization": "rank", "n_envs": 2},
    "her": {"space": GOAL_SPACE, "uniform_share": 0.5, "n_envs": 2},
    "frames": {"space": STACKS, "n_stack": 4, "n_envs": 2},
    "shared": {"optimize_memory_usage": True, "handle_timeout_termination": False, "n_envs": 2},
}
CLASSES = {"dict": PrioritizedDictReplayBuffer, "her": PrioritizedHerReplayBuffer}
LEAVES, SLOTS = "priorities/leaves.npy", "priorities/slots.npy"
# Values for any place of a header.
JUNK = [None, True, -1, 0.5, 10**6, 10**30, float("nan"), "", "rank", [], [None], {}, {"a": 1}]


class Crafted:
    """
    The parts of a file, to be changed.

    :param path: A file of ``write_archive``.
    """

    def __init__(self, path):
        self.members = {}
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                is_array = name.endswith(".npy")
                member = archive.read(name)
                self.members[name] = np.load(io.BytesIO(member)) if is_array else member
        self.header = json.loads(self.members.pop("header.json"))

    def write(self, path, compression=zipfile.ZIP_STORED):
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("header.json", json.dumps(self.header))
            for name, member in self.members.items():
                archive.writestr(name, as_npy(member) if isinstance(member, np.ndarray) else member)
        return path


def as_npy(array):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=(1, 0))
    return file.getvalue()


def npy_of_shape(shape):
    """Return a float64 member of 8 bytes that states some shape."""
    file = io.BytesIO()
    described = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + b"\0" * 8


def places_in(value):
    """Yield all values within a header, as a dict or list and the key or index in it."""
    if isinstance(value, dict | list):
        for key in [*value] if isinstance(value, dict) else range(len(value))[:2]:
            yield value, key
            yield from places_in(value[key])


@contextlib.contextmanager
def bounded_memory(n_bytes):
    """Fail if the block takes more memory than allowed at any moment; only Linux can tell."""
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not refs.exists():
        yield
        return
    refs.write_text("5")  # starts to look for the peak again
    before = _peak(status)
    yield
    taken = _peak(status) - before
    assert taken <= n_bytes, f"{taken / 1e6:.0f} MB were taken"


def _peak(status):
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a file of each kind of buffer, which has more rows than it can hold."""
    folder = tmp_path_factory.mktemp("files")
    return {kind: write_valid(kind, folder / kind) for kind in KINDS}


def write_valid(kind, path):
    options = dict(KINDS[kind])
    space = options.pop("space", BOX)
    if space is GOAL_SPACE:
        options["env"] = goal_envs(2)
    cls = CLASSES.get(kind, PrioritizedReplayBuffer)
    n_slots = 16 * options.get("n_envs", 1)
    buffer = cls(n_slots, space, TWO_ACTIONS, device="cpu", **options)
    if kind == "frames":
        fill_with_stacks(buffer, 20)
    else:
        fill(buffer, 20, done_at=[(step, step % 2) for step in range(2, 20, 3)])
    buffer.update_priorities(buffer.sample(8).slots, np.linspace(-2, 5, 8))
    buffer.sample(4)
    save_buffer(buffer, path)
    assert check_loads_or_is_refused(path)
    return path


def check_loads_or_is_refused(path):
    """What loads keeps the promises of a buffer, and works."""
    with warnings.catch_warnings(), bounded_memory(500e6):
        warnings.simplefilter("ignore")  # SB3's, that a buffer may not fit into memory
        try:
            buffer = load_buffer(path, "cpu")
        except ValueError:
            return False
        if buffer.n_slots <= 10_000:
            check_valid(buffer, finite=False)
        if isinstance(buffer, PrioritizedHerReplayBuffer):
            buffer.set_env(goal_envs(1))
        n_samples = min(buffer.n_sampleable, 3)
        if n_samples > 0:
            batch = buffer.sample(n_samples)
            assert np.isfinite(batch.weights.numpy()).all()
            buffer.update_priorities(batch.slots, np.ones(n_samples))
    return True


@pytest.mark.parametrize("kind", ["proportional", "rank"])
def test_flipped_bit_anywhere_is_refused_or_changes_nothing(kind, files, tmp_path):
    whole, path = files[kind].read_bytes(), tmp_path / "file"
    buffer, n_refused = load_buffer(files[kind], "cpu"), 0
    places = range(0, len(whole), 5)
    for place in places:
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        try:
            loaded = load_buffer(path, "cpu")
        except ValueError:
            n_refused += 1
            continue
        assert_same_buffer(loaded, buffer)  # a date, for example, does not matter
    assert n_refused > 0.8 * len(places)


def test_truncated_file_is_refused(files, tmp_path):
    whole, path = files["rank"].read_bytes(), tmp_path / "file"
    for length in range(0, len(whole), 31):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=str(path)):
            load_buffer(path)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_or_other_values_in_the_header_are_refused_or_whole(kind, files, tmp_path):
    crafted, choices, n_refused = Crafted(files[kind]), random.Random(0), 0
    places = [*places_in(crafted.header)]
    assert len(places) > 40
    for values, key in places:
        right = values[key]
        for junk in choices.sample(JUNK, 3):
            values[key] = junk
            n_refused += not check_loads_or_is_refused(crafted.write(tmp_path / "file"))
        del values[key]
        n_refused += not check_loads_or_is_refused(crafted.write(tmp_path / "file"))
        if isinstance(values, dict):
            values[key] = right
        else:
            values.insert(key, right)
    assert n_refused > 2 * len(places)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_another_shape_or_type_are_refused(kind, files, tmp_path):
    valid = Crafted(files[kind])
    for name, array in valid.members.items():
        changed = [
            array[:-1],
            np.concatenate([array, array]),
            array[None],
            array.astype("c16"),
            array.astype(">f8"),
            np.full(array.shape, None, dtype=object),
            npy_of_shape((10**12,)),
            npy_of_shape((-1,)),
            as_npy(array)[:-1],
            as_npy(array) + b"\0",
            b"",
        ]
        for other in changed:
            crafted = copy.deepcopy(valid)
            crafted.members[name] = other
            if other is changed[0] and name in ("flags.npy", LEAVES):  # the last slot is new then
                check_loads_or_is_refused(crafted.write(tmp_path / "file"))
                continue
            with pytest.raises(ValueError, match="file"), bounded_memory(500e6):
                load_buffer(crafted.write(tmp_path / "file"))
        crafted = copy.deepcopy(valid)
        del crafted.members[name]
        with pytest.raises(ValueError, match=name):
            load_buffer(crafted.write(tmp_path / "file"))


def set_entry(value):
    def change(array):
        array.flat[3] = value

    return change


def add(number):
    def change(array):
        array += number

    return change


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("proportional", LEAVES, set_entry(-1.0)),
        ("proportional", LEAVES, set_entry(np.nan)),
        ("proportional", LEAVES, set_entry(1e300)),
        ("rank", LEAVES, set_entry(0.5)),
        ("rank", SLOTS, set_entry(-1)),
        ("rank", SLOTS, set_entry(16)),
        ("rank", SLOTS, set_entry(2**40)),
        ("rank", SLOTS, add(1)),
        ("rank", "priorities/priorities.npy", set_entry(np.nan)),
        ("rank", "priorities/priorities.npy", set_entry(0.0)),
        ("rank", "priorities/priorities.npy", set_entry(1e300)),
        ("frames", "frames/newest.npy", add(1000)),
        ("frames", "frames/following.npy", set_entry(-1)),
        ("frames", "frames/previous.npy", set_entry(1000)),
        ("frames", "frames/previous.npy", set_entry(-2)),
    ],
)
def test_numbers_out_of_range_never_reach_a_kernel(kind, name, change, files, tmp_path):
    crafted = Crafted(files[kind])
    change(crafted.members[name])

    with pytest.raises(ValueError, match="file"):
        load_buffer(crafted.write(tmp_path / "file"))


@pytest.mark.parametrize("kind", KINDS)
def test_small_file_of_a_large_buffer_takes_little_memory(kind, files, tmp_path):
    crafted = Crafted(files[kind])
    check_loads_or_is_refused(crafted.write(tmp_path / "file"))  # what the first load takes
    crafted.header["buffer"]["arguments"]["buffer_size"] = 20_000_000
    if kind != "frames":  # it was full
        crafted.header["buffer"]["state"]["full"] = False
    crafted.write(tmp_path / "file")

    with bounded_memory(150e6):
        check_loads_or_is_refused(tmp_path / "file")


@pytest.mark.parametrize(
    ("member", "compression"),
    [(npy_of_shape((10**7,)), zipfile.ZIP_STORED), (np.zeros(10**7), zipfile.ZIP_DEFLATED)],
    ids=["stored", "compressed"],
)
def test_small_file_of_a_large_array_takes_little_memory(member, compression, files, tmp_path):
    crafted = Crafted(files["proportional"])
    crafted.members["flags.npy"] = member
    crafted.write(tmp_path / "file", compression)

    tracemalloc.start()
    with pytest.raises(ValueError, match="file"):
        load_buffer(tmp_path / "file")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 10e6


@pytest.mark.parametrize("version", [1, 2, 4])
def test_other_versions_are_refused_by_their_name(version, files, tmp_path):
    crafted = Crafted(files["proportional"])
    crafted.header["version"] = version

    with pytest.raises(ValueError, match=r"0\.2\.0"):
        load_buffer(crafted.write(tmp_path / "file"))


def test_other_files_are_refused_with_what_reads_them(tmp_path):
    model = make(kind=PERDQN).learn(30)
    model.save(tmp_path / "model.zip")
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    save_buffer(model.replay_buffer, tmp_path / "buffer.npz")
    save_checkpoint(model, tmp_path / "model.ckpt")

    for name, reader in (
        ("model.zip", r"PERDQN\.load"),
        ("buffer.pkl", "load_replay_buffer"),
        ("model.ckpt", "checkpoint"),
    ):
        with pytest.raises(ValueError, match=reader):
            load_buffer(tmp_path / name)
    for name in ("model.zip", "buffer.npz"):
        with pytest.raises(ValueError, match="checkpoint"):
            load_checkpoint(tmp_path / name, Corridor())
    with pytest.raises(FileNotFoundError):
        load_buffer(tmp_path / "nowhere")


@pytest.fixture
def _keep_generators():
    """A checkpoint that loads changes the generators that all tests share."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    yield
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002


@pytest.mark.usefixtures("_keep_generators")
def test_damaged_checkpoint_is_refused_or_whole(tmp_path):
    env, path = VecNormalize(make_vec_env(Corridor)), tmp_path / "file"
    model = make(env, PERDQN, buffer_size=48).learn(60)
    save_checkpoint(model, path)
    whole = path.read_bytes()

    for place in range(0, len(whole), len(whole) // 30):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with contextlib.suppress(ValueError):
            check_valid(load_checkpoint(path, env, "cpu").replay_buffer)
        path.write_bytes(whole[:place])
        with pytest.raises(ValueError, match="whole file"):
            load_checkpoint(path, env, "cpu")
