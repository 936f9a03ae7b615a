"""Checkpoints: all that a run needs to go on, in one file that is whole or not there."""

import glob
import io
import json
import os
import re
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any, TypeVar

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
    require_storable,
    write_archive,
)
from sb3_per.saving.atomic import unfinished_files
from sb3_per.saving.buffer_files import BUFFER_STRUCTURE, pack_buffer, unpack_buffer
from sb3_per.saving.random_state import STREAMS_STRUCTURE, restore_streams, streams_of
from sb3_per.saving.structure import ANYTHING, TEXT, check_structure, refusing, whole
from sb3_per.saving.vec_normalize import normalization_of, restore_normalization
from sb3_per.signatures import explain_unknown_arguments

FORMAT = "sb3-per checkpoint"
# 1 (0.1.0): see buffer_files.
VERSION = 2

NAME_PREFIX = "checkpoint"

CHECKPOINT_STRUCTURE = {
    "num_timesteps": whole(0),
    "buffer_size": whole(1),
    "streams": STREAMS_STRUCTURE,
    "torch_streams": [TEXT],
    "normalization": ANYTHING,
    "buffer": BUFFER_STRUCTURE,
}

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
    *,
    restore_environments: bool = True,
    **options: Any,
) -> Algorithm:
    """
    The model of a checkpoint. Go on with ``model.learn(n_steps_left, reset_num_timesteps=False)``.

    The networks are in SB3's format, parts of which are pickles: load only what you trust.

    :param path: A file of ``save_checkpoint``.
    :param env: As many environments, with the same wrappers, as the run had.
    :param device: Where the networks and batches shall be.
    :param algorithm: The class of the model.
    :param restore_environments: False to leave the random numbers of the environments alone, for
        environments whose ``np_random`` cannot be set.
    :param options: As for ``PERDQN.load``, except for what belongs to the buffer, which is stored.
    :raises ValueError: for a file that is damaged or of another kind, environments that do not
        fit, and options that the checkpoint decides.
    """
    is_ours = isinstance(algorithm, type) and issubclass(algorithm, PrioritizedAlgorithm)
    require(is_ours, "algorithm must be a prioritized algorithm, such as PERDQN", algorithm)
    is_env = env is not None and not isinstance(env, str)
    require(is_env, "env must be an environment, such as gym.make makes it", env)
    for name in (*_DECIDED, *OPTION_NAMES):
        if name in options:
            raise ValueError(f"{name} comes from the checkpoint: leave it out")
    with Archive(path, FORMAT, VERSION) as archive:
        header = archive.header
        check_structure(header, CHECKPOINT_STRUCTURE, f"the header of {path}")
        _require_same_algorithm(header.get("algorithm"), algorithm)
        arrays = {name: archive.array(name) for name in header["torch_streams"]}
        networks = archive.bytes_of("model.zip")
        with refusing(f"the model in {path} must be as SB3 saves it"):
            damaged = zipfile.ZipFile(io.BytesIO(networks)).testzip()
        require(damaged is None, f"the model in {path} must be whole", damaged)
        # It needs no buffer of its own.
        model = algorithm.load(
            io.BytesIO(networks), env=env, device=device, buffer_size=1, **options
        )
        model.buffer_size = header["buffer_size"]
        prioritization = model.replay_buffer_kwargs.get("prioritization")
        own_class = prioritization if callable(prioritization) else None
        model.use_replay_buffer(unpack_buffer(archive, model.device, own_class))
        restore_streams(model, header["streams"], arrays, restore_environments)
        restore_normalization(model.get_vec_normalize_env(), header["normalization"])
    return model


def latest_checkpoint(
    folder: str | os.PathLike[str], name_prefix: str = NAME_PREFIX
) -> Path | None:
    """
    Return the checkpoint of ``CheckpointCallback`` with the most steps, or None.

    A damaged checkpoint is passed over, with a warning that names it.

    :param folder: The callback's ``save_path``.
    :param name_prefix: The callback's.
    :raises ValueError: if a later version of this package wrote it, rather than lose what it has.
    """
    for path in reversed(_checkpoints(Path(folder), name_prefix)):
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
    Save a checkpoint every ``save_freq`` calls of ``env.step()``, and one when training ends.

    The arguments are those of SB3's ``CheckpointCallback``, in its order, and then ``keep``. Each
    checkpoint is one file, ``<save_path>/<name_prefix>_<steps>_steps.ckpt``, from which
    ``load_checkpoint`` continues the run.

    SB3's callback saves in the middle of a step, and not atomically. This one waits until the
    rollout has ended: everything that was seen is then stored and learned from. (Where another
    callback ends training in the middle of a step, SB3 drops that step, so a run that continues
    from there is not the one that was never interrupted.)

    Pass it to ``learn`` itself, alone or in a list. Callbacks within another callback, such as
    ``EveryNTimesteps``, do not hear when rollouts begin.

    :param save_freq: Save every so many calls of ``env.step()``, as in SB3: with several
        environments, each call is ``n_envs`` steps.
    :param save_path: The folder, a different one for each run.
    :param name_prefix: How the files' names begin.
    :param save_replay_buffer: Always True: without its buffer, a run cannot continue.
    :param save_vecnormalize: Always True, for the same reason.
    :param verbose: 1 to log what was saved.
    :param keep: How many checkpoints to keep; older ones are deleted once a new one is written.
    :raises ValueError: when training starts, for what ``save_checkpoint`` cannot store, and if the
        folder has checkpoints of a run that got further. Damaged ones are renamed to ``.damaged``
        then. At the first step, within another callback.
    """

    @explain_unknown_arguments({"folder": "it is called save_path, as in SB3"})
    def __init__(
        self,
        save_freq: int,
        save_path: str | os.PathLike[str],
        name_prefix: str = NAME_PREFIX,
        save_replay_buffer: bool = True,
        save_vecnormalize: bool = True,
        verbose: int = 0,
        *,
        keep: int = 2,
    ) -> None:
        rule = "the arguments come in SB3's order, CheckpointCallback(save_freq, save_path)"
        require(not isinstance(save_freq, str | os.PathLike), rule, save_freq)
        require_whole("save_freq", save_freq)
        require_whole("keep", keep)
        is_whole = save_replay_buffer and save_vecnormalize
        rule = "a checkpoint always has the replay buffer and the statistics of VecNormalize: use "
        rule += "SB3's CheckpointCallback to save without them"
        require(is_whole, rule, f"{save_replay_buffer=}, {save_vecnormalize=}")
        super().__init__(verbose)
        self.save_freq = save_freq
        self.folder = Path(save_path)
        self.name_prefix = name_prefix
        self.keep = keep
        self._n_due = 0
        self._n_saved = 0
        self._is_told = False  # of rollouts
        self._error_before: BaseException | None = None

    @property
    def _n_steps_between(self) -> int:
        return self.save_freq * self.model.n_envs

    def _on_training_start(self) -> None:
        # What cannot be stored, and where, is refused before hours are spent.
        header, members = _contents(self.model)
        check_structure(json.loads(as_json(header)), CHECKPOINT_STRUCTURE, "the checkpoint")
        for name, member in members.items():
            require_storable(name, member)
        _require_folder(self.folder)
        n_steps = self.model.num_timesteps
        self._n_due = n_steps // self._n_steps_between + 1
        self._n_saved = n_steps
        self._is_told = False
        self._error_before = sys.exc_info()[1]  # that somebody handles by training
        latest = latest_checkpoint(self.folder, self.name_prefix)
        rule = (
            f"{self.folder} must not hold checkpoints beyond step {n_steps}: go on from them (by "
            "learn(..., reset_num_timesteps=False)), or move them"
        )
        require(latest is None or _n_steps(latest) <= n_steps, rule, latest)
        for path in _checkpoints(self.folder, self.name_prefix):
            if _n_steps(path) > n_steps:
                path.replace(path.with_name(f"{path.name}.damaged"))
        for path in unfinished_files(self.folder, f"{glob.escape(self.name_prefix)}_*_steps.ckpt"):
            path.unlink()  # of a run that was killed while it saved

    def _on_rollout_start(self) -> None:
        self._is_told = True
        if self.model.num_timesteps >= self._n_due * self._n_steps_between:
            self._save()

    def _on_training_end(self) -> None:
        # RL-Zoo calls this after an error, too, and what has led to that is worth nothing.
        has_failed = sys.exc_info()[1] is not self._error_before
        if self.model.num_timesteps > self._n_saved and not has_failed:
            self._save()

    def _save(self) -> None:
        n_steps = self.model.num_timesteps
        self._n_due = n_steps // self._n_steps_between + 1
        path = self.folder / f"{self.name_prefix}_{n_steps}_steps.ckpt"
        save_checkpoint(self.model, path)  # type: ignore[arg-type]  # it says what it needs
        self._n_saved = n_steps
        for old in _checkpoints(self.folder, self.name_prefix)[: -self.keep]:
            old.unlink()
        if self.verbose >= 1:
            self.logger.info(f"Saved {path}")

    def _on_step(self) -> bool:
        if not self._is_told:
            raise ValueError(
                "CheckpointCallback must be given to learn itself, alone or in a list of "
                f"callbacks, not to {type(self.parent).__name__}"
            )
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
        "algorithm": _own_name(type(model)),
        "num_timesteps": model.num_timesteps,
        "buffer_size": model.buffer_size,
        "streams": streams,
        "torch_streams": [*torch_streams],
        "normalization": normalization_of(model.get_vec_normalize_env()),
        **buffer_header,
    }
    return header, {"model.zip": networks.getvalue(), **torch_streams, **buffer_members}


def _own_name(algorithm: type[Any]) -> str:
    """Return the name of the class of this package that an algorithm is, or is a subclass of."""
    return next(each.__name__ for each in algorithm.__mro__ if each.__module__[:7] == "sb3_per")


def _require_same_algorithm(stored: str | None, algorithm: type[PrioritizedAlgorithm]) -> None:
    # Version 0.1.0 had PERDQN alone, and did not store its name.
    is_same = stored is None or stored in [each.__name__ for each in algorithm.__mro__]
    rule = f"algorithm must be {stored}, which the checkpoint was saved with, or a subclass of it"
    require(is_same, rule, algorithm.__name__)


def _require_folder(folder: Path) -> None:
    """Raise ValueError unless files can be written into it; it is made if it is not there."""
    rule = f"{folder} must be a folder that can be written to, or a new one"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{rule}: {error}") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{rule}: no permission")


def _n_steps(path: Path) -> int:
    """Return the number of steps in the name of a checkpoint, or -1 for another file."""
    found = re.search(r"_(\d+)_steps\.ckpt$", path.name)
    return int(found.group(1)) if found else -1


def _checkpoints(folder: Path, name_prefix: str) -> list[Path]:
    """Return the checkpoints by number of steps; none where there is no such folder."""
    # Not by a pattern alone: "*" would also match what belongs to another prefix.
    name = re.compile(rf"{re.escape(name_prefix)}_\d+_steps\.ckpt")
    found = [path for path in folder.glob("*_steps.ckpt") if name.fullmatch(path.name)]
    return sorted(found, key=_n_steps)
