"""
Steps a second of DQN, PERDQN and Rainbow on a GPU: ``python -m benchmarks.probes.gpu``.

Gradient steps alone, and steps of ``learn`` with an environment that costs next to nothing. The
algorithms take turns in random order; the table has medians.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack

from sb3_per import PERDQN, Rainbow
from sb3_per.compare.report import markdown

IMAGES, VECTORS = spaces.Box(0, 255, (84, 84, 1), np.uint8), spaces.Box(-1, 1, (24,), np.float32)
N_GRADIENT_STEPS, N_STEPS = 200, 800  # of a turn


class Random(gym.Env[Any, Any]):
    """Random observations and rewards, in episodes of 200 steps."""

    action_space = spaces.Discrete(6)

    def __init__(self, space: spaces.Box) -> None:
        self.observation_space = space
        self.pool = [space.sample() for _ in range(16)]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_number = 0
        return self.pool[0], {}

    def step(self, action: Any) -> Any:
        self.step_number += 1
        is_done = self.step_number == 200
        return self.pool[self.step_number % 16], float(action == 0), is_done, False, {}


def environments(space: spaces.Box) -> VecEnv:
    env = DummyVecEnv([partial(Random, space)])
    return VecFrameStack(env, 4) if space is IMAGES else env


def fused_dqn(*args: Any, **options: Any) -> DQN:
    """Return DQN with the optimizer that PERDQN has by default."""
    options["policy_kwargs"] = {**options["policy_kwargs"], "optimizer_kwargs": {"fused": True}}
    return DQN(*args, **options)


ALGORITHMS: dict[str, Callable[..., DQN]] = {
    "DQN": DQN,
    "DQN, fused Adam": fused_dqn,
    "PERDQN": PERDQN,
    "Rainbow": Rainbow,
}


def measure(policy: str, space: spaces.Box, batch_size: int, rounds: int) -> list[dict[str, Any]]:
    net = {"net_arch": [256, 256]} if space is VECTORS else {}
    sizes = {"buffer_size": 20_000, "learning_starts": 1_000, "batch_size": batch_size}
    models = {
        name: make(policy, environments(space), policy_kwargs=net, device="cuda", **sizes).learn(
            2_000
        )
        for name, make in ALGORITHMS.items()
    }
    rates: dict[Any, list[float]] = defaultdict(list)
    generator = np.random.default_rng(0)
    for _ in range(rounds):
        for name in generator.permutation([*models]):
            model = models[name]
            for what, n, run in (
                ("gradient steps/s", N_GRADIENT_STEPS, partial(model.train, batch_size=batch_size)),
                ("steps of learn/s", N_STEPS, partial(model.learn, reset_num_timesteps=False)),
            ):
                th.cuda.synchronize()
                start = time.perf_counter()
                run(n)
                th.cuda.synchronize()
                rates[name, what].append(n / (time.perf_counter() - start))
    rows: list[dict[str, Any]] = []
    for name in models:
        row: dict[str, Any] = {"network, batch": f"{policy}, {batch_size}", "algorithm": name}
        for what in ("gradient steps/s", "steps of learn/s"):
            rate, of_dqn = (np.median(rates[key, what]) for key in (name, "DQN"))
            row |= {what: f"{rate:.0f}", f"{what}, over DQN": f"{rate / of_dqn:.2f}"}
        rows.append(row)
    return rows


def main(rounds: int = 6) -> None:
    print(f"{th.cuda.get_device_name()}, torch {th.__version__}\n")
    rows = measure("CnnPolicy", IMAGES, 32, rounds) + measure("MlpPolicy", VECTORS, 256, rounds)
    print(markdown(pd.DataFrame(rows)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
