import os
import subprocess
import sys

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
    for _ in ("compiled", "from the cache"):
        subprocess.run([sys.executable, "-c", USE_ALL_KERNELS], env=environment, check=True)

    assert list(tmp_path.glob("**/*.nbi"))


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
