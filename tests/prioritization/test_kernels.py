"""The functions that numba compiles: when, where they are cached, and what they must not do."""

import os
import shutil
import subprocess
import sys

import pytest

TOTAL_AND_WARNINGS = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    import numpy as np
    from sb3_per.prioritization.sum_tree import total_of
    total = total_of(np.ones(8))
print(total, *[str(warning.message) for warning in caught])
"""

REFUSE_TO_COMPILE = """
from numba.core.dispatcher import Dispatcher

def refuse(*args, **kwargs):
    raise RuntimeError("compiled too early or too late")

Dispatcher.compile = refuse
"""

MAKE_MODELS = """
from sb3_per import PERDQN

models = [
    PERDQN("MlpPolicy", "CartPole-v1", learning_starts=40, replay_buffer_kwargs=options)
    for options in (
        {"prioritization": "proportional", "new_priority": "max_stored"},
        {"prioritization": "rank", "new_priority": "max_stored", "uniform_share": 0.5},
        {"prioritization": "lap", "uniform_share": 0.5, "beta": 1},
        {"weight_normalization": "buffer", "replacement": False, "uniform_share": 0},
        {"stratified": False, "replacement": False, "uniform_share": 0},
    )
]
"""

TRAIN = "[model.learn(100) for model in models]; models[0].replay_buffer.sample(4, beta=1)"


def run(code, cwd=None, **variables):
    command = [sys.executable, "-W", "ignore", "-c", code]
    options = {"env": {**os.environ, **variables}, "cwd": cwd, "capture_output": True}
    finished = subprocess.run(command, text=True, check=False, **options)
    assert finished.returncode == 0, finished.stderr
    return finished


def test_kernels_work_when_they_come_from_numbas_cache(tmp_path):
    """A kernel that was cached after one that calls it cannot return arrays: order matters."""
    run(MAKE_MODELS + TRAIN, NUMBA_CACHE_DIR=str(tmp_path))
    compiled = sorted(tmp_path.glob("**/*.nbc"))
    run(MAKE_MODELS + TRAIN, NUMBA_CACHE_DIR=str(tmp_path))

    assert len(compiled) > 15
    assert sorted(tmp_path.glob("**/*.nbc")) == compiled, "loaded, not compiled again"


def test_kernels_compile_without_a_folder_for_the_cache(tmp_path):
    package = tmp_path / "sb3_per"
    shutil.copytree("sb3_per", package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package, package / "prioritization"):
        (folder / "__pycache__").touch()  # a file: no folder can be made here
    nowhere = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "NUMBA_CACHE_DIR": ""}

    printed = run(TOTAL_AND_WARNINGS, tmp_path, PYTHONPATH=str(tmp_path), **nowhere).stdout

    assert printed.startswith("8.0 ")
    assert printed.count("NUMBA_CACHE_DIR") == 1


@pytest.mark.parametrize(("suffix", "content"), [("nbi", b""), ("nbc", b"\0" * 9)])
def test_kernels_compile_if_a_file_of_the_cache_is_damaged(suffix, content, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)}
    run(TOTAL_AND_WARNINGS, **cache)
    (file,) = tmp_path.glob(f"*/*total_of*.{suffix}")
    file.write_bytes(content)

    printed = run(TOTAL_AND_WARNINGS, **cache).stdout

    assert printed.startswith("8.0 ")
    assert printed.count(str(file.parent)) == 1
    assert run(TOTAL_AND_WARNINGS, **cache).stdout == "8.0\n", "it is whole again"


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of processes")
def test_kernels_compile_if_the_cache_is_full(tmp_path):
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"

    printed = run(full + TOTAL_AND_WARNINGS, NUMBA_CACHE_DIR=str(tmp_path)).stdout

    assert printed.startswith("8.0 ")
    assert printed.count(str(tmp_path)) == 1
    assert not [*tmp_path.glob("*/*.nb?")]


def test_importing_the_package_compiles_nothing():
    modules = "sb3_per.buffers.her, sb3_per.algorithms.dqn, sb3_per.checkpoints"
    run(f"{REFUSE_TO_COMPILE}\nimport {modules}")


def test_nothing_is_compiled_after_construction():
    run(MAKE_MODELS + REFUSE_TO_COMPILE + TRAIN)
