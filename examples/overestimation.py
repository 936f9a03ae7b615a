"""The Q that networks of a comparison promise where episodes begin, and what they earn greedily."""

import sys
from pathlib import Path

import numpy as np
from gymnasium import make
from stable_baselines3 import DQN

from sb3_per import PERDQN


def main(folder: str = "runs/classic", env_id: str = "LunarLander-v3") -> dict[str, list]:
    found = {}
    print("| variant | runs | promised | earned, discounted | return | at most promised |")
    print(6 * "|---" + "|")
    for run in sorted(Path(folder).glob(f"*/*/{env_id}_*/{env_id}.zip")):
        found.setdefault(run.parts[-4], []).append(promise(run, env_id))
    for name, rows in found.items():
        figures = *np.median(rows, axis=0), np.max(rows, axis=0)[0]
        print(f"| {name} | {len(rows)} |", *(f"{figure:.0f} |" for figure in figures))
    return found or sys.exit(f"no models of {env_id} in {folder}: only a run leaves them there")


def promise(run: Path, env_id: str, n_episodes: int = 10) -> np.ndarray:
    model = (PERDQN if "per_dqn" in run.parts else DQN).load(run, device="cpu", buffer_size=1)
    env, rows = make(env_id), np.zeros((n_episodes, 3))
    for episode, row in enumerate(rows):
        observation, ended, discount = env.reset(seed=10_000 + episode)[0], False, 1
        row[0] = model.q_net(model.policy.obs_to_tensor(observation)[0]).max().item()
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            row[1:] += discount * reward, reward
            discount, ended = discount * model.gamma, terminated or truncated
    return rows.mean(axis=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
