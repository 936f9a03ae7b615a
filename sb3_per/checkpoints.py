"""Checkpoints: all that a run needs to continue, in one file, and the callback that saves them."""

from __future__ import annotations

import io
import os
import random
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common import callbacks
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per._utils import as_arrays, generator_from, generator_state, require_whole
from sb3_per.algorithms import ALGORITHMS
from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.algorithms.environments import require_matching_buffer
from sb3_per.buffers.files import encoded, open_archive, write_archive


def save_checkpoint(model: PrioritizedAlgorithm, path: str | os.PathLike[str]) -> None:
    """
    Save networks, optimizer, counters, replay buffer, random generators and ``VecNormalize``.

    The file is replaced as a whole or not at all. The environment is not stored: the resumed run
    starts a new episode. If an episode ended at the checkpoint and all episodes start alike, the
    resumed run samples the same batches as an uninterrupted run.

    :param model: A prioritized algorithm, between two rollouts or outside of ``learn``.
    :param path: The file, with its suffix.
    :raises ValueError: for an algorithm of SB3, for a buffer that ``save_buffer`` cannot store, and
        for one with other spaces or another number of environments than the model's.
    """
    write_archive(path, "checkpoint", _contents_of(model))


def load_checkpoint(
    path: str | os.PathLike[str],
    env: GymEnv,
    device: th.device | str = "auto",
    algorithm: type[PrioritizedAlgorithm] | None = None,
    **options: Any,
) -> PrioritizedAlgorithm:
    """
    Load the model of a checkpoint.

    Continue with ``model.learn(n_steps_left, reset_num_timesteps=False)``. The networks are in
    SB3's format, parts of which are pickles: load only files that you trust. If the model has a
    seed, the environments are seeded with it plus the number of steps so far, so that they do not
    repeat the beginning of the run.

    :param path: A file of ``save_checkpoint``.
    :param env: As many environments, with the same wrappers, as the run had.
    :param device: The device of networks and batches.
    :param algorithm: The class of the model, if it is a subclass of your own.
    :param options: As for ``PERDQN.load``; ``load_buffer`` says which of the buffer's may change.
    :return: A model of the class that was saved.
    :raises ValueError: for a damaged file, another kind, and environments that do not fit.
    """
    if env is None or isinstance(env, str):
        raise ValueError(f"env must be an environment, such as gym.make returns it, got {env!r}")
    if algorithm is not None and not isinstance(algorithm, type):
        raise ValueError(f"algorithm must be a class of your own, or None, got {algorithm!r}")
    with open_archive(path, "checkpoint") as state:
        saved = state["algorithm"]
        kinds = {kind.__name__: kind for kind in ALGORITHMS.values()}
        algorithm = algorithm or kinds.get(saved)
        name = saved.rpartition(".")[2]
        if algorithm is None or name not in [kind.__name__ for kind in algorithm.__mro__]:
            raise ValueError(f"algorithm must be the class {saved}, got {algorithm}")
        networks = io.BytesIO(state["model.zip"])
        model = algorithm.load(networks, env=env, device=device, **options)
        model.replay_buffer._load_state_dict(state["buffer"])
        if (stored := state["demonstrations"]) is not None:
            model.demonstration_share = stored["share"]
            size = stored["buffer"]["fits"]["buffer_size"]
            model.demonstrations = model._new_buffer(size, n_envs=1)
            model.demonstrations._load_state_dict(stored["buffer"])
            model.demonstrations.generator = model.replay_buffer.generator
        _restore_normalization(model.get_vec_normalize_env(), state["normalization"])
        if model.seed is not None and model.env is not None:
            model.env.seed(model.seed + model.num_timesteps)
        _restore_random(model, state["random"])  # last: all of the above may draw numbers
    return model


def latest_checkpoint(folder: str | os.PathLike[str], name_prefix: str = "rl_model") -> Path | None:
    """
    Return the checkpoint of ``CheckpointCallback`` with the most steps, or None.

    A file that cannot be read (after a power cut) is skipped, with a warning that names it.

    :param folder: The callback's ``save_path``.
    :param name_prefix: The callback's ``name_prefix``.
    """
    for path in reversed(_checkpoints(folder, name_prefix)):
        try:
            with open_archive(path, "checkpoint"):
                return path
        except ValueError as error:
            warnings.warn(f"skipping a checkpoint: {error}", stacklevel=2)
    return None


class CheckpointCallback(callbacks.CheckpointCallback):
    """
    Save a checkpoint every ``save_freq`` calls of ``env.step()``, and one when training ends.

    The arguments are those of SB3's ``CheckpointCallback``, and ``keep``. Each checkpoint is one
    file, ``<save_path>/<name_prefix>_<steps>_steps.ckpt``, from which ``load_checkpoint`` continues
    the run.

    SB3's callback saves in the middle of a step. This one waits until the rollout has ended and all
    its transitions are stored and trained on.

    :param save_freq: Save every so many calls of ``env.step()``, as in SB3: with several
        environments, each call is ``n_envs`` steps.
    :param save_path: The folder, a different one for each run.
    :param name_prefix: The beginning of the files' names.
    :param save_replay_buffer: Without effect: the buffer is always in the checkpoint.
    :param save_vecnormalize: Without effect, for the same reason.
    :param verbose: 2 to log what was saved.
    :param keep: How many checkpoints to keep; older ones are deleted once a new one is written.
        None keeps all, as SB3's callback does.
    :raises ValueError: when training starts, if the model cannot be stored, or if the folder has
        checkpoints of a run that got further.
    """

    def __init__(
        self,
        save_freq: int,
        save_path: str | os.PathLike[str],
        name_prefix: str = "rl_model",
        save_replay_buffer: bool = True,
        save_vecnormalize: bool = True,
        verbose: int = 0,
        *,
        keep: int | None = None,
    ) -> None:
        require_whole("save_freq", save_freq)
        if keep is not None:
            require_whole("keep", keep)
        super().__init__(
            save_freq, str(save_path), name_prefix, save_replay_buffer, save_vecnormalize, verbose
        )
        self.keep = keep

    def _on_training_start(self) -> None:
        # A run that was killed while it saved has left files as large as the buffer.
        for partial in _found(self.save_path, f".{self.name_prefix}", r"\..*\.partial"):
            partial.unlink()
        # Refuse what cannot be continued before hours are spent.
        encoded(_contents_of(self.model), {})
        self._n_saved = self.model.num_timesteps
        self._is_due = False
        self._error_before = sys.exc_info()[1]  # if training runs in an `except` block
        latest = latest_checkpoint(self.save_path, self.name_prefix)
        if latest is not None and _n_steps(latest) > self._n_saved:
            raise ValueError(
                f"{self.save_path} must not hold checkpoints beyond step {self._n_saved}: continue "
                "from them (with learn(..., reset_num_timesteps=False)), or move them, got "
                f"{latest.name}"
            )

    def _on_step(self) -> bool:
        self._is_due |= self.n_calls % self.save_freq == 0
        return True

    def _on_rollout_start(self) -> None:
        if self._is_due:
            self._save()

    def _on_training_end(self) -> None:
        # RL-Zoo calls this after an error, too; a state that has led to an error is not saved.
        has_failed = sys.exc_info()[1] is not self._error_before
        if self.model.num_timesteps > self._n_saved and not has_failed:
            self._save()

    def _save(self) -> None:
        self.num_timesteps = self.model.num_timesteps  # an interrupted step may not have come here
        path = Path(self._checkpoint_path(extension="ckpt"))
        save_checkpoint(self.model, path)  # type: ignore[arg-type]  # it says what it needs
        self._is_due, self._n_saved = False, self.model.num_timesteps
        if self.keep is not None:
            for old in _checkpoints(self.save_path, self.name_prefix)[: -self.keep]:
                old.unlink()
        if self.verbose >= 2:
            self.logger.info(f"Saved {path}")


def _n_steps(path: Path) -> int:
    """Return the number of steps in the name of a checkpoint."""
    return int(path.stem.split("_")[-2])


def _checkpoints(folder: str | os.PathLike[str], name_prefix: str) -> list[Path]:
    """Return the checkpoints in the order of their steps; none if the folder is missing."""
    return sorted(_found(folder, name_prefix), key=_n_steps)


def _found(folder: str | os.PathLike[str], name_prefix: str, ending: str = "") -> list[Path]:
    # A pattern of `glob` alone would also match what belongs to another prefix.
    name = re.compile(rf"{re.escape(name_prefix)}_\d+_steps\.ckpt{ending}")
    return [path for path in Path(folder).glob("*") if name.fullmatch(path.name)]


def _contents_of(model: BaseAlgorithm) -> dict[str, Any]:
    """
    Return what a checkpoint holds; arrays are views.

    :raises ValueError: for an algorithm of SB3, and a buffer that cannot be stored.
    """
    if not isinstance(model, PrioritizedAlgorithm):
        raise ValueError(
            "the model must be of a prioritized algorithm, such as PERDQN, got "
            f"{type(model).__name__}"
        )
    require_matching_buffer(model.replay_buffer, model)
    demonstrations = None
    if model.demonstrations is not None:
        state = model.demonstrations._state_dict()
        demonstrations = {"share": model.demonstration_share, "buffer": state}
    networks = io.BytesIO()
    model.save(networks)
    means = _running_means(model.get_vec_normalize_env())
    kind = type(model)
    module = "" if kind in ALGORITHMS.values() else f"{kind.__module__}."  # it may have our name
    return {
        "algorithm": f"{module}{kind.__name__}",
        "model.zip": networks.getvalue(),
        "buffer": model.replay_buffer._state_dict(),
        "demonstrations": demonstrations,
        "normalization": {key: vars(running) for key, running in means.items()},
        "random": _random_states(model),
    }


# Random generators.


def _random_states(model: PrioritizedAlgorithm) -> dict[str, Any]:
    """Return the states of all generators except those of environments."""
    # Any other call would start CUDA, which fails in a process forked from one that uses it.
    has_cuda = th.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    torch = [th.get_rng_state(), *(th.cuda.get_rng_state_all() if has_cuda else [])]
    return {
        "torch": [state.cpu().numpy() for state in torch],
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002  # SB3 uses this generator
        "action_space": generator_state(model.action_space.np_random),
    }


def _restore_random(model: BaseAlgorithm, states: dict[str, Any]) -> None:
    """Restore all generators, except those of GPUs that only one of the machines has."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(as_arrays(states["numpy"]))  # noqa: NPY002  # SB3 uses this generator
    of_actions = generator_from(states["action_space"]).bit_generator.state
    model.action_space.np_random.bit_generator.state = of_actions
    torch = [th.from_numpy(np.asarray(state)) for state in states["torch"]]
    th.set_rng_state(torch[0])
    n_devices = th.cuda.device_count() if th.cuda.is_available() else 0
    for device, state in zip(range(n_devices), torch[1:], strict=False):
        th.cuda.set_rng_state(state, device)


# VecNormalize.


def _restore_normalization(env: VecNormalize | None, stored: dict[str, Any]) -> None:
    """
    Restore the statistics of a ``VecNormalize``.

    :raises ValueError: before anything has changed, if only the saved or only the present run has a
        ``VecNormalize``, or if it normalizes other observations.
    """
    means = _running_means(env)
    shapes = {key: np.shape(running.mean) for key, running in means.items()}
    if shapes != {key: np.shape(values["mean"]) for key, values in stored.items()}:
        raise ValueError(
            "the environment must be wrapped in the same VecNormalize as when saved, got "
            f"statistics of {[*means]} instead of {[*stored]}"
        )
    for key, running in means.items():
        running.mean, running.var = (np.asarray(stored[key][name]) for name in ("mean", "var"))
        running.count = stored[key]["count"]


def _running_means(env: VecNormalize | None) -> dict[str, RunningMeanStd]:
    """Return the running means of returns and observations, the latter by the keys of a Dict."""
    if env is None:
        return {}
    means = {"returns": env.ret_rms}
    if env.norm_obs:
        of_keys = env.obs_rms if isinstance(env.obs_rms, dict) else {"": env.obs_rms}
        means |= {f"observations/{key}": running for key, running in of_keys.items()}
    return means
