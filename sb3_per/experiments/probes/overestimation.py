"""
Print the largest Q at the start of episodes for the networks of a comparison, and their returns.

    python -m sb3_per.experiments.probes.overestimation runs/classic LunarLander-v3

A third argument limits the steps of an episode.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import make
from stable_baselines3 import DQN

from sb3_per import zoo
from sb3_per.algorithms.dqn import PERDQN

N_EPISODES = 10


def main(
    folder: str | Path = "runs/classic", env_id: str = "LunarLander-v3", max_steps: int | str = 0
) -> dict[str, list[np.ndarray]]:
    """
    Print a row of medians over the runs of each variant.

    :param folder: A run folder, with the models that a run leaves there.
    :param max_steps: Of an episode; 0 for the environment's own limit.
    :return: For each run of a variant what ``predicted_and_reached`` returns.
    """
    found: dict[str, list[np.ndarray]] = {}
    name = env_id.replace("/", "-")  # as RL-Zoo names folders
    print("| variant | runs | predicted Q | discounted return | return | largest predicted Q |")
    print(6 * "|---" + "|")
    for run in sorted(Path(folder).glob(f"*/*/{name}_*/{name}.zip")):
        found.setdefault(run.parts[-4], []).append(
            predicted_and_reached(run, env_id, int(max_steps))
        )
    for variant, rows in found.items():
        figures = *np.median(rows, axis=0), np.max(rows, axis=0)[0]
        print(f"| {variant} | {len(rows)} |", *(f"{figure:.1f} |" for figure in figures))
    return found or sys.exit(f"no models of {env_id} in {folder}: only a run leaves them there")


def predicted_and_reached(run: Path, env_id: str, max_steps: int) -> np.ndarray:
    """
    Return the means over ten greedy episodes: largest Q at the start, discounted return, return.

    :param run: The file of a model.
    :return: Shape (3,).
    """
    zoo.register()  # makes MinAtar's environments known
    model = (PERDQN if "per_dqn" in run.parts else DQN).load(run, device="cpu", buffer_size=1)
    env: Any = make(env_id, max_episode_steps=max_steps or None)
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
