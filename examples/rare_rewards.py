"""
DQN and PERDQN, with one-step and three-step returns, where rewards are rare: MiniGrid's DoorKey.

It needs ``pip install minigrid`` and three minutes. With seed 0, it printed 0.00 and 0.01 with
one-step returns, 0.70 (DQN) and 0.96 (PERDQN) with three-step returns. One seed can mislead:
docs/results/minigrid.md has ten.
"""

import gymnasium as gym
import minigrid  # noqa: F401 - it registers the environments
import numpy as np
import torch
from minigrid.wrappers import ImgObsWrapper
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERDQN

SETTINGS = {
    "learning_rate": 5e-4,
    "batch_size": 64,
    "buffer_size": 50_000,
    "learning_starts": 1_000,
    "target_update_interval": 500,
    "exploration_fraction": 0.5,
}


def flat(env: gym.Env) -> gym.Env:
    return gym.wrappers.FlattenObservation(ImgObsWrapper(env))


def main(steps: int = 60_000, seed: int = 0) -> dict[tuple[str, int], float]:
    """Print, and return, the mean return of the last 100 episodes of each training."""
    returns = {}
    print("          n_steps  mean return")
    for n_steps in (1, 3):
        for algorithm in (DQN, PERDQN):
            env = make_vec_env("MiniGrid-DoorKey-5x5-v0", seed=seed, wrapper_class=flat)
            model = algorithm("MlpPolicy", env, n_steps=n_steps, seed=seed, **SETTINGS)
            model.learn(steps)
            mean = float(np.mean([episode["r"] for episode in model.ep_info_buffer]))
            returns[algorithm.__name__, n_steps] = mean
            print(f"{algorithm.__name__:9} {n_steps:7}  {mean:11.2f}")
    return returns


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster for small networks
    main()
