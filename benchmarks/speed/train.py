"""Environment steps per second of PERDQN and of DQN, in alternating slices of live models."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN

from benchmarks.rows import Row, quartiles
from sb3_per import PAPER, PERDQN

STOCK, FUSED = "DQN", "DQN, fused Adam"


class Frames(gym.Env[NDArray[np.uint8], np.int64]):
    """Random frames in the shape of Atari observations; its steps take no time."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(6)

    def __init__(self) -> None:
        shape = (64, *self.observation_space.shape)
        self._frames = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
        self._n_steps = 0

    def reset(self, **kwargs: Any) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        self._n_steps = 0
        return self._frames[0], {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._n_steps += 1
        reward = float(self._n_steps % 7 == 0)
        return self._frames[self._n_steps % 64], reward, self._n_steps % 200 == 0, False, {}


class Task(NamedTuple):
    """A task, its settings, and the number of steps in a slice."""

    env: type[gym.Env[Any, Any]] | str
    settings: dict[str, Any]
    slice_steps: int


TASKS = {
    # One update a step: nowhere else does an update's overhead weigh as much.
    "CartPole": Task(
        "CartPole-v1", {"policy": "MlpPolicy", "learning_starts": 100, "train_freq": 1}, 400
    ),
    # As RL-Zoo has it.
    "LunarLander": Task(
        "LunarLander-v3",
        {
            "policy": "MlpPolicy",
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
        400,
    ),
    "images": Task(
        Frames, {"policy": "CnnPolicy", "learning_starts": 100, "buffer_size": 5_000}, 100
    ),
}


def contestants(task: Task, device: str) -> Iterator[tuple[str, DQN]]:
    """Return the contestants: stock DQN first, and stock DQN again, which shows the noise."""
    fused, plain = ({"optimizer_kwargs": {"fused": fused}} for fused in (True, False))
    yield STOCK, make(DQN, task, device)
    yield "DQN again", make(DQN, task, device)
    yield FUSED, make(DQN, task, device, **fused)
    yield "PERDQN", make(PERDQN, task, device)
    yield "PERDQN, plain Adam", make(PERDQN, task, device, **plain)
    yield "PERDQN, the paper's settings", make(PERDQN, task, device, PAPER)
    yield "PERDQN, the paper's settings, plain Adam", make(PERDQN, task, device, PAPER, **plain)


def make(
    algorithm: type[DQN],
    task: Task,
    device: str = "cpu",
    replay_buffer_kwargs: Mapping[str, Any] | None = None,
    **policy_kwargs: Any,
) -> DQN:
    """Return a model at the beginning of its training."""
    settings = {**task.settings, "replay_buffer_kwargs": replay_buffer_kwargs}
    settings["policy_kwargs"] = {**settings.get("policy_kwargs", {}), **policy_kwargs}
    env = task.env if isinstance(task.env, str) else task.env()
    return algorithm(env=env, seed=0, device=device, **settings)


def measure(name: str, n_rounds: int, device: str = "cpu") -> list[Row]:
    """
    Measure the pace of every contestant, in alternating slices.

    :param name: One of ``TASKS``.
    :param n_rounds: In each round, every model trains for one slice, in a new random order.
    :param device: The device of the networks. On a CPU, CPU time counts, which other programs do
        not lengthen; on other devices, wall-clock time counts, since models wait for the device.
    :return: Microseconds of a step, and steps per second over those of stock DQN and of DQN with
        fused Adam, in paired slices.
    """
    task = TASKS[name]
    clock = time.process_time if device == "cpu" else time.perf_counter
    models = dict(contestants(task, device))
    for model in models.values():
        model.learn(3 * task.slice_steps)  # past the start, and through every kernel once
    times: dict[str, list[float]] = {contestant: [] for contestant in models}
    random, names = np.random.default_rng(0), list(models)
    for _ in range(n_rounds):
        for contestant in (names[i] for i in random.permutation(len(names))):
            start = clock()
            models[contestant].learn(task.slice_steps, reset_num_timesteps=False)
            times[contestant].append(1e6 * (clock() - start) / task.slice_steps)
    arrays = {contestant: np.array(times[contestant]) for contestant in models}
    return [
        {"task": name, "name": contestant}
        | quartiles("us a step", arrays[contestant])
        | quartiles("over DQN", arrays[STOCK] / arrays[contestant])
        | quartiles("over fused", arrays[FUSED] / arrays[contestant])
        for contestant in models
    ]
