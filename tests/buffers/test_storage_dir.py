"""Observations in files: the same batches, little memory, and nothing left behind."""

import errno
import gc
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from builders import (
    BOX,
    DICT,
    IMAGE,
    MEMORY_OPTIMISED,
    STACKS,
    fill,
    fill_with_stacks,
    make_buffer,
)
from checks import assert_same_batch

from sb3_per import (
    load_buffer,
    save_buffer,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="reserves no files")


def make(space, folder, size=10, **options):
    return make_buffer(size=size, n_envs=2, space=space, storage_dir=folder, **options)


def files_of(folder):
    """Return how many bytes of this process are mapped to files in a folder, now or before."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ends = [line.split()[0].split("-") for line in lines if str(folder) in line]
    return sum(int(last, 16) - int(first, 16) for first, last in ends)


@pytest.mark.parametrize(
    ("space", "options"),
    [
        (BOX, {}),
        (DICT, {"n_steps": 3}),
        (IMAGE, MEMORY_OPTIMISED),
        (STACKS, {"n_stack": 4}),
    ],
    ids=["box", "dict", "optimized", "n_stack"],
)
def test_batches_are_the_same_as_from_memory(space, options, tmp_path):
    add = fill_with_stacks if space is STACKS else fill
    buffers = [make(space, folder, **options) for folder in (None, tmp_path / "new")]
    for buffer in buffers:
        buffer.generator = np.random.default_rng(0)
        add(buffer, 23)
    save_buffer(buffers[1], tmp_path / "buffer.npz")
    buffers.append(make(space, tmp_path / "new", **options))
    load_buffer(tmp_path / "buffer.npz", buffers[2])
    buffers.append(pickle.loads(pickle.dumps(buffers[1])))

    batches = [buffer.sample(16) for buffer in buffers]

    for batch in batches[1:]:
        assert_same_batch(batch, batches[0])
    assert files_of(tmp_path / "new") > 0
    assert buffers[2].storage_dir == str(tmp_path / "new")
    assert buffers[3].storage_dir is None


def test_space_of_files_is_freed_with_the_buffer(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    buffer = make(IMAGE, tmp_path, size=1000)
    assert files_of(tmp_path) == 0
    fill(buffer, 1)
    assert files_of(tmp_path) >= 2 * buffer.observations.nbytes == 2 * 2000 * 192
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]  # even after a kill

    del buffer
    gc.collect()

    assert files_of(tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_full_disk_is_an_error_at_the_first_transition(tmp_path, monkeypatch):
    def fail(descriptor, start, n_bytes):
        if n_bytes > 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)

    buffer = make(IMAGE, tmp_path, size=1000)
    with pytest.raises(OSError, match="No space left"):
        fill(buffer, 1)
    assert [*tmp_path.iterdir()] == []
    assert files_of(tmp_path) == 0


GROW = """
    import resource, sys
    import numpy as np
    from gymnasium import spaces
    from sb3_per import PrioritizedReplayBuffer

    LIMIT, n_steps = 32 * 2**20, 1280
    def in_bytes(name):
        with open("/proc/self/status") as lines:
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

    image = spaces.Box(0, 255, (64, 1024), np.uint8)
    warm = PrioritizedReplayBuffer(10, image, spaces.Discrete(2), "cpu")
    before, used = in_bytes("RssAnon"), in_bytes("VmData")
    # Linux counts private writable memory here, and not files that are mapped.
    resource.setrlimit(resource.RLIMIT_DATA, (used + LIMIT, used + LIMIT))
    folder = None if len(sys.argv) == 1 else sys.argv[1]
    buffer = PrioritizedReplayBuffer(n_steps, image, spaces.Discrete(2), "cpu", storage_dir=folder)
    one = np.zeros(1)
    for step in range(n_steps):
        frame = np.full((1, 64, 1024), step % 251, np.uint8)
        buffer.add(frame, frame, one, one, one, [{}])
        if step % 100 == 99:
            buffer.update_priorities(buffer.sample(4).slots, np.ones(4))
    assert (buffer.observations[:, 0, 5, 7] == np.arange(n_steps) % 251).all()
    assert 2 * n_steps * 65536 == 5 * LIMIT
    print((in_bytes("RssAnon") - before) / LIMIT)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_buffer_of_five_times_the_memory_limit_is_filled(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(GROW)]
    options = {"capture_output": True, "text": True}

    in_files = subprocess.run([*command, str(tmp_path)], **options)
    in_memory = subprocess.run(command, **options)

    assert in_files.returncode == 0, in_files.stderr
    assert float(in_files.stdout) < 0.5
    assert in_memory.returncode != 0
    assert "MemoryError" in in_memory.stderr
