"""
Print what it costs to save and load a buffer: time, size of the file, memory beyond the buffer.

    python -m sb3_per.experiments.probes.cost_of_saving --prioritization rank
"""

import argparse
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
from gymnasium import spaces

from sb3_per.buffers.prioritized import PrioritizedReplayBuffer
from sb3_per.saving.buffer_files import load_buffer, save_buffer


def main(n_transitions: int = 1_000_000, prioritization: str = "proportional") -> None:
    """Print a line for saving and a line for loading."""
    both = spaces.Box(-1, 1, (8,), np.float32), spaces.Discrete(4)
    buffer = PrioritizedReplayBuffer(n_transitions, *both, prioritization=prioritization)
    buffer.observations[:] = np.random.default_rng(0).uniform(-1, 1, buffer.observations.shape)
    buffer.full = True  # a million calls of add would take most of the time
    buffer.prioritization.insert(np.arange(n_transitions))

    transitions = sum(stored.nbytes for stored in buffer.storage().values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "buffer.npz")
        actions = (lambda: save_buffer(buffer, path), 0), (lambda: load_buffer(path), transitions)
        for action, n_bytes in actions:
            tracemalloc.start()
            start = time.perf_counter()
            action()
            seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            print(f"{seconds:.2f} s, file {path.stat().st_size / 1e6:.0f} MB, ", end="")
            print(f"memory beyond the transitions at most {(peak - n_bytes) / 1e6:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure saving and loading of a buffer.")
    parser.add_argument("--n-transitions", type=int, default=1_000_000)
    parser.add_argument("--prioritization", default="proportional")
    main(**vars(parser.parse_args()))
