"""The Q that networks of a comparison promise where episodes begin, and what they earn greedily."""

import sys
from pathlib import Path

import numpy as np
from gymnasium import make
from stable_baselines3 import DQN

from sb3_per import PERDQN, zoo


def main(folder: str = "runs/classic", env_id: str = "LunarLander-v3", max_steps: int = 0) -> dict:
    found, name = {}, env_id.replace("/", "-")  # as RL-Zoo names folders
    print("| variant | runs | promised | earned, discounted | return | at most promised |")
    print(6 * "|---" + "|")
    for run in sorted(Path(folder).glob(f"*/*/{name}_*/{name}.zip")):
        found.setdefault(run.parts[-4], []).append(promise(run, env_id, int(max_steps)))
    for variant, rows in found.items():
        figures = *np.median(rows, axis=0), np.max(rows, axis=0)[0]
        print(f"| {variant} | {len(rows)} |", *(f"{figure:.1f} |" for figure in figures))
    return found or sys.exit(f"no models of {env_id} in {folder}: only a run leaves them there")


def promise(run: Path, env_id: str, max_steps: int) -> np.ndarray:
    zoo.register()  # makes MinAtar's environments known
    model = (PERDQN if "per_dqn" in run.parts else DQN).load(run, device="cpu", buffer_size=1)
    env, rows = make(env_id, max_episode_steps=max_steps or None), np.zeros((10, 3))
    for episode, row in enumerate(rows):
        obs, ended, discount = env.reset(seed=10_000 + episode)[0], False, 1
        row[0] = model.q_net(model.policy.obs_to_tensor(obs)[0]).max().item()
        while not ended:
            obs, reward, *ends, _ = env.step(model.predict(obs, deterministic=True)[0])
            row[1:] += discount * reward, reward
            discount, ended = discount * model.gamma, any(ends)
    return rows.mean(axis=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
