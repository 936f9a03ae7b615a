"""Prioritized buffers in files without pickle: reading one executes nothing."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th

from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.names import PRIORITIZATION_NAMES, PRIORITIZATIONS
from sb3_per.rules import require
from sb3_per.saving.archive import Archive, write_archive
from sb3_per.saving.spaces import space_from_json, space_to_json

FORMAT = "sb3-per buffer"
VERSION = 1

_KINDS = {kind.__name__: kind for kind in (PrioritizedReplayBuffer, PrioritizedDictReplayBuffer)}


def save_buffer(buffer: PrioritizedReplayBuffer, path: str | os.PathLike[str]) -> None:
    """
    Store a buffer: transitions, priorities, draws that wait for their TD errors, beta and the
    random stream. The file is replaced as a whole or not at all; no copy of the transitions is made
    in memory.

    :param buffer: One of ours; of its own subclasses only ``save_replay_buffer`` knows everything.
    :param path: Where to, suffix and all.
    :raises ValueError: for a subclass, a space that has no JSON form, or a prioritization of your
        own that does not offer its state.
    """
    header, members = pack_buffer(buffer)
    write_archive(path, {"format": FORMAT, "version": VERSION, **header}, members)


def load_buffer(
    path: str | os.PathLike[str],
    device: th.device | str = "auto",
    prioritization: Callable[..., Prioritization] | None = None,
) -> PrioritizedReplayBuffer:
    """
    A new buffer that goes on as the one that was stored would have.

    :param path: A file of ``save_buffer``.
    :param device: Where batches shall go.
    :param prioritization: The class, if the buffer was made with one of your own.
    :raises ValueError: for a file that is damaged or holds something else.
    """
    with Archive(path, FORMAT, VERSION) as archive:
        return unpack_buffer(archive, device, prioritization)


def pack_buffer(buffer: PrioritizedReplayBuffer) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an archive needs of a buffer: the part of the header, and the arrays as views."""
    name = type(buffer).__name__
    rule = f"only {' and '.join(_KINDS)} can be stored without pickle, no subclass"
    require(_KINDS.get(name) is type(buffer), rule, name)
    buffer.hand_over_new_rows()
    state = _prioritization_state(buffer.prioritization)
    arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    header = {
        "kind": name,
        "observation_space": space_to_json(buffer.observation_space),
        "action_space": space_to_json(buffer.action_space),
        "options": buffer_options(buffer),
        "state": buffer.state(),
        "prioritization": {
            "name": _name_of(type(buffer.prioritization)),
            "arrays": [*arrays],
            "values": {key: value for key, value in state.items() if key not in arrays},
        },
    }
    members = {f"prioritization/{key}": array for key, array in arrays.items()}
    return {"buffer": header}, {**buffer.storage(), **members}


def unpack_buffer(
    archive: Archive, device: th.device | str, prioritization: Callable[..., Prioritization] | None
) -> PrioritizedReplayBuffer:
    """The buffer that ``pack_buffer`` was given."""
    header = archive.header["buffer"]
    stored = header["prioritization"]
    kind = PRIORITIZATIONS.get(stored["name"]) or prioritization or "proportional"
    buffer = _KINDS[header["kind"]](
        observation_space=space_from_json(header["observation_space"]),
        action_space=space_from_json(header["action_space"]),
        device=device,
        prioritization=kind,
        **header["options"],
    )
    # Of what was built: the callable may be a partial, or any other function.
    rule = f"the buffer in {archive.path} needs prioritization={stored['name']}"
    require(_name_of(type(buffer.prioritization)) == stored["name"], rule, prioritization)
    buffer.restore(header["state"])
    for name, view in buffer.storage().items():
        archive.read_into(name, view)
    arrays = {name: archive.array(f"prioritization/{name}") for name in stored["arrays"]}
    buffer.restore_prioritization({**stored["values"], **arrays})
    return buffer


def buffer_options(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """What a buffer was built with, but for spaces, device and the kind of prioritization."""
    return {
        "buffer_size": buffer.n_slots,
        "n_envs": buffer.n_envs,
        "optimize_memory_usage": buffer.optimize_memory_usage,
        "handle_timeout_termination": buffer.handle_timeout_termination,
        "n_steps": buffer.n_steps,
        "gamma": buffer.gamma,
        **buffer.options(),
    }


def _name_of(kind: Any) -> str:
    return PRIORITIZATION_NAMES.get(kind) or str(getattr(kind, "__qualname__", kind))


def _prioritization_state(prioritization: Prioritization) -> dict[str, Any]:
    kind = type(prioritization)
    # A subclass of ours that inherits both would silently lose what it adds.
    has_state = kind in PRIORITIZATIONS.values() or {"state", "restore"} <= vars(kind).keys()
    rule = "a prioritization of your own needs methods state() and restore(state) to be stored"
    require(has_state, rule, kind.__name__)
    state: dict[str, Any] = prioritization.state()
    return state
