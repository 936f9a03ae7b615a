"""A long run with a small buffer: does memory stay flat, the speed the same, and the sum exact?"""

import math
import sys
import time
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import PERDQN


class Report(BaseCallback):
    """Prints speed and memory each time that a share of the run has passed."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.start, self.rows = every, time.process_time(), []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            speed = self.every / (time.process_time() - self.start)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.rows.append((self.num_timesteps, round(speed), round(pages * 4096 / 1e6)))
            print("| {:,} | {} | {} |".format(*self.rows[-1]), flush=True)
            self.start = time.process_time()
        return True


def main(total_timesteps: int = 2_000_000) -> list[tuple[int, int, int]]:
    report = Report(total_timesteps // 20)
    print("| steps | steps per second of CPU | resident memory, MB |\n|---|---|---|")
    model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=10_000, seed=0, device="cpu")
    tree = model.learn(total_timesteps, callback=report).replay_buffer.prioritization._tree
    print(f"root / fsum(leaves) - 1 = {tree.total / math.fsum(tree.leaf_weights) - 1:.1e}")
    return report.rows


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000)
