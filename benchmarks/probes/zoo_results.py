"""
Evaluate what RL-Zoo has trained into logs/<seed>/ and print the rows of docs/results/rl-zoo.md.

    python -m benchmarks.probes.zoo_results logs
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN
from sb3_per.compare.report import markdown

ALGORITHMS: dict[str, type[DQN]] = {"per_dqn": PERDQN, "dqn": DQN}
# What RL-Zoo publishes for its DQN (benchmark.md), one agent each.
RL_ZOO_DQN = {"CartPole-v1": 500, "MountainCar-v0": -101, "Acrobot-v1": -77, "LunarLander-v3": 154}


def main(folder: str, n_episodes: int = 100) -> None:
    """Print a row for each environment and algorithm; the spread is the standard deviation."""
    rows = []
    for env, published in RL_ZOO_DQN.items():
        for name, algorithm in ALGORITHMS.items():
            agents = sorted(Path(folder).glob(f"*/{name}/{env}_*/{env}.zip"))
            means = [mean_return(algorithm, agent, env, n_episodes) for agent in agents]
            if means:
                row: dict[str, Any] = {"environment": env, "algorithm": name}
                row["each seed"] = ", ".join(f"{mean:.1f}" for mean in means)
                row["mean"] = f"{np.mean(means):.1f}"
                row["spread"] = f"{np.std(means, ddof=1):.1f}" if len(means) > 1 else ""
                rows.append({**row, "RL-Zoo's DQN": published})
    print(markdown(pd.DataFrame(rows)))


def mean_return(algorithm: type[DQN], agent: Path, env: str, n_episodes: int) -> float:
    """Return the mean return of a saved agent over episodes with seeds of their own."""
    model = algorithm.load(agent, device="cpu", buffer_size=1)  # an evaluation needs no buffer
    fresh = make_vec_env(env, seed=10_000)
    mean: Any = evaluate_policy(model, fresh, n_eval_episodes=n_episodes)[0]
    return float(mean)


if __name__ == "__main__":
    main(sys.argv[1])
