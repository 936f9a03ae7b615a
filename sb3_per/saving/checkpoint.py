"""Checkpoints: all that a run needs to go on, in one file that is whole or not there."""

import io
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv

from sb3_per.algorithms.buffer_options import require_matching_buffer
from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.prioritized import PrioritizedAlgorithm
from sb3_per.buffers.prioritized import OPTION_NAMES
from sb3_per.rules import require, require_whole
from sb3_per.saving.archive import (
    Archive,
    DamagedArchive,
    as_json,
    partial_name,
    require_plain,
    write_archive,
)
from sb3_per.saving.buffer_files import pack_buffer, unpack_buffer
from sb3_per.saving.random_state import restore_streams, streams_of
from sb3_per.saving.vec_normalize import normalization_of, restore_normalization

FORMAT = "sb3-per checkpoint"
VERSION = 1

# The buffer is stored with its options, and a run goes on with a new episode.
_DECIDED = (
    "buffer_size",
    "force_reset",
    "optimize_memory_usage",
    "replay_buffer_class",
    "replay_buffer_kwargs",
)

Algorithm = TypeVar("Algorithm", bound=PrioritizedAlgorithm)


def save_checkpoint(model: PrioritizedAlgorithm, path: str | os.PathLike[str]) -> None:
    """
    Store networks, optimiser, counters, replay buffer, random streams and the statistics of
    ``VecNormalize``. The file is replaced as a whole or not at all.

    The environment itself is not stored: a run that goes on begins with a new episode, and draws
    the same batches as one that was never interrupted if an episode ended at the checkpoint and all
    episodes begin alike.

    :param model: Between two rollouts, as ``CheckpointCallback`` has it, or outside of ``learn``.
    :param path: Where to, suffix and all.
    :raises ValueError: for an algorithm of SB3, for a buffer that cannot be stored, see
        ``save_buffer``, and for one that no longer fits the model, whose gamma was changed.
    """
    write_archive(path, *_contents(model))


def load_checkpoint(
    path: str | os.PathLike[str],
    env: GymEnv,
    device: th.device | str = "auto",
    algorithm: type[Algorithm] = PERDQN,  # type: ignore[assignment]  # mypy has no defaults here
    **options: Any,
) -> Algorithm:
    """
    The model of a checkpoint. Go on with ``model.learn(n_steps_left, reset_num_timesteps=False)``.

    The networks are in SB3's format, parts of which are pickles: load only what you trust.

    :param path: A file of ``save_checkpoint``.
    :param env: As many environments, with the same wrappers, as the run had.
    :param device: Where the networks and batches shall be.
    :param algorithm: The class of the model.
    :param options: As for ``PERDQN.load``, but for what belongs to the buffer, which is stored.
    :raises ValueError: for a file that is damaged or of another kind, environments that do not
        fit, and options that the checkpoint decides.
    """
    is_ours = isinstance(algorithm, type) and issubclass(algorithm, PrioritizedAlgorithm)
    require(is_ours, "algorithm must be a prioritized algorithm, such as PERDQN", algorithm)
    is_env = env is not None and not isinstance(env, str)
    require(is_env, "env must be an environment, such as gym.make makes it", env)
    for name in (*_DECIDED, *OPTION_NAMES):
        require(name not in options, f"{name} comes from the checkpoint", options.get(name))
    with Archive(path, FORMAT, VERSION) as archive:
        header = archive.header
        networks = io.BytesIO(archive.bytes_of("model.zip"))
        # It needs no buffer of its own.
        model = algorithm.load(networks, env=env, device=device, buffer_size=1, **options)
        model.buffer_size = header["buffer_size"]
        prioritization = model.replay_buffer_kwargs.get("prioritization")
        own_class = prioritization if callable(prioritization) else None
        model.use_replay_buffer(unpack_buffer(archive, model.device, own_class))
        arrays = {name: archive.array(name) for name in header["torch_streams"]}
        restore_streams(model, header["streams"], arrays)
        restore_normalization(model.get_vec_normalize_env(), header["normalization"])
    return model


def latest_checkpoint(folder: str | os.PathLike[str]) -> Path | None:
    """
    The checkpoint of ``CheckpointCallback`` with most steps, or None. A damaged one is passed over,
    with a warning that names it.

    :raises ValueError: if a later version of this package wrote it, rather than lose what it has.
    """
    for path in reversed(_checkpoints(Path(folder))):
        try:
            Archive(path, FORMAT, VERSION).close()
        except FileNotFoundError:  # a run that is at work has dropped it
            continue
        except DamagedArchive as error:
            warnings.warn(f"{error}; taking an earlier one", stacklevel=2)
        else:
            return path
    return None


class CheckpointCallback(BaseCallback):
    """
    Saves a checkpoint every so many steps, as ``<folder>/checkpoint_<steps>_steps.ckpt``, and one
    when training ends.

    SB3's callback of this name saves in the middle of a step, and not atomically. This one waits
    for the rollout to end, when all that was seen is stored and learned from. (Where another
    callback ends training in the middle of a step, SB3 drops that one: a run that goes on from
    there is not the one that was never interrupted.) Its arguments are others, too: the folder
    comes first.

    It belongs in the list of callbacks that ``learn`` is given. Within another callback, such as
    ``EveryNTimesteps``, it is not told of rollouts.

    :param folder: One of its own for each run.
    :param save_freq: Steps of the environments, all together, between two checkpoints.
    :param keep: How many to keep; older ones go when a new one is in its place.
    :param verbose: 1 to say what was saved.
    :raises ValueError: when training starts, for what ``save_checkpoint`` cannot store, and if the
        folder has checkpoints of a run that got further. Damaged ones are put aside then, as
        ``.damaged``, so that they count for nothing. At the first step, within another callback.
    """

    def __init__(
        self, folder: str | os.PathLike[str], save_freq: int, *, keep: int = 2, verbose: int = 0
    ) -> None:
        require_whole("save_freq", save_freq)
        require_whole("keep", keep)
        super().__init__(verbose)
        self.folder = Path(folder)
        self.save_freq = save_freq
        self.keep = keep
        self._n_due = 0
        self._n_saved = 0
        self._is_told = False  # of rollouts
        self._error_before: BaseException | None = None

    def _on_training_start(self) -> None:
        # What cannot be stored, and where, is refused before hours are spent.
        header, members = _contents(self.model)
        as_json(header)
        for name, member in members.items():
            if isinstance(member, np.ndarray):
                require_plain(name, member)
        _require_folder(self.folder)
        n_steps = self.model.num_timesteps
        self._n_due = n_steps // self.save_freq + 1
        self._n_saved = n_steps
        self._is_told = False
        self._error_before = sys.exc_info()[1]  # that somebody handles by training
        latest = latest_checkpoint(self.folder)
        rule = (
            f"{self.folder} must not hold checkpoints beyond step {n_steps}: go on from them (by "
            "learn(..., reset_num_timesteps=False)), or move them"
        )
        require(latest is None or _n_steps(latest) <= n_steps, rule, latest)
        for path in _checkpoints(self.folder):
            if _n_steps(path) > n_steps:
                path.replace(path.with_name(f"{path.name}.damaged"))
        for path in self.folder.glob(partial_name("checkpoint_*_steps.ckpt")):
            path.unlink()  # of a run that was killed while it saved

    def _on_rollout_start(self) -> None:
        self._is_told = True
        if self.model.num_timesteps >= self._n_due * self.save_freq:
            self._save()

    def _on_training_end(self) -> None:
        # RL-Zoo calls this after an error, too, and what has led to that is worth nothing.
        has_failed = sys.exc_info()[1] is not self._error_before
        if self.model.num_timesteps > self._n_saved and not has_failed:
            self._save()

    def _save(self) -> None:
        n_steps = self.model.num_timesteps
        self._n_due = n_steps // self.save_freq + 1
        path = self.folder / f"checkpoint_{n_steps}_steps.ckpt"
        save_checkpoint(self.model, path)  # type: ignore[arg-type]  # it says what it needs
        self._n_saved = n_steps
        for old in _checkpoints(self.folder)[: -self.keep]:
            old.unlink()
        if self.verbose >= 1:
            self.logger.info(f"Saved {path}")

    def _on_step(self) -> bool:
        rule = "CheckpointCallback must be given to learn itself, alone or in a list of callbacks"
        require(self._is_told, rule, type(self.parent).__name__)
        return True


def _contents(model: BaseAlgorithm) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and members of a checkpoint; arrays are views."""
    if not isinstance(model, PrioritizedAlgorithm):
        rule = "the model must be of a prioritized algorithm, such as PERDQN"
        raise ValueError(f"{rule}, got {type(model).__name__}")
    require_matching_buffer(model.replay_buffer, model)
    buffer_header, buffer_members = pack_buffer(model.replay_buffer)
    networks = io.BytesIO()
    model.save(networks)
    streams, torch_streams = streams_of(model)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "num_timesteps": model.num_timesteps,
        "buffer_size": model.buffer_size,
        "streams": streams,
        "torch_streams": [*torch_streams],
        "normalization": normalization_of(model.get_vec_normalize_env()),
        **buffer_header,
    }
    return header, {"model.zip": networks.getvalue(), **torch_streams, **buffer_members}


def _require_folder(folder: Path) -> None:
    """:raises ValueError: unless files can be written into it; it is made if it is not there."""
    rule = f"{folder} must be a folder that can be written to, or a new one"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{rule}, got {error}") from error
    require(os.access(folder, os.W_OK), rule, "no permission")


def _n_steps(path: Path) -> int:
    found = re.fullmatch(r"checkpoint_(\d+)_steps\.ckpt", path.name)
    return int(found.group(1)) if found else -1


def _checkpoints(folder: Path) -> list[Path]:
    """By number of steps; none where there is no such folder."""
    found = [path for path in folder.glob("checkpoint_*_steps.ckpt") if _n_steps(path) >= 0]
    return sorted(found, key=_n_steps)
