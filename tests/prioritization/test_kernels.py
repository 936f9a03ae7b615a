import importlib
import os
import pkgutil
import shutil
import subprocess
import sys

import numpy as np
from numba import types
from numba.core.registry import CPUDispatcher

from sb3_per import prioritization
from sb3_per.prioritization.sampler import PrioritizedSampler

USE_ALL_KERNELS = """
import numpy as np
from gymnasium import spaces
from sb3_per import PrioritizedReplayBuffer

for prioritization in ("proportional", "rank"):
    for replacement in (True, False):
        for stratified in (True, False):
            buffer = PrioritizedReplayBuffer(
                100, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), "cpu",
                prioritization=prioritization, replacement=replacement, stratified=stratified,
            )
            for _ in range(10):
                buffer.add(np.zeros(2), np.zeros(2), np.zeros(1), np.zeros(1), np.zeros(1), [{}])
            buffer.update_priorities(buffer.sample(4).slots, np.ones(4))
            buffer.prioritization.probabilities(np.arange(10))
"""


def test_kernels_work_when_they_come_from_numbas_cache(tmp_path):
    """A kernel that is loaded behind one that calls it cannot return arrays: the order matters."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    compiled = _run(USE_ALL_KERNELS, environment)
    from_the_cache = _run(USE_ALL_KERNELS, environment)

    assert list(tmp_path.glob("**/*.nbi"))
    assert compiled.stderr == from_the_cache.stderr == ""


def test_no_kernel_returns_arrays_in_a_tuple():
    """While numba makes such a tuple, Ctrl-C raises SystemError instead of KeyboardInterrupt."""
    for name in ("proportional", "rank"):
        for options in ({"uniform_share": 0.5}, {"replacement": False}):
            for stratified in (False, True):
                generator = np.random.default_rng(0)
                sampler = PrioritizedSampler(
                    9, generator=generator, prioritization=name, stratified=stratified, **options
                )
                sampler.insert(np.arange(9))
                sampler.update(sampler.sample(4, 0.5).slots, np.ones(4))
                sampler.prioritization.state()

    returned = {}
    for module in pkgutil.iter_modules(prioritization.__path__):
        found = vars(importlib.import_module(f"{prioritization.__name__}.{module.name}"))
        for name, kernel in found.items():
            if isinstance(kernel, CPUDispatcher):
                for signature in kernel.nopython_signatures:
                    returned[f"{module.name}.{name}"] = signature.return_type

    assert len(returned) > 20
    pairs = {name: kind for name, kind in returned.items() if isinstance(kind, types.BaseTuple)}
    assert {name for name, kind in pairs.items() if "array" in str(kind)} == set()


def _run(code, environment, cwd=None):
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run


NOTHING_TO_WRITE_TO = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from sb3_per.prioritization.sampler import smallest
import numpy as np
print(smallest(np.array([3.0, 2.0])), *[str(warning.message) for warning in caught])
"""


def test_where_no_folder_can_be_written_kernels_compile_after_one_warning(tmp_path):
    package = tmp_path / "sb3_per"
    shutil.copytree("sb3_per", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "prioritization/__pycache__").touch()  # a file: no folder can be made here
    environment = {
        **os.environ,
        "HOME": os.devnull,
        "XDG_CACHE_HOME": os.devnull,
        "NUMBA_CACHE_DIR": "",
    }

    printed = _run(NOTHING_TO_WRITE_TO, environment, cwd=tmp_path).stdout

    assert printed.startswith("2.0 ")
    assert printed.count("NUMBA_CACHE_DIR") == 1


NO_COMPILING_LATER = """
import sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from sb3_per import PERDQN

models = [
    PERDQN("MlpPolicy", "CartPole-v1", learning_starts=40, replay_buffer_kwargs=options)
    for options in (
        {"prioritization": "proportional", "new_priority": "max_stored"},
        {"prioritization": "rank", "new_priority": "max_stored"},
        {"weight_normalization": "buffer", "replacement": False},
        {"stratified": False, "replacement": False},
    )
]

def refuse(*args, **kwargs):
    raise RuntimeError("compiled in the middle of training")

Dispatcher.compile = refuse
for model in models:
    model.learn(100)
"""


def test_nothing_is_compiled_after_construction():
    subprocess.run([sys.executable, "-W", "ignore", "-c", NO_COMPILING_LATER], check=True)
