"""
Train for long with a small buffer: does memory stay flat, the speed the same, and the sum exact?

    OMP_NUM_THREADS=1 python -m benchmarks.probes.long_run 2000000
"""

import math
import sys
from pathlib import Path
from time import process_time
from typing import Any

from stable_baselines3 import DQN

from sb3_per import PAPER, PERDQN


def main(total_timesteps: int = 2_000_000) -> None:
    """Print a row for each twentieth of the steps, and the error of the tree's sum at the end."""
    options: dict[str, Any] = {"buffer_size": 10_000, "device": "cpu"}
    every, clock = total_timesteps // 20, [process_time()]
    ours: list[float] = []
    same: list[float] = []
    yardstick = DQN("MlpPolicy", "CartPole-v1", **options).learn(200)
    model = PERDQN("MlpPolicy", "CartPole-v1", **options, seed=0, replay_buffer_kwargs=PAPER)

    def report(*_: dict[str, Any]) -> bool:
        n_steps = model.num_timesteps
        if n_steps % (every // 10) == 0:
            ours.append((process_time() - clock[0]) / (every // 10))
            clock[0] = process_time()
            yardstick.train(every // 300 + 1, 32)  # always the same: the pace of machines varies
            same.append((process_time() - clock[0]) / (every // 300 + 1))
            clock[0] = process_time()
        if n_steps % every == 0:
            step, update = sum(ours[-10:]) / 10, sum(same[-10:]) / 10
            megabytes = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
            print(f"| {n_steps:,} | {1 / step:.0f} | {step / update:.3f} | {megabytes:.0f} |")
        return True

    print("| steps | steps a second | a step / an update of DQN | memory, MB |\n|---|---|---|---|")
    buffer: Any = model.learn(total_timesteps, callback=report).replay_buffer
    tree = buffer.prioritization.tree
    print(f"root / fsum(leaves) - 1 = {tree.total / math.fsum(tree.leaf_masses) - 1:.1e}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
