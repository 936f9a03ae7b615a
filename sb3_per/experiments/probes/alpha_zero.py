"""
Check that PERDQN with alpha = 0, which samples uniformly, learns CartPole-v1 as DQN does.

    python -m sb3_per.experiments.probes.alpha_zero --n-seeds 5
"""

import argparse
from typing import Any

import numpy as np
from stable_baselines3 import DQN

from sb3_per.algorithms.dqn import PERDQN

# RL-Zoo's for DQN, with a learning rate of 1e-3 falling to 0 instead of 2.3e-3 throughout.
HYPERPARAMETERS: dict[str, Any] = {
    **{"learning_rate": lambda left: 1e-3 * left, "batch_size": 64, "buffer_size": 100_000},
    **{"train_freq": 256, "gradient_steps": 128, "target_update_interval": 10, "device": "cpu"},
    **{"exploration_fraction": 0.16, "exploration_final_eps": 0.04, "learning_starts": 1000},
    **{"policy_kwargs": {"net_arch": [256, 256]}},
}
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # Student's, two-sided


def main(n_seeds: int = 5, total_timesteps: int = 10_000) -> tuple[float, float]:
    """
    Train both on the same seeds, and print the returns and their mean difference.

    :return: The mean difference, and half of the width of its 95 % interval.
    """
    differences = []
    for seed in range(n_seeds):
        uniform = mean_return(DQN, seed, total_timesteps)
        ours = mean_return(PERDQN, seed, total_timesteps, replay_buffer_kwargs={"alpha": 0.0})
        print(f"seed {seed}: DQN {uniform:.1f}, PERDQN(alpha=0) {ours:.1f}", flush=True)
        differences.append(ours - uniform)
    mean = float(np.mean(differences))
    half = T_95[n_seeds] * float(np.std(differences, ddof=1)) / n_seeds**0.5
    print(f"difference {mean:+.1f}, 95 % interval {mean - half:+.1f} to {mean + half:+.1f}")
    return mean, half


def mean_return(algorithm: type[DQN], seed: int, total_timesteps: int, **options: Any) -> float:
    """Return the mean return of all episodes of a training."""
    options = {**HYPERPARAMETERS, **options}
    model = algorithm("MlpPolicy", "CartPole-v1", seed=seed, **options).learn(total_timesteps)
    env: Any = model.get_env()  # SB3 declares that it may be None
    return float(np.mean(env.env_method("get_episode_rewards")[0]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare PERDQN(alpha=0) with DQN.")
    parser.add_argument("--n-seeds", type=int, choices=T_95, default=5)
    main(**vars(parser.parse_args()))
