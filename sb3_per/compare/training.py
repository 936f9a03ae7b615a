"""Training of one run: RL-Zoo trains and evaluates it, and its result is written."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import platform
import shutil
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
import yaml
from rl_zoo3 import ALGOS
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.utils import set_random_seed

from sb3_per import zoo
from sb3_per.compare.results import OUTPUT, RESULT, Result, run_folder, write_file
from sb3_per.compare.suite import Run, gym_id

# Packages whose versions a result notes: those of training, then those of environments.
PACKAGES = ["sb3-per", "stable-baselines3", "sb3-contrib", "rl-zoo3", "torch", "numpy", "numba"]
PACKAGES += ["gymnasium", "Box2D", "MinAtar", "minigrid", "mujoco", "ale-py"]


def train(run: Run, folder: Path, device: str) -> None:
    """
    Train a run and write its result, which exists only if the run has finished.

    Everything that the run prints goes into its folder, an error's traceback included.
    """
    place = run_folder(folder, run)
    shutil.rmtree(place, ignore_errors=True)  # logs of a run that was killed
    place.mkdir(parents=True, exist_ok=True)
    output = (place / OUTPUT).open("w", encoding="utf-8")
    with output, redirect_stdout(output), redirect_stderr(output):
        try:
            result = {"settings": run.settings, **_trained(run, folder, device)}
            write_file(place / RESULT, json.dumps(result, allow_nan=False).encode())
        except (Exception, SystemExit):
            traceback.print_exc()


def _trained(run: Run, folder: Path, device: str) -> Result:
    if device != "auto":
        th.empty(0, device=device)  # raises if there is none; SB3 would silently use the CPU
    th.set_num_threads(1)  # networks this small gain nothing from more
    # Adam's averages of a weight without gradients shrink until they are denormal, with which CPUs
    # are several times slower. Zeros lead to the same weights: Adam divides by its eps at least.
    th.set_flush_denormal(True)
    manager = manager_of(run, folder, device)
    set_random_seed(run.seed)
    model, _ = manager.setup_experiment()
    *of_user, of_zoo = manager.callbacks  # RL-Zoo appends its evaluation last
    n_evaluations = run.settings["steps"] // run.settings["evaluation"]["every"]
    evaluation = _Timed(of_zoo)
    manager.callbacks = [*of_user, evaluation]
    start = _now()
    manager.learn(model)
    wall, cpu = _now() - start
    if model.num_timesteps <= getattr(model, "learning_starts", 0):
        raise RuntimeError(
            f"nothing was learned in {model.num_timesteps} steps, all of them warm-up"
        )
    if len(of_zoo.evaluations_results) < n_evaluations:
        raise RuntimeError(f"the training ended after {model.num_timesteps} steps")
    manager.save_trained_model(model)
    with np.load(Path(manager.save_path, "evaluations.npz")) as file:
        steps, returns = file["timesteps"].tolist(), file["results"].tolist()
    return {
        "steps": steps,
        "returns": returns,
        "trained": model.num_timesteps,
        "greedy": manager.deterministic_eval,
        "seconds": {
            "wall": wall,
            "cpu": cpu,
            "training_wall": wall - evaluation.spent[0],
            "training_cpu": cpu - evaluation.spent[1],
        },
        **_support(model),
        "versions": _versions(model.device),
    }


def _support(model: Any) -> Result:
    """Return Rainbow's support, and the probability that targets give to its edges."""
    edge = float(getattr(model, "_support_edge", math.nan))
    if math.isnan(edge):  # another algorithm, or no distributions
        return {"support": None, "support_edge": None}
    parts = model.q_net.parts
    return {"support": [parts.v_min, parts.v_max], "support_edge": edge}


def manager_of(run: Run, folder: Path, device: str) -> Any:
    """
    Return RL-Zoo's manager of a run, whose folder exists, as RL-Zoo's ``train`` makes it.

    It seeds the environments of evaluations with the run's seed, too.
    """
    zoo.register()
    module = run.environment.rpartition(":")[0]
    if module:
        importlib.import_module(module)  # it registers the environment
    settings, place, environment = run.settings, run_folder(folder, run), gym_id(run.environment)
    gym.spec(environment)  # RL-Zoo's own error names neither what is missing nor why
    if settings["algorithm"] not in ALGOS:
        raise ValueError(f"algorithm must be one of {[*ALGOS]}, got {settings['algorithm']!r}")
    values = settings["hyperparameters"] | {"n_timesteps": settings["steps"]}
    config = place / "hyperparameters.yml"
    config.write_text(yaml.safe_dump({environment: values}), encoding="utf-8")
    manager = ExperimentManager(
        # What RL-Zoo writes into args.yml, where `enjoy` looks for it.
        argparse.Namespace(env_kwargs=settings["env_kwargs"], seed=run.seed),
        settings["algorithm"],
        environment,
        str(folder / run.variant),
        eval_freq=settings["evaluation"]["every"],
        n_eval_episodes=settings["evaluation"]["episodes"],
        env_kwargs=settings["env_kwargs"],
        seed=run.seed,
        log_interval=-2,
        verbose=0,
        device=device,
        config=str(config),
        tensorboard_log=str(place / "tensorboard") if find_spec("tensorboard") else "",
    )
    # RL-Zoo counts existing folders for a name, which runs side by side would do at the same time.
    manager.save_path = str(place)
    manager.params_path = str(place / manager.env_name)
    manager.deterministic_eval |= settings["evaluation"].get("greedy", False)
    return manager


class _Timed(BaseCallback):
    """RL-Zoo's evaluation, and the time that it has taken."""

    def __init__(self, evaluation: EvalCallback) -> None:
        super().__init__()
        self.evaluation, self.spent = evaluation, np.zeros(2)

    def _init_callback(self) -> None:
        self.evaluation.init_callback(self.model)

    def _on_training_start(self) -> None:
        self.evaluation.on_training_start(self.locals, self.globals)

    def _on_step(self) -> bool:
        self.evaluation.update_locals(self.locals)
        if (self.evaluation.n_calls + 1) % self.evaluation.eval_freq > 0:
            return self.evaluation.on_step()  # it only counts
        before = _now()
        goes_on = self.evaluation.on_step()
        self.spent += _now() - before
        return goes_on


def _now() -> np.ndarray:
    """Return the seconds on the wall and of this process's computing, shape (2,)."""
    return np.array([time.perf_counter(), time.process_time()])


def _versions(device: th.device) -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    is_on_gpu = device.type == "cuda"
    found["device"] = th.cuda.get_device_name(device) if is_on_gpu else str(device)
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
