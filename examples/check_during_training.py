"""A callback that checks the buffer during training, for people who change the buffer's code."""

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import PERDQN


class CheckBuffer(BaseCallback):
    def __init__(self, check_freq: int) -> None:
        super().__init__()
        self.check_freq, self.n_checks = check_freq, 0

    def _on_rollout_start(self) -> None:  # between rollouts
        if self.n_calls % self.check_freq == 0:
            check(self.model.replay_buffer)
            self.n_checks += 1

    def _on_step(self) -> bool:
        return True


def check(buffer) -> None:  # in time proportional to the buffer's size
    shares = buffer.probabilities(np.arange(buffer.n_slots))
    n_positive = np.count_nonzero(shares)
    if n_positive != buffer.n_sampleable:
        raise RuntimeError(f"{n_positive} slots can be sampled, {buffer.n_sampleable} should be")
    if buffer.n_sampleable and not np.isclose(shares.sum(), 1, rtol=1e-9):
        raise RuntimeError(f"the probabilities add up to {shares.sum()}")


def main(total_timesteps: int = 5000) -> None:
    callback = CheckBuffer(check_freq=100)
    PERDQN("MlpPolicy", "CartPole-v1", buffer_size=1000).learn(total_timesteps, callback=callback)
    print(f"{callback.n_checks} checks passed")


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster for small networks
    main()
