"""
Evaluate what RL-Zoo has trained into logs/<seed>/ and print the table of docs/zoo.md.

    python -m sb3_per.experiments.probes.zoo_results --folder logs
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per.algorithms.dqn import PERDQN

# What RL-Zoo publishes for its DQN (benchmark.md), one agent each.
RL_ZOO_DQN = {"CartPole-v1": 500, "MountainCar-v0": -101, "Acrobot-v1": -77, "LunarLander-v3": 154}


def main(folder: Path = Path("logs"), n_episodes: int = 100) -> dict[str, list[float]]:
    """
    Print a row for each environment.

    :return: The mean return of each agent, by environment.
    """
    print("| environment | PERDQN, mean of each seed | mean | RL-Zoo's DQN |\n|---|---|---|---|")
    results = {}
    for env, published in RL_ZOO_DQN.items():
        agents = sorted(folder.glob(f"*/per_dqn/{env}_*/{env}.zip"))
        means = results[env] = [mean_return(agent, env, n_episodes) for agent in agents]
        if means:
            each = ", ".join(f"{mean:.1f}" for mean in means)
            print(f"| {env} | {each} | {np.mean(means):.1f} | {published} |")
    if not any(results.values()):
        raise SystemExit(f"no agents trained by per_dqn in {folder}/<seed>/")
    return results


def mean_return(agent: Path, env: str, n_episodes: int) -> float:
    """Return the mean return of a saved agent over episodes with seeds of their own."""
    model = PERDQN.load(agent, device="cpu", buffer_size=1)  # an evaluation needs no buffer
    fresh = make_vec_env(env, seed=10_000)
    mean: Any = evaluate_policy(model, fresh, n_eval_episodes=n_episodes)[0]
    return float(mean)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the table of docs/zoo.md.")
    parser.add_argument("--folder", type=Path, default=Path("logs"))
    main(**vars(parser.parse_args()))
