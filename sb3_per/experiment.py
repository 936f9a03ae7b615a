"""RL-Zoo's manager of a training run, with checkpoints from which the run can be resumed."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml
from rl_zoo3 import train as rl_zoo_train
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import CallbackList, EvalCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.algorithms import ALGORITHMS
from sb3_per.checkpoints import CheckpointCallback, latest_checkpoint, load_checkpoint
from sb3_per.zoo import refuse_number_as_text

KEEP = 2  # checkpoints: each is as large as the buffer


def train() -> None:
    """Run ``rl_zoo3.train`` with the arguments in ``sys.argv``, which may have ``--resume``."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, add_help=False, description="Our own option:"
    )
    resume = "continue the newest run of the algorithm and environment in the log folder"
    parser.add_argument("--resume", action="store_true", help=resume)
    if {"-h", "--help"} & set(sys.argv):
        parser.print_help()
    given, sys.argv[1:] = parser.parse_known_args(sys.argv[1:])

    def manager(arguments: Any, algorithm: str, *rest: Any, **options: Any) -> ExperimentManager:
        if algorithm in ALGORITHMS:
            return Experiment(arguments, algorithm, *rest, resume=given.resume, **options)
        if given.resume:
            raise SystemExit(f"--resume is for {', '.join(ALGORITHMS)}, got {algorithm}")
        return ExperimentManager(arguments, algorithm, *rest, **options)

    setattr(rl_zoo_train, "ExperimentManager", manager)  # noqa: B010  # mypy forbids the other
    rl_zoo_train.train()


class Experiment(ExperimentManager):
    """
    RL-Zoo's manager of our algorithms. With ``--save-freq``, they write whole checkpoints, too.

    The other arguments are those of ``ExperimentManager``.

    :param resume: Continue the newest run of the algorithm and environment in the log folder, with
        the hyperparameters of that run.
    :raises SystemExit: if there is no checkpoint to resume from.
    """

    checkpoint: Path | None = None

    def __init__(self, *args: Any, resume: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not resume:
            return
        if self.optimize_hyperparameters:
            rule = "a search goes on with the same --storage and --study-name"
            raise SystemExit(f"--resume continues a run; {rule}")
        folder = newest_run(Path(self.log_path), self.env_name)
        self.checkpoint = folder and latest_checkpoint(folder)
        if self.checkpoint is None:
            place = f"checkpoint in {folder}" if folder else f"run in {self.log_path}"
            raise SystemExit(f"there is no {place}: start without --resume, with --save-freq")
        self.save_path, self.params_path = str(folder), f"{folder}/{self.env_name}"
        self.continue_training = True

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read hyperparameters as RL-Zoo does, or those of the run to resume."""
        if self.checkpoint is None:
            used, saved = super().read_hyperparameters()
            try:
                for name, value in saved.items():
                    refuse_number_as_text(name, value)
            except ValueError as error:
                raise SystemExit(f"{self.config}: {error}") from error
            return used, saved
        file = Path(self.params_path, "config.yml")
        print(f"Hyperparameters of {file}")  # noqa: T201  # as RL-Zoo speaks
        found = dict(yaml.unsafe_load(file.read_text(encoding="utf-8")))
        return found, dict(found)

    def _save_config(self, saved_hyperparams: dict[str, Any]) -> None:
        if self.checkpoint is None:  # a resumed run keeps its files
            super()._save_config(saved_hyperparams)

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """Create environments as RL-Zoo does; a resumed run appends to its logs of episodes."""
        before = self.env_wrapper, self.monitor_kwargs
        if self.checkpoint is not None and not eval_env:
            self.env_wrapper = partial(_continue_log, self.env_wrapper)
            self.monitor_kwargs = self.monitor_kwargs | {"override_existing": False}
        env = super().create_envs(n_envs, eval_env, no_log)
        self.env_wrapper, self.monitor_kwargs = before
        return env

    def create_callbacks(self) -> None:
        """Create RL-Zoo's callbacks, and one for checkpoints."""
        super().create_callbacks()  # type: ignore[no-untyped-call]  # RL-Zoo leaves it untyped
        if self.save_freq > 0:
            self.callbacks.append(CheckpointCallback(self.save_freq, self.save_path, keep=KEEP))
        # After Ctrl-C, RL-Zoo ends only the first callback.
        self.callbacks = [CallbackList(self.callbacks)]

    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> BaseAlgorithm:
        if self.checkpoint is None:
            return super()._load_pretrained_agent(hyperparams, env)
        print(f"Resuming from {self.checkpoint}")  # noqa: T201  # as RL-Zoo speaks
        options: dict[str, Any] = {"tensorboard_log": self.tensorboard_log, "verbose": self.verbose}
        return load_checkpoint(self.checkpoint, env, self.device, ALGORITHMS[self.algo], **options)

    def learn(self, model: BaseAlgorithm) -> None:
        """
        Train as RL-Zoo does; a resumed run makes the steps that are left.

        With ``--save-freq``, Ctrl-C and SIGTERM (of Slurm, of Kubernetes) write a checkpoint.

        :raises SystemExit: with 143 after SIGTERM, since the training is not complete.
        """
        taken: Any = model
        n_steps = self.n_timesteps
        if self.checkpoint is not None:
            self.n_timesteps -= model.num_timesteps
            print(f"{model.num_timesteps} steps are done, {max(self.n_timesteps, 0)} are left")  # noqa: T201  # as RL-Zoo speaks
            callbacks: Any = self.callbacks[0]
            for callback in callbacks.callbacks:
                callback.n_calls = model.num_timesteps // model.n_envs
                if isinstance(callback, EvalCallback):
                    _restore_evaluations(callback, model.num_timesteps)
            learn = partial(model.learn, reset_num_timesteps=False)
            taken = SimpleNamespace(learn=learn, env=model.env)  # all that RL-Zoo uses
        received: list[int] = []

        def stop(number: int, frame: Any) -> None:
            received.append(number)
            raise KeyboardInterrupt  # RL-Zoo ends the training

        before = signal.getsignal(signal.SIGTERM)
        if self.save_freq > 0:
            signal.signal(signal.SIGTERM, stop)
        try:
            super().learn(taken)
        finally:
            signal.signal(signal.SIGTERM, before)
        if self.save_freq > 0 and model.num_timesteps < n_steps:
            print(f"Stopped after {model.num_timesteps} steps: --resume continues")  # noqa: T201  # as RL-Zoo speaks
        if received:
            raise SystemExit(128 + received[0])


def newest_run(folder: Path, env_name: str) -> Path | None:
    """Return the folder of an environment's newest run: that with the highest number, or None."""
    name = re.compile(rf"{re.escape(env_name)}_(\d+)(_[\da-f-]{{36}})?")  # --uuid
    found = [(name.fullmatch(path.name), path) for path in folder.glob("*")]
    # With --uuid, several runs have the same number.
    runs = [(int(match[1]), path.stat().st_mtime, path) for match, path in found if match]
    return max(runs)[-1] if runs else None


def _continue_log(wrapper: Callable[[Any], Any] | None, monitor: Any) -> Any:
    """Count the times in a log from the run's first start: SB3 sorts episodes by them."""
    with Path(monitor.results_writer.file_handler.name).open(encoding="utf-8") as log:
        monitor.t_start = json.loads(log.readline().removeprefix("#"))["t_start"]
    return wrapper(monitor) if wrapper else monitor


def _restore_evaluations(callback: EvalCallback, n_steps: int) -> None:
    """Restore a callback's evaluations of the first steps, and the best of all, from its file."""
    file = Path(f"{callback.log_path}.npz")
    if not file.exists():
        return
    try:
        with file.open("rb") as opened:  # `np.load(file)` leaves a damaged file open
            stored = dict(np.load(opened))
    except (ValueError, EOFError, zipfile.BadZipFile):  # damaged by a kill or a power cut
        lost = "earlier evaluations are lost, and the best model is chosen again"
        warnings.warn(f"{file} cannot be read: {lost}", stacklevel=2)
        return
    # Of later ones, too: their policy may be the one in best_model.zip.
    callback.best_mean_reward = float(stored["results"].mean(axis=1).max())
    callback.n_eval_episodes = stored["results"].shape[1]  # new ones go into the same array
    n = int(np.searchsorted(stored["timesteps"], n_steps, side="right"))
    callback.evaluations_timesteps = stored["timesteps"][:n].tolist()
    callback.evaluations_results = stored["results"][:n].tolist()
    callback.evaluations_length = stored["ep_lengths"][:n].tolist()
    if "successes" in stored:
        callback.evaluations_successes = stored["successes"][:n].tolist()
