"""
Print what ranks cost next to proportional priorities: bare structures of a million slots.

    OMP_NUM_THREADS=1 python -m sb3_per.experiments.probes.cost_of_ranks
"""

from time import perf_counter_ns

import numpy as np

from sb3_per.prioritization.proportional import Proportional
from sb3_per.prioritization.rank_based import RankBased
from sb3_per.prioritization.sampling import SamplingScheme

N_SLOTS = 1_000_000


def main(n_rounds: int = 2000) -> None:
    """Print a row of medians for each batch size."""
    random = np.random.default_rng(0)
    both = Proportional(N_SLOTS), RankBased(N_SLOTS)
    for prioritization in both:
        prioritization.insert(np.arange(N_SLOTS))
        for slots in random.permutation(N_SLOTS).reshape(1000, -1):
            prioritization.update(slots, random.exponential(size=len(slots)))
    print("batch  proportional  rank-based  ratio   (medians in us)")
    for size in (32, 256, 1024):
        times = [[microseconds(one, size, random) for one in both] for _ in range(n_rounds)]
        fast, slow = np.median(times, axis=0)
        print(f"{size:>5}  {fast:>12.1f}  {slow:>10.1f}  {slow / fast:>5.2f}")


def microseconds(
    prioritization: Proportional | RankBased, batch_size: int, random: np.random.Generator
) -> float:
    """Return the time of one step: sample a batch, update it, add four transitions."""
    uniforms, errors = random.random(batch_size), random.exponential(size=batch_size)
    new = random.integers(N_SLOTS - 4) + np.arange(4).reshape(4, 1)
    start = perf_counter_ns()
    slots = prioritization.sample(SamplingScheme(), batch_size, uniforms).slots
    prioritization.update(slots, errors)
    for slot in new:
        prioritization.insert(slot)
    return (perf_counter_ns() - start) / 1000


if __name__ == "__main__":
    main()
