"""Checkpoints: all that a run needs to continue, in one file."""

import io
import os
import zipfile
from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import GymEnv

from sb3_per.algorithms.buffer_options import require_matching_buffer
from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.prioritized import PrioritizedAlgorithm
from sb3_per.buffers.prioritized import OPTION_NAMES
from sb3_per.rules import require
from sb3_per.saving.archive import Archive, write_archive
from sb3_per.saving.buffer_files import BUFFER_STRUCTURE, pack_buffer, unpack_buffer
from sb3_per.saving.random_state import STREAMS_STRUCTURE, restore_streams, streams_of
from sb3_per.saving.structure import ANYTHING, TEXT, check_structure, refusing, whole
from sb3_per.saving.vec_normalize import normalization_of, restore_normalization

FORMAT = "sb3-per checkpoint"
# 1 (0.1.0): see buffer_files.
VERSION = 2

CHECKPOINT_STRUCTURE = {
    "num_timesteps": whole(0),
    "buffer_size": whole(1),
    "streams": STREAMS_STRUCTURE,
    "torch_streams": [TEXT],
    "normalization": ANYTHING,
    "buffer": BUFFER_STRUCTURE,
}

# The checkpoint decides these arguments: it stores the buffer with its options, and a resumed run
# starts a new episode.
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
    Save networks, optimizer, counters, replay buffer, random generators and ``VecNormalize``.

    The file is replaced as a whole or not at all. The environment itself is not stored: the resumed
    run starts a new episode. If an episode ended at the checkpoint and all episodes start alike,
    the resumed run samples the same batches as an uninterrupted run.

    :param model: A prioritized algorithm, between two rollouts or outside of ``learn``.
    :param path: The file, with its suffix.
    :raises ValueError: for an algorithm of SB3, for a buffer that ``save_buffer`` cannot store, and
        for a buffer that no longer fits the model (its gamma was changed, for example).
    """
    write_archive(path, *contents_of(model))


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
    Load the model of a checkpoint.

    Continue with ``model.learn(n_steps_left, reset_num_timesteps=False)``. The networks are in
    SB3's format, parts of which are pickles: load only files that you trust.

    :param path: A file of ``save_checkpoint``.
    :param env: As many environments, with the same wrappers, as the run had.
    :param device: The device of networks and batches.
    :param algorithm: The class of the model.
    :param restore_environments: Whether to restore the random generators of the environments. Pass
        False if their ``np_random`` cannot be set.
    :param options: As for ``PERDQN.load``, without options of the buffer, which is stored.
    :raises ValueError: for a file that is damaged or of another kind, environments that do not
        fit, and options that the checkpoint decides.
    """
    is_ours = isinstance(algorithm, type) and issubclass(algorithm, PrioritizedAlgorithm)
    require(is_ours, "algorithm must be a prioritized algorithm, such as PERDQN", algorithm)
    is_env = env is not None and not isinstance(env, str)
    require(is_env, "env must be an environment, such as gym.make returns it", env)
    for name in (*_DECIDED, *OPTION_NAMES):
        if name in options:
            raise ValueError(f"{name} comes from the checkpoint: leave it out")
    with open_checkpoint(path) as archive:
        header = archive.header
        check_structure(header, CHECKPOINT_STRUCTURE, f"the header of {path}")
        _require_same_algorithm(header.get("algorithm"), algorithm)
        arrays = {name: archive.array(name) for name in header["torch_streams"]}
        networks = archive.bytes_of("model.zip")
        with refusing(f"the model in {path} must be as SB3 saves it"):
            damaged = zipfile.ZipFile(io.BytesIO(networks)).testzip()
        require(damaged is None, f"the model in {path} must be whole", damaged)
        # The smallest buffer, since the stored one replaces it.
        model = algorithm.load(
            io.BytesIO(networks), env=env, device=device, buffer_size=1, **options
        )
        model.buffer_size = header["buffer_size"]
        prioritization = model.replay_buffer_kwargs.get("prioritization")
        own_class = prioritization if callable(prioritization) else None
        model.use_replay_buffer(unpack_buffer(archive, model.device, own_class))
        restore_normalization(model.get_vec_normalize_env(), header["normalization"])
        restore_streams(model, header["streams"], arrays, restore_environments)
    return model


def open_checkpoint(path: str | os.PathLike[str]) -> Archive:
    """
    Open a checkpoint to read it.

    :raises ValueError: for a file that is no checkpoint, is damaged (``DamagedArchive``), or comes
        from a later version.
    """
    return Archive(path, FORMAT, VERSION)


def contents_of(model: BaseAlgorithm) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Return header and members of a checkpoint; arrays are views.

    :raises ValueError: for an algorithm of SB3, and a buffer that cannot be stored.
    """
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
    """Return the name of an algorithm's first class from this package, itself or a base."""
    ours = [each for each in algorithm.__mro__ if each.__module__.split(".")[0] == "sb3_per"]
    return ours[0].__name__


def _require_same_algorithm(stored: str | None, algorithm: type[PrioritizedAlgorithm]) -> None:
    # Version 0.1.0 only had PERDQN, and did not store its name.
    is_same = stored is None or stored in [each.__name__ for each in algorithm.__mro__]
    rule = f"algorithm must be {stored}, which the checkpoint was saved with, or a subclass of it"
    require(is_same, rule, algorithm.__name__)
