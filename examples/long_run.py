"""A long run with a small buffer: does memory stay flat, the speed the same, and the sum exact?"""

import math
import sys
from pathlib import Path
from time import process_time

from stable_baselines3 import DQN

from sb3_per import PERDQN


def main(total_timesteps: int = 2_000_000) -> list[tuple[int, float, float, float]]:
    options = {"policy": "MlpPolicy", "env": "CartPole-v1", "buffer_size": 10_000, "device": "cpu"}
    every, rows, ours, same, clock = total_timesteps // 20, [], [], [], [process_time()]
    yardstick, model = DQN(**options).learn(200), PERDQN(**options, seed=0)

    def report(*_: dict) -> bool:
        n_steps = model.num_timesteps
        if n_steps % (every // 10) == 0:
            ours.append((process_time() - clock[0]) / (every // 10))
            clock[0] = process_time()
            yardstick.train(every // 300 + 1, 32)  # always the same: the pace of machines varies
            same.append((process_time() - clock[0]) / (every // 300 + 1))
            clock[0] = process_time()
        if n_steps % every == 0:
            step, update = sum(ours[-10:]) / 10, sum(same[-10:]) / 10
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            rows.append((n_steps, 1 / step, step / update, pages * 4096 / 1e6))
            print("| {:,} | {:.0f} | {:.3f} | {:.0f} |".format(*rows[-1]), flush=True)
        return True

    print("| steps | steps a second | a step / an update of DQN | memory, MB |\n|---|---|---|---|")
    tree = model.learn(total_timesteps, callback=report).replay_buffer.prioritization._tree
    print(f"root / fsum(leaves) - 1 = {tree.total / math.fsum(tree.leaf_weights) - 1:.1e}")
    return rows


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
