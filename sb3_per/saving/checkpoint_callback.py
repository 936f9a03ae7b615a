"""The callback that saves checkpoints during training, and the folder of its checkpoints."""

import glob
import json
import os
import re
import sys
import warnings
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from sb3_per.rules import require, require_whole
from sb3_per.saving.archive import DamagedArchive, as_json, require_storable
from sb3_per.saving.atomic import unfinished_files
from sb3_per.saving.checkpoint import (
    CHECKPOINT_STRUCTURE,
    contents_of,
    open_checkpoint,
    save_checkpoint,
)
from sb3_per.saving.random_state import warn_of_lost_generators
from sb3_per.saving.structure import check_structure
from sb3_per.signatures import explain_unknown_arguments

NAME_PREFIX = "checkpoint"


def latest_checkpoint(
    folder: str | os.PathLike[str], name_prefix: str = NAME_PREFIX
) -> Path | None:
    """
    Return the checkpoint of ``CheckpointCallback`` with the most steps, or None.

    A damaged checkpoint is skipped, with a warning that names it.

    :param folder: The callback's ``save_path``.
    :param name_prefix: The callback's ``name_prefix``.
    :raises ValueError: if a later version of this package wrote the checkpoint. Skipping it would
        lose progress.
    """
    for path in reversed(_checkpoints(Path(folder), name_prefix)):
        try:
            open_checkpoint(path).close()
        except FileNotFoundError:  # a running training has deleted it
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

    SB3's callback saves in the middle of a step, and not atomically. This callback waits until the
    rollout has ended and all its transitions are stored and trained on. (If another callback ends
    training in the middle of a step, SB3 drops that step, so the resumed run differs from an
    uninterrupted one.)

    Pass it to ``learn`` itself, alone or in a list. Another callback around it, such as
    ``EveryNTimesteps``, does not tell it when rollouts begin.

    :param save_freq: Save every so many calls of ``env.step()``, as in SB3: with several
        environments, each call is ``n_envs`` steps.
    :param save_path: The folder, a different one for each run.
    :param name_prefix: The beginning of the files' names.
    :param save_replay_buffer: Always True: without its buffer, a run cannot continue.
    :param save_vecnormalize: Always True, for the same reason.
    :param verbose: 1 to log what was saved.
    :param keep: How many checkpoints to keep; older ones are deleted once a new one is written.
    :raises ValueError: when training starts, if ``save_checkpoint`` cannot store the model, or if
        the folder has checkpoints of a run that got further (damaged ones are renamed to
        ``.damaged`` instead); at the first step, if the callback is within another callback.
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
        rule = "name_prefix must be the beginning of a file's name, without a folder"
        require(Path(f"{name_prefix}_").name == f"{name_prefix}_", rule, name_prefix)
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
        self._saw_rollout_start = False
        self._error_before: BaseException | None = None

    @property
    def _n_steps_between(self) -> int:
        return self.save_freq * self.model.n_envs

    def _on_training_start(self) -> None:
        # Refuse what cannot be stored, and where it cannot be stored, before hours are spent.
        header, members = contents_of(self.model)
        check_structure(json.loads(as_json(header)), CHECKPOINT_STRUCTURE, "the checkpoint")
        for name, member in members.items():
            require_storable(name, member)
        warn_of_lost_generators(self.model.get_env())
        _require_folder(self.folder)
        n_steps = self.model.num_timesteps
        self._n_due = n_steps // self._n_steps_between + 1
        self._n_saved = n_steps
        self._saw_rollout_start = False
        self._error_before = sys.exc_info()[1]  # if training runs in an `except` block
        latest = latest_checkpoint(self.folder, self.name_prefix)
        rule = (
            f"{self.folder} must not hold checkpoints beyond step {n_steps}: continue from them "
            "(with learn(..., reset_num_timesteps=False)), or move them"
        )
        require(latest is None or _n_steps(latest) <= n_steps, rule, latest)
        for path in _checkpoints(self.folder, self.name_prefix):
            if _n_steps(path) > n_steps:
                path.replace(path.with_name(f"{path.name}.damaged"))
        for path in unfinished_files(self.folder, f"{glob.escape(self.name_prefix)}_*_steps.ckpt"):
            path.unlink()  # of a run that was killed while it saved

    def _on_rollout_start(self) -> None:
        self._saw_rollout_start = True
        if self.model.num_timesteps >= self._n_due * self._n_steps_between:
            self._save()

    def _on_training_end(self) -> None:
        # RL-Zoo calls this after an error, too; a state that has led to an error is not saved.
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
        if not self._saw_rollout_start:
            raise ValueError(
                "CheckpointCallback must be given to learn itself, alone or in a list of "
                f"callbacks, not to {type(self.parent).__name__}"
            )
        return True


def _require_folder(folder: Path) -> None:
    """Make the folder if it is missing; raise ValueError unless files can be written into it."""
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
    """Return the checkpoints in the order of their steps; none if the folder is missing."""
    # Not by a pattern alone: "*" would also match what belongs to another prefix.
    name = re.compile(rf"{re.escape(name_prefix)}_\d+_steps\.ckpt")
    found = [path for path in folder.glob("*_steps.ckpt") if name.fullmatch(path.name)]
    return sorted(found, key=_n_steps)
