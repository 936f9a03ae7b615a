"""
Print what a batch of 32 costs from a thousand and from a million transitions, next to SB3's buffer.

    python -m sb3_per.experiments.probes.cost_of_a_batch
"""

import warnings
from timeit import repeat
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per.buffers.prioritized import PrioritizedReplayBuffer

SPACES = spaces.Box(-1, 1, (8,), np.float32), spaces.Discrete(4)


def main(sizes: tuple[int, ...] = (1_000, 1_000_000), n_rounds: int = 5000) -> None:
    """Print a row of medians for each size."""
    print("  stored  SB3 sample  our sample  our update   (us, batch of 32)")
    for size in sizes:
        print(f"{size:>8}" + "".join(f"{cost:>12.1f}" for cost in costs(size, n_rounds)))


def costs(size: int, n_rounds: int) -> list[float]:
    """Return the microseconds of SB3's ``sample``, of ours, and of our ``update_priorities``."""
    uniform, ours = full_buffer(ReplayBuffer, size), full_buffer(PrioritizedReplayBuffer, size)
    ours.update_priorities(np.arange(size), np.random.default_rng(0).exponential(size=size))
    slots = iter(np.random.default_rng(1).integers(size, size=(n_rounds, 32)))
    sample, update = ours.sample, ours.update_priorities
    warnings.filterwarnings("ignore", "10 batches were sampled")  # each call is timed alone
    calls = lambda: uniform.sample(32), lambda: sample(32), lambda: update(next(slots), np.ones(32))
    return [float(np.median(repeat(call, number=1, repeat=n_rounds))) * 1e6 for call in calls]


def full_buffer(kind: type[ReplayBuffer], size: int) -> Any:
    """Return a full buffer of a size."""
    buffer = kind(size, *SPACES, "cpu", n_envs=100)
    observations, zeros = np.zeros((100, 8), np.float32), np.zeros(100)
    for _ in range(size // 100):
        buffer.add(observations, observations, zeros, zeros, zeros, [{}] * 100)
    return buffer


if __name__ == "__main__":
    main()
