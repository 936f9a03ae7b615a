"""
Evaluate what RL-Zoo has trained into logs/<seed>/ and print the table of docs/zoo.md.

    python -m sb3_per.experiments.probes.zoo_results --folder logs
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per.algorithms.dqn import PERDQN
from sb3_per.experiments.common.tables import markdown

ALGORITHMS = {"per_dqn": PERDQN, "dqn": DQN}
# What RL-Zoo publishes for its DQN (benchmark.md), one agent each.
RL_ZOO_DQN = {"CartPole-v1": 500, "MountainCar-v0": -101, "Acrobot-v1": -77, "LunarLander-v3": 154}


def main(folder: Path = Path("logs"), n_episodes: int = 100) -> dict[tuple[str, str], list[float]]:
    """
    Print a row for each environment and algorithm; the spread is the standard deviation.

    :return: The mean return of each agent, by environment and RL-Zoo's name of the algorithm.
    """
    results, rows = {}, []
    for env, published in RL_ZOO_DQN.items():
        for name, algorithm in ALGORITHMS.items():
            agents = sorted(folder.glob(f"*/{name}/{env}_*/{env}.zip"))
            means = [mean_return(algorithm, agent, env, n_episodes) for agent in agents]
            if means:
                results[env, name] = means
                each = ", ".join(f"{mean:.1f}" for mean in means)
                spread = f"{np.std(means, ddof=1):.1f}" if len(means) > 1 else ""
                rows.append([env, name, each, f"{np.mean(means):.1f}", spread, str(published)])
    if not results:
        raise SystemExit(f"no agents trained by {' or '.join(ALGORITHMS)} in {folder}/<seed>/")
    columns = ["environment", "algorithm", "each seed", "mean", "spread", "RL-Zoo's DQN"]
    sys.stdout.write(f"{markdown(columns, rows)}\n")
    return results


def mean_return(
    algorithm: type[DQN] | type[PERDQN], agent: Path, env: str, n_episodes: int
) -> float:
    """Return the mean return of a saved agent over episodes with seeds of their own."""
    model = algorithm.load(agent, device="cpu", buffer_size=1)  # an evaluation needs no buffer
    fresh = make_vec_env(env, seed=10_000)
    mean: Any = evaluate_policy(model, fresh, n_eval_episodes=n_episodes)[0]
    return float(mean)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the table of docs/zoo.md.")
    parser.add_argument("--folder", type=Path, default=Path("logs"))
    main(**vars(parser.parse_args()))
