"""
Print what it costs to save and load a buffer: time, size of the file, memory beyond the buffer.

    python -m benchmarks.probes.saving rank
"""

import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_per import PrioritizedReplayBuffer, load_buffer, save_buffer

N_ENVS = 1000  # transitions that are added at a time


def main(prioritization: Any, n_transitions: int = 1_000_000) -> None:
    """Print a line for saving and a line for loading."""
    both = spaces.Box(-1, 1, (8,), np.float32), spaces.Discrete(4)
    buffer, empty = (
        PrioritizedReplayBuffer(n_transitions, *both, n_envs=N_ENVS, prioritization=prioritization)
        for _ in range(2)
    )
    random, zeros = np.random.default_rng(0), np.zeros(N_ENVS)
    for _ in range(n_transitions // N_ENVS):
        observations = random.uniform(-1, 1, (N_ENVS, 8)).astype(np.float32)
        buffer.add(observations, observations, zeros, zeros, zeros, [{}] * N_ENVS)

    arrays = (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards)
    size = sum(array.nbytes for array in (*arrays, buffer.dones, buffer.timeouts))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "buffer.npz")
        for action, given, kept in (
            (save_buffer, (buffer, path), 0),
            (load_buffer, (path, empty), size),
        ):
            tracemalloc.start()
            start = time.perf_counter()
            action(*given)
            seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            print(f"{seconds:.2f} s, file {path.stat().st_size / 1e6:.0f} MB, ", end="")
            print(f"memory beyond the transitions at most {(peak - kept) / 1e6:.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1])
