"""Where the time of a training step goes: cProfile's account of DQN and PERDQN, by job."""

import cProfile
import pstats
import time
from pathlib import Path
from typing import Any

from stable_baselines3 import DQN

from sb3_per.algorithms.dqn import PERDQN
from sb3_per.experiments.bench.train import TASKS, make
from sb3_per.experiments.common.tables import markdown

# Each job with its functions, by file (or nothing) and name. They do not call each other.
JOBS = {
    "optimizer step": (("optimizer.py", "wrapper"),),
    "zero_grad": (("optimizer.py", "zero_grad"),),
    "backward": (("_tensor.py", "backward"),),
    "clip gradients": (("clip_grad.py", "clip_grad_norm_"), ("dqn.py", "clip_gradients")),
    "networks, in updates and predictions": (("policies.py", "forward"),),
    "buffer.sample": (
        ("buffers.py", "sample"),
        ("prioritized.py", "sample"),
    ),
    "update_priorities": (("prioritized.py", "update_priorities"),),
    "buffer.add": (("buffers.py", "add"), ("storage.py", "add")),
    "set_training_mode": (("policies.py", "set_training_mode"),),
    "env.step": (("base_vec_env.py", "step"),),
    "train() in all": (("dqn.py", "train"),),
}


def profile(name: str, n_steps: int) -> dict[str, dict[str, float]]:
    """
    Return where the time of a training step goes.

    :param name: One of ``sb3_per.experiments.bench.train.TASKS``.
    :param n_steps: Of each algorithm, at least; they take turns.
    :return: CPU microseconds a step by algorithm and job, as the profiler counts, which adds its
        own time to each call in Python.
    """
    task = TASKS[name]
    models = {kind.__name__: make(kind, task) for kind in (DQN, PERDQN)}
    profilers = {algorithm: cProfile.Profile(time.process_time) for algorithm in models}
    for model in models.values():
        model.learn(3 * task.slice_steps)
    n_slices = -(-n_steps // task.slice_steps)
    for _ in range(n_slices):
        for algorithm, model in models.items():
            profilers[algorithm].enable()
            model.learn(task.slice_steps, reset_num_timesteps=False)
            profilers[algorithm].disable()
    n_steps = n_slices * task.slice_steps
    return {algorithm: _jobs_of(profiler, n_steps) for algorithm, profiler in profilers.items()}


def _jobs_of(profiler: cProfile.Profile, n_steps: int) -> dict[str, float]:
    statistics: Any = pstats.Stats(profiler)
    jobs = {job: _seconds(statistics, functions) for job, functions in JOBS.items()}
    jobs["all"] = statistics.total_tt
    return {job: 1e6 * seconds / n_steps for job, seconds in jobs.items()}


def _seconds(statistics: Any, functions: tuple[tuple[str, str], ...]) -> float:
    """Return cumulative time; if two functions and their files share names, the outer one's."""
    total = 0.0
    for file, function in functions:
        matching = [
            cumulative
            for (path, _, name), (_, _, _, cumulative, _) in statistics.stats.items()
            if name == function and Path(path).name == file
        ]
        total += max(matching, default=0.0)
    return total


def summary(name: str, jobs: dict[str, dict[str, float]]) -> str:
    """Return a table with a column for each algorithm."""
    rows = [
        (job, *(f"{of_one[job]:.0f}" for of_one in jobs.values()))
        for job in next(iter(jobs.values()))
    ]
    return markdown((f"{name}, profiled CPU us a step", *jobs), rows, is_aligned=True)
