"""What ranks cost beside proportional priorities: bare structures of a million slots."""

from time import perf_counter_ns

import numpy as np

from sb3_per.prioritization.proportional import Proportional
from sb3_per.prioritization.rank_based import RankBased
from sb3_per.prioritization.sampling import SamplingScheme


def microseconds(prioritization, batch_size: int, random: np.random.Generator) -> int:
    """One step: draw a batch, update it, add four transitions."""
    n_slots = 1_000_000
    uniforms, errors = random.random(batch_size), random.exponential(size=batch_size)
    new = random.integers(n_slots - 4) + np.arange(4).reshape(4, 1)
    start = perf_counter_ns()
    slots = prioritization.sample(SamplingScheme(), batch_size, uniforms).slots
    prioritization.update(slots, errors)
    for slot in new:
        prioritization.insert(slot)
    return (perf_counter_ns() - start) / 1000


def main(n_rounds: int = 2000) -> None:
    random = np.random.default_rng(0)
    both = Proportional(1_000_000), RankBased(1_000_000)
    for prioritization in both:
        prioritization.insert(np.arange(1_000_000))
        for slots in random.permutation(1_000_000).reshape(1000, 1000):
            prioritization.update(slots, random.exponential(size=1000))
    print("batch  proportional  rank-based  ratio   (medians in us)")
    for size in (32, 256, 1024):
        times = [[microseconds(one, size, random) for one in both] for _ in range(n_rounds)]
        fast, slow = np.median(times, axis=0)
        print(f"{size:>5}  {fast:>12.1f}  {slow:>10.1f}  {slow / fast:>5.2f}")


if __name__ == "__main__":
    main()
