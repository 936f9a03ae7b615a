"""What the networks of a comparison promise where episodes begin, and what they earn greedily."""

import sys
from pathlib import Path

import numpy as np
from gymnasium import make
from stable_baselines3 import DQN

from sb3_per import PERDQN


def main(folder: Path, env_id: str, n_episodes: int = 10) -> dict[str, np.ndarray]:
    found = {}
    print("| variant | runs | promised Q | earned, discounted | return |\n|---|---|---|---|---|")
    for arm in sorted(folder.glob("*")):
        runs = sorted(arm.glob(f"*/{env_id}_*/{env_id}.zip"))
        if runs:
            rows = found[arm.name] = np.array([promise(run, env_id, n_episodes) for run in runs])
            medians = " | ".join(f"{median:.0f}" for median in np.median(rows, axis=0))
            print(f"| {arm.name} | {len(runs)} | {medians} |", flush=True)
    return found


def promise(run: Path, env_id: str, n_episodes: int) -> np.ndarray:
    model = (PERDQN if "per_dqn" in run.parts else DQN).load(run, device="cpu", buffer_size=1)
    env, rows = make(env_id), np.zeros((n_episodes, 3))
    for episode, row in enumerate(rows):
        observation, ended, discount = env.reset(seed=10_000 + episode)[0], False, 1.0
        row[0] = model.q_net(model.policy.obs_to_tensor(observation)[0]).max().item()
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            row[1:] += discount * reward, reward
            discount, ended = discount * model.gamma, terminated or truncated
    return rows.mean(axis=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
