"""Evaluate what RL-Zoo has trained into logs/<seed>/ and print the table of docs/zoo.md."""

import argparse
from pathlib import Path

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN

# What RL-Zoo publishes for its DQN (benchmark.md), one agent each.
RL_ZOO_DQN = {"CartPole-v1": 500, "MountainCar-v0": -101, "Acrobot-v1": -77, "LunarLander-v3": 154}


def main(folder: Path = Path("logs"), n_episodes: int = 100) -> dict[str, list[float]]:
    print("| environment | PERDQN, mean of each seed | mean | RL-Zoo's DQN |\n|---|---|---|---|")
    results = {}
    for env, published in RL_ZOO_DQN.items():
        runs = sorted(folder.glob(f"*/per_dqn/{env}_*/{env}.zip"))
        means = results[env] = [mean_return(run, env, n_episodes) for run in runs]
        if means:
            each = ", ".join(f"{mean:.1f}" for mean in means)
            print(f"| {env} | {each} | {np.mean(means):.1f} | {published} |")
    if not any(results.values()):
        raise SystemExit(f"no agents trained by per_dqn in {folder}/<seed>/")
    return results


def mean_return(run: Path, env: str, n_episodes: int) -> float:
    # Of the buffer nothing is needed here.
    model = PERDQN.load(run, device="cpu", buffer_size=1)
    fresh = make_vec_env(env, seed=10_000)
    return evaluate_policy(model, fresh, n_eval_episodes=n_episodes)[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("logs"))
    main(**vars(parser.parse_args()))
