"""
Steps a second of DQN, PERDQN and Rainbow on a GPU: ``python -m benchmarks.probes.gpu``.

Gradient steps alone, and steps of ``learn``: in environments that cost next to nothing, and in
Breakout (extra ``atari``), with one environment and with eight. PERDQN and Rainbow are measured
with and without CUDA graphs. The algorithms take turns in random order; the table has medians.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack

from sb3_per import PERDQN, Rainbow

IMAGES, VECTORS = spaces.Box(0, 255, (84, 84, 1), np.uint8), spaces.Box(-1, 1, (24,), np.float32)
N_GRADIENT_STEPS, N_STEPS = 100, 400  # of a turn
HEAD = """\
| task, batch | | gradient steps a second | over DQN | steps of `learn` a second | over DQN |
|---|---|--:|--:|--:|--:|"""


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


class Small(gym.ObservationWrapper[Any, Any, Any]):
    """Frames of 84 x 84 pixels, without OpenCV."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = IMAGES

    def observation(self, observation: Any) -> Any:
        rows, columns = (np.linspace(0, n - 1, 84).astype(int) for n in observation.shape)
        return observation[rows[:, None], columns, None]


def breakout() -> gym.Env[Any, Any]:
    import ale_py

    gym.register_envs(ale_py)
    return Small(gym.make("ALE/Breakout-v5", obs_type="grayscale"))


def stacked(make: Callable[[], gym.Env[Any, Any]], n_envs: int = 1) -> VecEnv:
    return VecFrameStack(DummyVecEnv([make] * n_envs), 4)


class Task(NamedTuple):
    """What is learned, and how."""

    make_env: Callable[[], VecEnv]
    policy: str
    batch_size: int
    network: dict[str, Any]


TASKS = {
    "random images": Task(partial(stacked, partial(Random, IMAGES)), "CnnPolicy", 32, {}),
    "random vectors": Task(
        lambda: DummyVecEnv([partial(Random, VECTORS)]), "MlpPolicy", 256, {"net_arch": [256, 256]}
    ),
    "Breakout": Task(partial(stacked, breakout), "CnnPolicy", 32, {}),
    "Breakout, 8 environments": Task(partial(stacked, breakout, 8), "CnnPolicy", 32, {}),
}


def fused_dqn(*args: Any, **options: Any) -> DQN:
    """Return DQN with the optimizer that PERDQN has by default."""
    options["policy_kwargs"] = {**options["policy_kwargs"], "optimizer_kwargs": {"fused": True}}
    return DQN(*args, **options)


ALGORITHMS: dict[str, Callable[..., DQN]] = {
    "DQN": DQN,
    "DQN, fused Adam": fused_dqn,
    "PERDQN, no graphs": partial(PERDQN, cuda_graphs=False),
    "PERDQN": partial(PERDQN, cuda_graphs=True),
    "Rainbow, no graphs": partial(Rainbow, cuda_graphs=False),
    "Rainbow": partial(Rainbow, cuda_graphs=True),
}


def measure(name: str, task: Task, rounds: int) -> list[list[str]]:
    """Return a row for each algorithm: medians, and their ratios to those of DQN."""
    options: dict[str, Any] = {"policy_kwargs": task.network, "batch_size": task.batch_size}
    options |= {"buffer_size": 20_000, "learning_starts": 1_000, "device": "cuda"}
    models = {
        algorithm: make(task.policy, task.make_env(), **options).learn(1_200)
        for algorithm, make in ALGORITHMS.items()
    }
    rates: dict[Any, list[float]] = defaultdict(list)
    generator = np.random.default_rng(0)
    for _ in range(rounds):
        for algorithm in generator.permutation([*models]):
            model = models[algorithm]
            train = partial(model.train, batch_size=task.batch_size)
            learn = partial(model.learn, reset_num_timesteps=False)
            rates[algorithm, "gradient steps/s"].append(rate(train, N_GRADIENT_STEPS))
            rates[algorithm, "steps of learn/s"].append(rate(learn, N_STEPS))
    rows = []
    for algorithm in models:
        row = [f"{name}, {task.batch_size}", algorithm]
        for what in ("gradient steps/s", "steps of learn/s"):
            ours, of_dqn = (np.median(rates[key, what]) for key in (algorithm, "DQN"))
            row += [f"{ours:.0f}", f"{ours / of_dqn:.2f}"]
        rows.append(row)
    return rows


def rate(run: Callable[[int], Any], n: int) -> float:
    """Return how many steps a second a function takes."""
    th.cuda.synchronize()
    start = time.perf_counter()
    run(n)
    th.cuda.synchronize()
    return n / (time.perf_counter() - start)


def main(rounds: int = 5) -> None:
    print(f"{th.cuda.get_device_name()}, torch {th.__version__}, {th.get_num_threads()} threads\n")
    print(HEAD)
    for name, task in TASKS.items():
        if "Breakout" in name and find_spec("ale_py") is None:
            continue  # it needs the extra atari
        for row in measure(name, task, rounds):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
