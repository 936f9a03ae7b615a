"""
Train a DQN with prioritized replay by NumPy and torch alone on LunarLander, with RL-Zoo's settings.

It is a control for PERDQN's results there. It uses neither sb3-per nor Stable-Baselines3; its
priorities are an array, and every batch computes the array's cumulative sum.

    python -m benchmarks.probes.from_scratch 0.6 0.4 0     # alpha, beta, seed
    python -m benchmarks.probes.from_scratch               # the results of our runs
"""

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th
from torch import nn

from benchmarks.tables import as_text

CAPACITY, BATCH, GAMMA, EPS = 50_000, 128, 0.99, 1e-6
N_STEPS = 100_000
PUBLISHED = Path("benchmarks/results/from_scratch.jsonl.gz")


def main(alpha: float, beta: float, seed: int) -> None:
    """
    Train once, and print means over ten episodes for each twentieth of the steps.

    :param alpha: Exponent of the priorities; 0 samples uniformly.
    :param beta: Exponent of the weights at the start; 1 at the end.
    """
    th.manual_seed(seed)
    random = np.random.default_rng(seed)
    env: Any = gym.make("LunarLander-v3")
    net, target = network(), network()
    optimizer = th.optim.Adam(net.parameters(), lr=6.3e-4)
    ring = [np.zeros((CAPACITY, width), np.float32) for width in (8, 1, 1, 8, 1)]
    powers, largest = np.zeros(CAPACITY), 1.0  # priority^alpha, and the largest priority so far
    observation, _ = env.reset(seed=seed)
    print("| step | predicted Q | discounted return | return |\n|---|---|---|---|")
    for step in range(N_STEPS):
        epsilon = max(0.1, 1 - 0.9 * step / (0.12 * N_STEPS))
        is_random = random.random() < epsilon
        action = random.integers(4) if is_random else values(net, observation).argmax()
        following, reward, terminated, truncated, _ = env.step(int(action))
        transition = observation, action, reward, following, terminated
        for store, part in zip(ring, transition, strict=True):
            store[step % CAPACITY] = part
        powers[step % CAPACITY] = largest**alpha
        observation = env.reset()[0] if terminated or truncated else following

        if step % 250 == 0:
            target.load_state_dict(net.state_dict())
        for _ in range(4 if step % 4 == 3 else 0):
            masses = np.cumsum(powers[: step + 1])
            strata = (np.arange(BATCH) + random.random(BATCH)) / BATCH
            sampled = np.searchsorted(masses, strata * masses[-1])
            exponent = beta + (1 - beta) * step / N_STEPS
            weights = (powers[sampled].min() / powers[sampled]) ** exponent
            td_errors = gradient_step(net, target, optimizer, [s[sampled] for s in ring], weights)
            priorities = np.abs(td_errors) + EPS
            powers[sampled], largest = priorities**alpha, max(largest, priorities.max())

        if (step + 1) % (N_STEPS // 20) == 0:
            row = np.mean([play(net, 10_000 + episode) for episode in range(10)], axis=0)
            print(f"| {step + 1} |", *(f"{value:.0f} |" for value in row), flush=True)


def network() -> nn.Module:
    """Return a network with random weights."""
    return nn.Sequential(
        nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
    )


def values(net: nn.Module, observation: np.ndarray) -> np.ndarray:
    """Return the Q of each action, shape (4,)."""
    q_values: np.ndarray = net(th.from_numpy(observation)).detach().numpy()
    return q_values


def gradient_step(
    net: nn.Module,
    target: nn.Module,
    optimizer: th.optim.Optimizer,
    batch: list[np.ndarray],
    weights: np.ndarray,
) -> np.ndarray:
    """
    Make one step on a batch.

    :param batch: Observations, actions, rewards, next observations, terminated: (B, ...) each.
    :param weights: Shape (B,).
    :return: TD errors of before the step, shape (B,).
    """
    observations, actions, rewards, following, terminated = map(th.from_numpy, batch)
    with th.no_grad():
        targets = rewards + (1 - terminated) * GAMMA * target(following).amax(1, keepdim=True)
    q_values = net(observations).gather(1, actions.long())
    losses = nn.functional.smooth_l1_loss(q_values, targets, reduction="none")
    optimizer.zero_grad()
    loss = (th.from_numpy(weights.astype(np.float32))[:, None] * losses).mean()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    nn.utils.clip_grad_norm_(net.parameters(), 10)
    optimizer.step()
    td_errors: np.ndarray = (targets - q_values.detach()).numpy().ravel().astype(np.float64)
    return td_errors


def play(net: nn.Module, seed: int) -> tuple[float, float, float]:
    """Return the largest Q at the start of a greedy episode, its discounted return, its return."""
    env: Any = gym.make("LunarLander-v3")
    observation, _ = env.reset(seed=seed)
    predicted = float(values(net, observation).max())
    discounted, total, discount, is_over = 0.0, 0.0, 1.0, False
    while not is_over:
        action = values(net, observation).argmax()
        observation, reward, terminated, truncated, _ = env.step(int(action))
        discounted += discount * float(reward)
        total += float(reward)
        discount *= GAMMA
        is_over = terminated or truncated
    return predicted, discounted, total


def published() -> str:
    """Return the means of the last three evaluations of our runs."""
    last = pd.read_json(PUBLISHED, lines=True).query("step > 85000")
    means = last.groupby(["alpha", "beta", "seed"], as_index=False).mean().drop(columns="step")
    return as_text(means)


if __name__ == "__main__":
    th.set_num_threads(1)
    if sys.argv[1:]:
        main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
    else:
        print(published())
