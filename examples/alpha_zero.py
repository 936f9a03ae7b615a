"""PERDQN with alpha = 0 draws uniformly, and has to learn CartPole-v1 as DQN does: paired seeds."""

import argparse

import numpy as np
from gymnasium import make
from stable_baselines3 import DQN
from stable_baselines3.common.monitor import Monitor

from examples.cartpole import HYPERPARAMETERS
from sb3_per import PERDQN

T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # Student's, two-sided


def main(n_seeds: int = 5, total_timesteps: int = 10_000) -> tuple[float, float]:
    differences = []
    for seed in range(n_seeds):
        uniform = mean_return(DQN, seed, total_timesteps)
        ours = mean_return(PERDQN, seed, total_timesteps, replay_buffer_kwargs={"alpha": 0.0})
        print(f"seed {seed}: DQN {uniform:.1f}, PERDQN(alpha=0) {ours:.1f}", flush=True)
        differences.append(ours - uniform)
    mean = np.mean(differences)
    half = T_95[n_seeds] * np.std(differences, ddof=1) / n_seeds**0.5
    print(f"difference {mean:+.1f}, 95 % interval {mean - half:+.1f} to {mean + half:+.1f}")
    return mean, half


def mean_return(algorithm: type[DQN], seed: int, total_timesteps: int, **options) -> float:
    # Over all episodes of the training: at its end both have reached the largest return there is.
    env = Monitor(make("CartPole-v1"))
    algorithm("MlpPolicy", env, seed=seed, **HYPERPARAMETERS, **options).learn(total_timesteps)
    return np.mean(env.get_episode_rewards())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-seeds", type=int, choices=T_95, default=5)
    parser.add_argument("--total-timesteps", type=int, default=10_000)
    main(**vars(parser.parse_args()))
