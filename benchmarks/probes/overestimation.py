"""
Print the largest Q at the start of episodes for the networks of a comparison, and their returns.

    python -m benchmarks.probes.overestimation runs/classic LunarLander-v3
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import make
from stable_baselines3 import DQN

from sb3_per import PERDQN

N_EPISODES = 10


def main(folder: str, environment: str) -> None:
    """Print medians over the runs of each variant, from the models that a run leaves there."""
    env: Any = make(environment)
    found: dict[str, list[np.ndarray]] = {}
    name = environment.replace("/", "-")  # as RL-Zoo names folders
    for file in sorted(Path(folder).glob(f"*/*/{name}_*/{name}.zip")):
        algorithm = PERDQN if "per_dqn" in file.parts else DQN
        model = algorithm.load(file, device="cpu", buffer_size=1)
        found.setdefault(file.parts[-4], []).append(predicted_and_reached(model, env))
    print("| variant | runs | predicted Q | discounted return | return | largest predicted Q |")
    print(6 * "|---" + "|")
    for variant, rows in found.items():
        numbers = *np.median(rows, axis=0), np.max(rows, axis=0)[0]
        print(f"| {variant} | {len(rows)} |", *(f"{number:.1f} |" for number in numbers))


def predicted_and_reached(model: Any, env: Any) -> np.ndarray:
    """Return means over greedy episodes: largest Q at the start, discounted return, return."""
    rows = np.zeros((N_EPISODES, 3))
    for episode, row in enumerate(rows):
        obs, ended, discount = env.reset(seed=10_000 + episode)[0], False, 1.0
        row[0] = model.q_net(model.policy.obs_to_tensor(obs)[0]).max().item()
        while not ended:
            obs, reward, *ends, _ = env.step(model.predict(obs, deterministic=True)[0])
            row[1:] += discount * reward, reward
            discount, ended = discount * model.gamma, any(ends)
    means: np.ndarray = rows.mean(axis=0)
    return means


if __name__ == "__main__":
    main(*sys.argv[1:])
