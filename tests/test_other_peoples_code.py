"""Programs that use numba themselves keep working after `import sb3_per`."""

import subprocess
import sys

OTHER_PEOPLES_NUMBA = """
import numpy as np
from gymnasium import spaces
from numba import float64, njit
from numba.experimental import jitclass

from sb3_per import PrioritizedReplayBuffer

PrioritizedReplayBuffer(8, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), "cpu")


@jitclass([("x", float64)])
class Point:
    def __init__(self, x):
        self.x = x


namespace = {"__name__": None}
exec("def double(x): return 2 * x", namespace)
print(Point(1.0).x, njit(namespace["double"])(2.0))
"""


def test_numba_works_for_jitclass_and_generated_functions():
    """Numba's own and generated functions have no module name."""
    run = subprocess.run(
        [sys.executable, "-c", OTHER_PEOPLES_NUMBA], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "1.0 4.0\n"
