"""RL-Zoo's manager of a training run, with checkpoints from which the run can be resumed."""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml
from rl_zoo3 import exp_manager
from rl_zoo3 import train as rl_zoo_train
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import get_latest_run_id
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import configure_logger
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.algorithms import ALGORITHMS
from sb3_per.checkpoints import CheckpointCallback, latest_checkpoint, load_checkpoint

KEEP = 2  # checkpoints: each is as large as the buffer


def train() -> None:
    """Run ``rl_zoo3.train`` with the arguments in ``sys.argv``, which may have ``--resume``."""
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, add_help=False, description="Our own option:"
    )
    resume = "continue the latest run (with this --seed, if given) from its newest checkpoint"
    parser.add_argument("--resume", action="store_true", help=resume)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    if {"-h", "--help"} & set(sys.argv):
        parser.print_help()
    given, others = parser.parse_known_args(sys.argv[1:])
    seed = given.seed
    if seed is not None:
        others += ["--seed", str(seed)]  # RL-Zoo needs it, too
        seed = None if seed < 0 else seed  # then RL-Zoo draws one
    sys.argv[1:] = others

    def manager(arguments: Any, algorithm: str, *rest: Any, **options: Any) -> ExperimentManager:
        if algorithm in ALGORITHMS:
            options |= {"resume": given.resume, "resume_seed": seed}
            return Experiment(arguments, algorithm, *rest, **options)
        if given.resume:
            raise SystemExit(f"--resume is for {', '.join(ALGORITHMS)}, got {algorithm}")
        return ExperimentManager(arguments, algorithm, *rest, **options)

    setattr(rl_zoo_train, "ExperimentManager", manager)  # noqa: B010  # mypy forbids the other
    rl_zoo_train.train()


class Experiment(ExperimentManager):
    """
    RL-Zoo's manager of our algorithms. With ``--save-freq``, they write whole checkpoints, too.

    The other arguments are those of ``ExperimentManager``.

    :param resume: Continue the latest run of the algorithm and environment in the log folder.
    :param resume_seed: The seed of the run to continue; None for any.
    :raises SystemExit: if there is no checkpoint to resume from.
    """

    checkpoint: Path | None = None

    def __init__(
        self, *args: Any, resume: bool = False, resume_seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if resume:
            self._resume(resume_seed)

    def _resume(self, seed: int | None) -> None:
        if self.optimize_hyperparameters:
            rule = "a search goes on with the same --storage and --study-name"
            raise SystemExit(f"--resume continues a run; {rule}")
        for folder in self._runs():
            arguments = folder / self.env_name / "args.yml"
            before = yaml.unsafe_load(arguments.read_text(encoding="utf-8"))
            if seed in (None, before["seed"]):
                break
        else:
            of_seed = "" if seed is None else f" with seed {seed}"
            missing = f"no run of {self.env_name}{of_seed} to resume in {self.log_path}"
            raise SystemExit(f"there is {missing}: start without --resume")
        self.checkpoint = latest_checkpoint(folder)
        if self.checkpoint is None:
            hint = "start without --resume, with --save-freq"
            raise SystemExit(f"there is no checkpoint in {folder}: {hint}")
        self.save_path, self.params_path = str(folder), f"{folder}/{self.env_name}"
        self.seed = self.args.seed = before["seed"]
        for name in ("env_kwargs", "eval_env_kwargs"):
            _require_equal({name: before[name]}, {name: getattr(self.args, name)})
        evaluations = _stored_evaluations(folder / "evaluations.npz")
        if evaluations and self.args.eval_freq > 0:  # new ones go into the same array
            now = {"eval_episodes": self.args.eval_episodes}
            _require_equal({"eval_episodes": evaluations["results"].shape[1]}, now)
        self.continue_training = True

    def _runs(self) -> list[Path]:
        """Return the folders of this environment's runs, the latest first."""
        name = re.compile(rf"{re.escape(self.env_name)}_(\d+)(_[\da-f-]{{36}})?")  # --uuid
        runs = []
        for arguments in Path(self.log_path).glob(f"*/{self.env_name}/args.yml"):
            folder = arguments.parents[1]
            if found := name.fullmatch(folder.name):
                runs.append((int(found[1]), arguments.stat().st_mtime, folder))
        return [folder for *_, folder in sorted(runs, reverse=True)]

    def create_log_folder(self) -> None:
        """Create the folder of the run, which commands that start together must not share."""
        Path(self.log_path).mkdir(parents=True, exist_ok=True)
        number = 0
        while self.checkpoint is None:
            try:
                Path(self.save_path).mkdir()
                break
            except FileExistsError:  # another command has taken this number meanwhile
                number = max(number, get_latest_run_id(self.log_path, self.env_name)) + 1
                self.save_path = f"{self.log_path}/{self.env_name}_{number}"
                self.params_path = f"{self.save_path}/{self.env_name}"
        super().create_log_folder()  # type: ignore[no-untyped-call]  # RL-Zoo leaves it untyped

    def setup_experiment(self) -> tuple[BaseAlgorithm, dict[str, Any]] | None:
        """Prepare as RL-Zoo does; a search keeps the section's ``policy_kwargs``."""
        made = super().setup_experiment()
        self._hyperparams = _Merging(self._hyperparams)
        return made

    def load_trial(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """
        Return the hyperparameters of a trial, with the section's ``policy_kwargs``.

        ``-params`` replaces single ``policy_kwargs`` and ``replay_buffer_kwargs`` of the trial.
        """
        found = super().load_trial(*args, **kwargs)
        self.trial_id = None  # so that the section is read without the trial
        section = super().read_hyperparameters()[0].get("policy_kwargs")
        found["policy_kwargs"] = {**_evaluated(section), **found.get("policy_kwargs", {})}
        given = self.custom_hyperparams or {}
        merged = {
            name: {**found[name], **_evaluated(given[name])}
            for name in given.keys() & {"policy_kwargs", "replay_buffer_kwargs"}
        }
        self.custom_hyperparams = {**given, **merged}
        return found

    def create_callbacks(self) -> None:
        """Create RL-Zoo's callbacks, and one for checkpoints."""
        super().create_callbacks()  # type: ignore[no-untyped-call]  # RL-Zoo leaves it untyped
        if self.save_freq > 0:
            self.callbacks.append(CheckpointCallback(self.save_freq, self.save_path, keep=KEEP))

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Read hyperparameters as RL-Zoo does.

        :raises SystemExit: if they are not those of the run to resume, which keeps its own.
        """
        found = super().read_hyperparameters()
        if self.checkpoint is not None:
            config = Path(self.params_path, "config.yml").read_text(encoding="utf-8")
            _require_equal(dict(yaml.unsafe_load(config)), found[1])
        # SB3 and RL-Zoo add entries to dicts, which must not reach config.yml.
        used = {k: dict(v) if isinstance(v, dict) else v for k, v in found[0].items()}
        return used, found[1]

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """Create environments; a resumed run writes logs of its own next to the earlier ones."""
        if self.checkpoint is not None and not eval_env:
            _end_logs(Path(self.save_path), self.checkpoint.stat().st_mtime)
        return super().create_envs(n_envs, eval_env, no_log)

    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> BaseAlgorithm:
        if self.checkpoint is None:
            model = super()._load_pretrained_agent(hyperparams, env)
            file = Path(self.trained_agent).with_name("replay_buffer.pkl")
            if not file.exists():
                print("No replay_buffer.pkl: the buffer is empty, and exploration starts again.")  # noqa: T201  # as RL-Zoo speaks
            return model
        print(f"Resuming from {self.checkpoint}")  # noqa: T201  # as RL-Zoo speaks
        options: dict[str, Any] = {"tensorboard_log": self.tensorboard_log, "verbose": self.verbose}
        return load_checkpoint(self.checkpoint, env, self.device, ALGORITHMS[self.algo], **options)

    def learn(self, model: BaseAlgorithm) -> None:
        """
        Train as RL-Zoo does; a resumed run makes the steps that are left.

        With ``--save-freq``, Ctrl-C writes a checkpoint.
        """
        if self.tensorboard_log:
            self._set_logger(model)
        if self.checkpoint is not None:
            for callback in self.callbacks:
                callback.n_calls = model.num_timesteps // model.n_envs
                if isinstance(callback, EvalCallback):
                    _restore_evaluations(callback, model.num_timesteps)
            self.n_timesteps -= model.num_timesteps
            print(f"{model.num_timesteps} steps are done, {max(self.n_timesteps, 0)} are left")  # noqa: T201  # as RL-Zoo speaks
        learn = partial(model.learn, reset_num_timesteps=self.checkpoint is None)
        taken = SimpleNamespace(learn=partial(self._until_ctrl_c, learn), env=model.env)
        super().learn(taken)  # type: ignore[arg-type]  # it has all that RL-Zoo takes of a model

    def _until_ctrl_c(self, learn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        with suppress(KeyboardInterrupt):
            learn(*args, **kwargs)
            return
        # Before RL-Zoo closes the environments, which fails if Ctrl-C has ended their processes.
        for callback in self.callbacks:
            if isinstance(callback, CheckpointCallback) and callback.num_timesteps > 0:
                callback.on_training_end()
                print(f"Stopped after {callback.num_timesteps} steps: --resume continues")  # noqa: T201  # as RL-Zoo speaks

    def _set_logger(self, model: BaseAlgorithm) -> None:
        """Log to the run's own TensorBoard folder; SB3 would resume in the newest one."""
        logs = Path(self.tensorboard_log or "").resolve()
        noted = Path(self.params_path, "tensorboard.txt")
        folder = noted.read_text(encoding="utf-8") if noted.exists() else ""
        if Path(folder).parent == logs:
            formats = ["stdout", "tensorboard"] if model.verbose else ["tensorboard"]
            logger = configure(folder, formats)
        else:
            logger = configure_logger(model.verbose, str(logs), type(model).__name__)
            noted.write_text(str(logger.dir), encoding="utf-8")
        model.set_logger(logger)


class _Merging(dict[str, Any]):
    """Hyperparameters whose copies merge ``policy_kwargs`` when RL-Zoo adds those of a trial."""

    def copy(self) -> _Merging:
        return _Merging(self)

    def update(self, other: Any) -> None:  # type: ignore[override]  # RL-Zoo's only call
        both = [values.get("policy_kwargs") or {} for values in (self, other)]
        super().update({**other, "policy_kwargs": {**both[0], **both[1]}})


def _evaluated(options: Any) -> dict[str, Any]:
    """Return options that may be text, which RL-Zoo evaluates, or None."""
    text = isinstance(options, str)
    return eval(options, vars(exp_manager)) if text else options or {}  # noqa: S307  # as RL-Zoo


def _require_equal(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """
    Refuse to resume a run with other hyperparameters than before.

    :raises SystemExit: with their names and values.
    """
    pairs = {name: (before.get(name), now.get(name)) for name in {**before, **now}}
    changed = [
        f"{name} was {old!r} and is {new!r}"
        for name, (old, new) in pairs.items()
        # Callbacks and other objects of a file in Python are equal as text only.
        if name != "n_timesteps" and old != new and yaml.dump(old) != yaml.dump(new)
    ]
    if changed:
        raise SystemExit(f"--resume needs the run's hyperparameters: {'; '.join(changed)}")


def _end_logs(folder: Path, end: float) -> None:
    """
    Rename the logs of a run's episodes, so that a resumed run can write new ones next to them.

    SB3's ``load_results`` reads all of them. It sorts by time, which each file counts from its own
    start, so nothing can be appended to a file. Episodes after the checkpoint are deleted: they
    will be played again.

    :param end: Time of the checkpoint.
    """
    for log in folder.glob("*.monitor.csv"):
        env = log.name.removesuffix(".monitor.csv")
        if not env.isdigit():
            continue
        lines = log.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()  # if one was cut
        if len(lines) < 2:  # killed before it was written
            continue
        header, names, *episodes = lines
        start = json.loads(header.removeprefix("#"))["t_start"]
        kept = [line for line in episodes if start + float(line.split(",")[2]) <= end]
        log.write_text("\n".join([header, names, *kept, ""]), encoding="utf-8")
        part = len([*folder.glob(f"{env}.*monitor.csv")])
        log.rename(folder / f"{env}.part{part}.monitor.csv")


def _stored_evaluations(file: Path) -> dict[str, Any] | None:
    """Return the arrays that an ``EvalCallback`` has written, or None."""
    if not file.exists():
        return None
    try:
        with file.open("rb") as opened:  # `np.load(file)` leaves a damaged file open
            return dict(np.load(opened))
    except (ValueError, EOFError, zipfile.BadZipFile):  # damaged by a kill or a power cut
        lost = "earlier evaluations are lost, and the best model is chosen again"
        warnings.warn(f"{file} cannot be read: {lost}", stacklevel=2)
        return None


def _restore_evaluations(callback: EvalCallback, n_steps: int) -> None:
    """Restore a callback's evaluations of the first steps, and the best of all, from its file."""
    stored = _stored_evaluations(Path(f"{callback.log_path}.npz"))
    if stored is None:
        return
    # Of later ones, too: their policy may be the one in best_model.zip.
    callback.best_mean_reward = float(stored["results"].mean(axis=1).max())
    n = int(np.searchsorted(stored["timesteps"], n_steps, side="right"))
    callback.evaluations_timesteps = stored["timesteps"][:n].tolist()
    callback.evaluations_results = stored["results"][:n].tolist()
    callback.evaluations_length = stored["ep_lengths"][:n].tolist()
    if "successes" in stored:
        callback.evaluations_successes = stored["successes"][:n].tolist()
