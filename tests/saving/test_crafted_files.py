"""
Files that were changed anywhere, with a right checksum, are refused by ValueError or load whole.

The normal tests take 150 cases of each kind; ``make soak`` takes 10,000.
"""

import os
import random
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from builders import BOX, DICT, TWO_ACTIONS, fill, fill_with_stacks
from checks import check_valid
from corridor import Corridor, make
from crafted import Crafted, bounded_memory, change_bytes, change_header, change_member, sealed
from goal_line import GOAL_SPACE, goal_envs
from gymnasium import spaces
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
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

ROOT = Path(__file__).parents[2]
N_CASES = int(os.environ.get("FUZZ_CASES", "150"))
STACKS = spaces.Box(0, 255, (2, 3, 4), np.uint8)
KINDS = {
    "proportional": {"new_priority": "max_stored", "weight_normalization": "buffer"},
    "lap": {"prioritization": "lap", "uniform_share": 0.25},
    "rank": {"prioritization": "rank", "weight_normalization": "buffer"},
    "dict": {"space": DICT, "prioritization": "rank", "n_envs": 2},
    "n_step": {"replacement": False, "n_steps": 3, "n_envs": 3, "gamma": 0.5},
    "her": {"space": GOAL_SPACE, "uniform_share": 0.5, "n_envs": 2},
    "frames": {"space": STACKS, "n_stack": 4, "n_envs": 2},
    "shared": {"optimize_memory_usage": True, "handle_timeout_termination": False, "n_envs": 2},
}


CLASSES = {"dict": PrioritizedDictReplayBuffer, "her": PrioritizedHerReplayBuffer}


def stored(write):
    """Return the bytes of a file that a function writes."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "file"))
        return Path(folder, "file").read_bytes()


@cache
def valid_buffer(kind, n_rows=13, size=16):
    np.random.seed(0)  # noqa: NPY002  # where buffers take their seed from
    options = dict(KINDS[kind])
    space = options.pop("space", BOX)
    if space is GOAL_SPACE:
        options["env"] = goal_envs(2)
    cls = CLASSES.get(kind, PrioritizedReplayBuffer)
    n_slots = size * options.get("n_envs", 1)
    buffer = cls(n_slots, space, TWO_ACTIONS, device="cpu", **options)
    if kind == "frames":
        add = fill_with_stacks
        add(buffer, n_rows)
    else:
        add = fill
        add(buffer, n_rows, done_at=[(step, step % 2) for step in range(2, n_rows, 3)])
    buffer.update_priorities(buffer.sample(8).slots, np.linspace(-2, 5, 8))
    buffer.sample(4)
    return stored(lambda path: save_buffer(add(buffer, 2, first=n_rows), path))


@cache
def valid_checkpoint(kind):
    env = VecNormalize(make_vec_env(Corridor))
    options = {"prioritization": "rank"} if kind == "rank" else {}
    model = make(env, PERDQN, buffer_size=48, replay_buffer_kwargs=options).learn(60)
    return stored(lambda path: save_checkpoint(model, path))


def give_environments(buffer):
    if isinstance(buffer, PrioritizedHerReplayBuffer):
        buffer.set_env(goal_envs(1))  # of which one computes all rewards


def check_loads_or_is_refused(load):
    """Whatever loads keeps the promises of a buffer, and works."""
    with warnings.catch_warnings(), bounded_memory(500e6):
        warnings.simplefilter("ignore")  # such as SB3's, that a buffer might not fit into memory
        try:
            buffer = load()
        except ValueError:
            event("refused")
            return
        event("loads")
        if buffer.n_slots <= 10_000:
            check_valid(buffer, finite=False)
        give_environments(buffer)
        n_samples = min(buffer.n_sampleable, 3)
        if n_samples > 0:
            batch = buffer.sample(n_samples)
            assert np.isfinite(batch.weights.numpy()).all()
            buffer.update_priorities(batch.slots, np.ones(n_samples))


def change(draw, content):
    """Return a file with one to three changes."""
    crafted = Crafted(content)
    for _ in range(draw(st.integers(1, 3))):
        of_header = draw(st.booleans()) or not crafted.members
        if of_header and crafted.header:
            change_header(draw, crafted.header)
        elif crafted.members:
            change_member(draw, crafted.members)
    content = crafted.content()
    return change_bytes(draw, content) if draw(st.integers(0, 9)) == 0 else content


def fuzz_buffer(path, data):
    kind = data.draw(st.sampled_from([*KINDS]))
    n_rows = data.draw(st.sampled_from([10, 13, 20]))
    path.write_bytes(sealed(change(data.draw, valid_buffer(kind, n_rows))))
    check_loads_or_is_refused(lambda: load_buffer(path, "cpu"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.fixture
def _keep_streams():
    """A checkpoint that loads changes the generators that all of the program shares."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    yield
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_small_file_of_a_large_buffer_takes_little_memory(kind, path):
    """4 KB that claimed 1e8 slots took 1 GB, and a buffer of ranks 3 GB."""
    crafted = Crafted(valid_buffer(kind))
    crafted.write(path)
    first = load_buffer(path, "cpu")
    give_environments(first)
    first.sample(3)  # what the first load takes in a process does not count
    crafted.header["buffer"]["options"]["buffer_size"] = 20_000_000
    crafted.write(path)

    with bounded_memory(150e6), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SB3's, where the machine has less memory than all of it
        buffer = load_buffer(path, "cpu")
        give_environments(buffer)
        batch = buffer.sample(3)
        buffer.update_priorities(batch.slots, np.ones(3))

    assert buffer.n_slots in (20_000_000, 19_999_998)


def test_only_the_written_part_of_priorities_is_stored(path):
    for options in ({}, {"prioritization": "rank"}, {"uniform_share": 0.5}):
        buffer = PrioritizedReplayBuffer(1_000_000, BOX, TWO_ACTIONS, "cpu", **options)
        save_buffer(fill(buffer, 10), path)

        assert path.stat().st_size < 5000
        assert load_buffer(path, "cpu").n_slots == 1_000_000


def with_changes(content, changes):
    crafted = Crafted(content)
    changes(crafted)
    return sealed(crafted.content())


def set_in_header(*place, to):
    def change(crafted):
        *where, last = ("buffer", *place)
        part = crafted.header
        for name in where:
            part = part[name]
        part[last] = to

    return change


def set_member(name, to):
    def change(crafted):
        crafted.members[f"{name}.npy"] = to(crafted.members[f"{name}.npy"])

    return change


def put_floats_for_slots(crafted):
    """As many as an attacker likes are distinct and in range."""
    ranks = np.arange(1.0, 1001)
    crafted.members[f"{SLOTS}.npy"] = np.linspace(0, 15.99, 1000)
    crafted.members["prioritization/priorities.npy"] = np.linspace(1, 0.5, 1000)
    crafted.members[f"{LEAVES}.npy"] = ranks**-0.6


LEAVES, SLOTS = "prioritization/leaves", "prioritization/slots"
NUMBERS = ("prioritization", "values", "largest_priority")


@pytest.mark.parametrize(
    ("kind", "changes", "complaint"),
    [
        ("proportional", set_member(LEAVES, lambda leaves: leaves * 0), "those of the 15 transi"),
        ("proportional", set_member(LEAVES, lambda leaves: leaves[:-1]), "those of the 15 transi"),
        (
            "proportional",
            set_member(LEAVES, lambda leaves: np.append(leaves, leaves[0])),
            "those of the 15 transitions in the buffer, got '16 priorities'",
        ),
        ("proportional", set_in_header(*NUMBERS, to=float("nan")), "stored largest_priority"),
        ("proportional", set_in_header(*NUMBERS, to=-1), "stored largest_priority"),
        ("proportional", set_in_header(*NUMBERS, to="1"), "stored largest_priority"),
        ("proportional", set_in_header("options", "n_envs", to=0), "n_envs must be a whole"),
        ("proportional", set_in_header("options", "alhpa", to=1), r"stored options .*'alhpa'"),
        ("proportional", set_in_header("options", "device", to=1), "must not name what is"),
        ("proportional", set_in_header("options", "alpha", to="x"), r"alpha must lie in \[0, 1\]"),
        ("proportional", set_in_header("options", "buffer_size", to=10**30), "buffer_size must"),
        ("proportional", set_in_header("state", "pos", to=16), "pos must be a row"),
        ("proportional", set_in_header("state", "pos", to=-1), "pos must be a whole number"),
        ("proportional", set_in_header("state", "pos", to=True), "pos must be a whole number"),
        ("proportional", set_in_header("state", to=None), "buffer.state must be an object"),
        ("proportional", set_in_header("kind", to="DQN"), "kind must be one of"),
        ("proportional", set_in_header("kind", to=[]), "kind must be one of"),
        ("proportional", set_in_header("observation_space", to={}), "must hold type"),
        (
            "proportional",
            set_in_header("observation_space", "shape", to=[10**5, 10**5]),
            "must have at most 4194304 numbers",
        ),
        ("proportional", set_in_header("observation_space", "dtype", to="O"), "type among biuf"),
        (
            "proportional",
            set_in_header("action_space", "n", to=0),
            "gymnasium can make|n must be|positive",
        ),
        (
            "proportional",
            set_in_header("state", "generator", "bit_generator", to="Mine"),
            "bit_generator must be one of",
        ),
        (
            "proportional",
            set_in_header("state", "generator", "state", to={}),
            "the state of a random generator must be one of PCG64",
        ),
        ("proportional", set_member("draw_log", lambda states: states * 0 + 1), "draw_log must"),
        ("rank", put_floats_for_slots, "stored slots must be at most 16 numbers of type int64"),
        ("rank", set_member(SLOTS, lambda slots: slots * 0.5), "stored slots must be .* int64"),
        ("rank", set_member(SLOTS, lambda slots: slots + 1), "those of the 15 transitions"),
    ],
)
def test_what_a_buffer_cannot_have_written_is_refused_by_its_rule(kind, changes, complaint, path):
    path.write_bytes(with_changes(valid_buffer(kind), changes))

    with pytest.raises(ValueError, match=complaint):
        load_buffer(path, "cpu")


def test_more_steps_of_a_return_than_are_stored_take_no_memory_for_them(path):
    path.write_bytes(
        with_changes(valid_buffer("n_step"), set_in_header("options", "n_steps", to=10**9))
    )
    buffer = load_buffer(path, "cpu")

    with bounded_memory(150e6):
        batch = buffer.sample(20)

    assert np.isfinite(batch.rewards.numpy()).all()


@pytest.mark.slow
def test_no_kernel_reads_or_writes_beyond_an_array_for_a_hundred_changed_files():
    """Compiled kernels check no bounds. Python does, in the same kernels without numba."""
    tests = "changed_anywhere_is_refused_or_whole or cannot_have_written"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "FUZZ_CASES": "100"}

    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", __file__, "-k", tests]
    result = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout


@given(data=st.data())
@settings(max_examples=N_CASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_buffer_that_was_changed_anywhere_is_refused_or_whole(path, data):
    fuzz_buffer(path, data)


@pytest.mark.usefixtures("_keep_streams")
@given(data=st.data())
@settings(
    max_examples=max(N_CASES // 5, 20), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_checkpoint_that_was_changed_anywhere_is_refused_or_whole(path, data):
    content = valid_checkpoint(data.draw(st.sampled_from(["proportional", "rank"])))
    path.write_bytes(sealed(change(data.draw, content)))
    env = VecNormalize(make_vec_env(Corridor))
    check_loads_or_is_refused(lambda: load_checkpoint(path, env, "cpu").replay_buffer)
