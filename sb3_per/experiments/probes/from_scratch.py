"""
Train a DQN with prioritized replay by NumPy and torch alone on LunarLander, with RL-Zoo's settings.

It is a control for PERDQN's results there. It uses neither sb3-per nor Stable-Baselines3; its
priorities are an array, and every batch computes the array's cumulative sum.

    python -m sb3_per.experiments.probes.from_scratch --beta 0.4 --seed 0
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from torch import nn

CAPACITY, BATCH, GAMMA, EPS = 50_000, 128, 0.99, 1e-6


def main(
    alpha: float = 0.6, beta: float = 0.4, seed: int = 0, n_steps: int = 100_000
) -> list[np.ndarray]:
    """
    Train once, and print a row for each twentieth of the steps.

    :param alpha: Exponent of the priorities; 0 samples uniformly.
    :param beta: Of the weights at the start; 1 at the end.
    :return: The rows: largest Q at the start, discounted return and return, means over ten
        episodes.
    """
    th.manual_seed(seed)
    random = np.random.default_rng(seed)
    env: Any = gym.make("LunarLander-v3")
    net, target = network(), network()
    optimizer = th.optim.Adam(net.parameters(), lr=6.3e-4)
    ring = [np.zeros((CAPACITY, width), np.float32) for width in (8, 1, 1, 8, 1)]
    powers, largest = np.zeros(CAPACITY), 1.0  # priority^alpha, and the largest priority so far
    observation, _ = env.reset(seed=seed)
    rows = []
    print("| step | predicted Q | discounted return | return |\n|---|---|---|---|")
    for step in range(n_steps):
        epsilon = max(0.1, 1 - 0.9 * step / (0.12 * n_steps))
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
            sampled = np.searchsorted(
                masses, (np.arange(BATCH) + random.random(BATCH)) / BATCH * masses[-1]
            )
            exponent = beta + (1 - beta) * step / n_steps
            weights = (powers[sampled].min() / powers[sampled]) ** exponent
            td_errors = gradient_step(net, target, optimizer, [s[sampled] for s in ring], weights)
            priorities = np.abs(td_errors) + EPS
            powers[sampled], largest = priorities**alpha, max(largest, priorities.max())

        if (step + 1) % (n_steps // 20) == 0:
            rows.append(np.mean([play(net, 10_000 + episode) for episode in range(10)], axis=0))
            print(f"| {step + 1} |", *(f"{value:.0f} |" for value in rows[-1]), flush=True)
    return rows


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a DQN with prioritized replay.")
    parser.add_argument("--alpha", type=float, default=0.6, help="0 draws uniformly")
    parser.add_argument("--beta", type=float, default=0.4, help="at the start; 1 at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-steps", type=int, default=100_000)
    th.set_num_threads(1)
    main(**vars(parser.parse_args()))
