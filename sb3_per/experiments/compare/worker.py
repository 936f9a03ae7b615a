"""Training of one cell: RL-Zoo trains and evaluates it, and its result is written."""

import gc
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed

from sb3_per import zoo
from sb3_per.buffers.prioritized import PrioritizedReplayBuffer
from sb3_per.experiments.common.processes import end_with_parent
from sb3_per.experiments.common.versions import installed
from sb3_per.experiments.compare import experiment, run_folder
from sb3_per.experiments.compare.suite import Cell
from sb3_per.saving.buffer_files import buffer_options

PACKAGES = ("sb3-per", "stable-baselines3", "rl-zoo3", "torch", "numpy", "numba", "gymnasium")
_OF_ENVIRONMENTS = ("Box2D", "MinAtar", "minigrid", "mujoco", "ale-py")
# Arguments of algorithms that a result records, since settings may leave them to defaults.
_BUILT_WITH = (
    "beta_initial",
    "beta_final",
    "beta_fraction",
    "double_q",
    "loss",
    "max_grad_norm",
    "tau",
)


def serve(
    connection: "Connection[None, Cell]",
    folder: Path,
    device: str,
    work: Callable[[Cell, Path, str], None],
) -> None:
    """
    Train cells in a process of their own, until one fails. Output goes into each cell's folder.

    :param connection: Receives cells; None is sent after each cell that ended without an error.
    :param folder: The run folder.
    :param device: torch's device.
    :param work: The function that trains a cell.
    """
    # Ctrl-C reaches the whole process group; RL-Zoo would stop and save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    while True:
        try:
            cell = connection.recv()
        except EOFError:  # the engine is gone
            return
        with (run_folder.cell_folder(folder, cell) / run_folder.OUTPUT).open("wb") as output:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(output.fileno(), stream.fileno())
        work(cell, folder, device)
        gc.collect()  # models refer to themselves; the next cell needs their memory
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        connection.send(None)


@contextmanager
def _denormals_as_zeros() -> Iterator[None]:
    """
    Compute with zeros instead of denormal numbers, with which CPUs are several times slower.

    Adam's averages of a weight that gets no more gradients shrink until they are denormal. Zeros in
    their place lead to the same weights, because Adam divides by its eps at least.
    """
    th.set_flush_denormal(True)
    try:
        yield
    finally:
        th.set_flush_denormal(False)


@_denormals_as_zeros()
def train(cell: Cell, folder: Path, device: str) -> None:
    """
    Run one cell and write its result.

    :param folder: The run folder; only the output of an earlier try stays there.
    :param device: torch's device.
    :raises FileExistsError: if the cell's folder holds files that are not from a run of ours.
    :raises RuntimeError: if the training ended early, or a return is not finite.
    """
    zoo.register()
    experiment.import_for(cell.environment)
    th.set_num_threads(1)
    set_random_seed(cell.settings["seed"])
    place = run_folder.clear(folder, cell)
    manager = experiment.manager(cell, folder, device)
    model, _ = manager.setup_experiment()
    before, after = _Stamp(manager.eval_freq), _Stamp(manager.eval_freq)
    manager.callbacks = [before, *manager.callbacks, after]

    start = _now()
    manager.learn(model)
    whole = _now() - start
    if model.num_timesteps < cell.settings["steps"]:
        raise RuntimeError(f"the training must not end early, got {model.num_timesteps} steps")
    manager.save_trained_model(model)
    evaluating = np.subtract(after.clocks, before.clocks).sum(axis=0)
    run_folder.write(
        folder,
        cell,
        {
            "evaluations": _evaluations(place),
            "evaluation_is_greedy": manager.deterministic_eval,
            **_pace(model.num_timesteps, whole, evaluating),
            "built": _built(model),
            "versions": _versions(),
            "machine": {"device": str(model.device), "platform": _platform()},
        },
    )


def _evaluations(place: Path) -> dict[str, Any]:
    with np.load(place / "evaluations.npz") as file:
        if not np.isfinite(file["results"]).all():
            raise RuntimeError(f"returns must be finite, got {file['results'].tolist()}")
        return {
            "steps": file["timesteps"].tolist(),
            "returns": file["results"].tolist(),
            "lengths": file["ep_lengths"].tolist(),
        }


def _built(model: Any) -> dict[str, Any]:
    """Return the values that settings leave to defaults, which another version may change."""
    # Actor-critics have an optimizer for each network, ARS has none, and PPO has no replay buffer.
    optimizer = getattr(model.policy, "optimizer", None)
    if optimizer is None and hasattr(model, "critic"):
        optimizer = model.critic.optimizer
    group = {} if optimizer is None else optimizer.param_groups[0]
    built = {
        "model": {name: getattr(model, name) for name in _BUILT_WITH if hasattr(model, name)},
        "optimizer": {name: value for name, value in group.items() if name != "params"},
        "buffer": {},
    }
    buffer = getattr(model, "replay_buffer", None)
    if isinstance(buffer, PrioritizedReplayBuffer):
        kind = type(buffer.prioritization).__name__
        built["buffer"] = {"prioritization": kind, **buffer_options(buffer)}
    return dict(json.loads(json.dumps(built, default=str)))


def _platform() -> str:
    return "-".join([platform.system(), platform.machine(), *platform.libc_ver()])


def _versions() -> dict[str, str]:
    python = {"python": platform.python_version()}
    return python | installed((*PACKAGES, *_OF_ENVIRONMENTS))


def _now() -> np.ndarray:
    """Return the seconds on the wall and of this process's computing, shape (2,)."""
    return np.array([time.perf_counter(), time.process_time()])


class _Stamp(BaseCallback):
    """Notes the time at every evaluation; one such callback runs before it, another one after."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.clocks: list[np.ndarray] = []

    def _on_step(self) -> bool:
        if self.n_calls % self.every == 0:
            self.clocks.append(_now())
        return True


def _pace(steps: int, whole: np.ndarray, evaluating: np.ndarray) -> dict[str, Any]:
    """
    Return the times of a run; its steps per second count training alone.

    Good policies may play longer episodes in evaluations, which says nothing about training.
    """
    (wall, cpu), (wall_of_evaluations, cpu_of_evaluations) = whole.tolist(), evaluating.tolist()
    return {
        "steps": steps,
        "seconds": {
            "wall": wall,
            "cpu": cpu,
            "wall_of_evaluations": wall_of_evaluations,
            "cpu_of_evaluations": cpu_of_evaluations,
        },
        "steps_per_second": steps / (wall - wall_of_evaluations),
        "steps_per_cpu_second": steps / (cpu - cpu_of_evaluations),
    }
