"""PERDQN with alpha = 0 draws uniformly, and has to learn CartPole-v1 as DQN does: paired seeds."""

import argparse

import numpy as np
from stable_baselines3 import DQN

from sb3_per import PERDQN

# RL-Zoo's for DQN, with a learning rate of 1e-3 falling to 0 instead of 2.3e-3 throughout.
HYPERPARAMETERS = {
    **{"learning_rate": lambda left: 1e-3 * left, "batch_size": 64, "buffer_size": 100_000},
    **{"train_freq": 256, "gradient_steps": 128, "target_update_interval": 10, "device": "cpu"},
    **{"exploration_fraction": 0.16, "exploration_final_eps": 0.04, "learning_starts": 1000},
}
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # Student's, two-sided


def main(n_seeds: int = 5, total_timesteps: int = 10_000) -> tuple[float, float]:
    differences = []
    for seed in range(n_seeds):
        uniform = mean_return(DQN, seed, total_timesteps)
        ours = mean_return(PERDQN, seed, total_timesteps, replay_buffer_kwargs={"alpha": 0.0})
        print(f"seed {seed}: DQN {uniform:.1f}, PERDQN(alpha=0) {ours:.1f}", flush=True)
        differences.append(ours - uniform)
    mean, half = np.mean(differences), T_95[n_seeds] * np.std(differences, ddof=1) / n_seeds**0.5
    print(f"difference {mean:+.1f}, 95 % interval {mean - half:+.1f} to {mean + half:+.1f}")
    return mean, half


def mean_return(algorithm: type[DQN], seed: int, total_timesteps: int, **options) -> float:
    options = {**HYPERPARAMETERS, "policy_kwargs": {"net_arch": [256, 256]}, **options}
    model = algorithm("MlpPolicy", "CartPole-v1", seed=seed, **options).learn(total_timesteps)
    return np.mean(model.get_env().env_method("get_episode_rewards")[0])  # of the whole training


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-seeds", type=int, choices=T_95, default=5)
    main(**vars(parser.parse_args()))
