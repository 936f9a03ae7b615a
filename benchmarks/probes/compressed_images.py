"""
Memory and time of buffers of Atari's frames: whole, each once, or compressed.

    pip install ".[atari,plots]" psutil "sb3-extra-buffers[fast]"
    python -m benchmarks.probes.compressed_images

The frames are Pong's, of random actions, since noise cannot be compressed. Times are medians in
microseconds; the buffers take turns in random order.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pandas as pd
import psutil  # type: ignore[import-untyped]  # it has no types
from sb3_extra_buffers.compressed import CompressedReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_per import PrioritizedReplayBuffer
from sb3_per.compare.report import markdown

Transition = tuple[Any, ...]
# gzip's stronger levels need several times as long for a few per cent.
COMPRESSED = ("rle", "igzip1", "lz4-frame/1")


def record(n: int) -> tuple[Any, list[Transition]]:
    """Return the environments and n transitions of random actions in them."""
    gym.register_envs(ale_py)
    env: Any = VecFrameStack(make_atari_env("PongNoFrameskip-v4", seed=0), n_stack=4)
    env.action_space.seed(0)
    observation = env.reset()
    transitions: list[Transition] = []
    for _ in range(n):
        action = np.array([env.action_space.sample()])
        next_observation, reward, done, infos = env.step(action)
        stored = next_observation if not done[0] else infos[0]["terminal_observation"][None]
        transitions.append((observation, stored.copy(), action, reward, done, [{}]))
        observation = next_observation.copy()
    return env, transitions


def buffers(env: Any, n: int) -> dict[str, Callable[[], ReplayBuffer]]:
    """Return functions that make buffers of n transitions, by name."""
    arguments = n, env.observation_space, env.action_space, "cpu"
    made: dict[str, Callable[[], ReplayBuffer]] = {
        "SB3": lambda: ReplayBuffer(*arguments),
        "sb3-per, each frame once": lambda: PrioritizedReplayBuffer(*arguments, n_stack=4),
    }
    for method in COMPRESSED:
        made[f"sb3-extra-buffers, {method}"] = lambda method=method: CompressedReplayBuffer(  # type: ignore[misc]  # a default binds it
            *arguments, compression_method=method
        )
    return made


def main(n: int = 10_000, rounds: int = 200) -> None:
    env, transitions = record(n)
    warm = buffers(env, 1)["sb3-per, each frame once"]()  # compiles, or loads what was compiled
    warm.add(*transitions[0])
    warm.sample(1)
    process, rows, filled = psutil.Process(), {}, {}
    for name, make in buffers(env, n).items():
        before, start = process.memory_info().rss, time.perf_counter()
        try:
            filled[name] = make()
        except (ImportError, ValueError, AssertionError) as error:
            print(f"{name} is left out: {error}")
            continue
        for transition in transitions:
            filled[name].add(*transition)
        add = 1e6 * (time.perf_counter() - start) / n
        n_bytes = (process.memory_info().rss - before) / n
        rows[name] = {"buffer": name, "bytes a transition": f"{n_bytes:.0f}", "add": f"{add:.0f}"}
    times, generator = defaultdict(list), np.random.default_rng(0)
    for _ in range(rounds):
        for name in generator.permutation([*filled]):
            for batch_size in (32, 256):
                start = time.perf_counter()
                filled[name].sample(batch_size)
                times[name, batch_size].append(1e6 * (time.perf_counter() - start))
    for (name, batch_size), measured in times.items():
        rows[name][f"sample {batch_size}"] = f"{np.median(measured):.0f}"
    print(markdown(pd.DataFrame([*rows.values()])))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
