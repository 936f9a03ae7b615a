"""Prioritized buffers in files without pickle: reading a file runs no code."""

import inspect
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.names import PRIORITIZATION_NAMES, PRIORITIZATIONS
from sb3_per.prioritization.pending_updates import are_states, states_of_0_1_0
from sb3_per.prioritization.stored_state import stored_array
from sb3_per.rules import require
from sb3_per.saving.archive import Archive, write_archive
from sb3_per.saving.random_state import generator_from, state_of
from sb3_per.saving.spaces import space_from_json, space_to_json
from sb3_per.saving.structure import (
    FLAG,
    OBJECT,
    TEXT,
    check_structure,
    number,
    one_of,
    refusing,
    whole,
)

FORMAT = "sb3-per buffer"
# 1 (0.1.0): one pending state and one leaf for each slot, whether it holds a transition or not.
VERSION = 2

_KINDS: dict[str, type[PrioritizedReplayBuffer]] = {
    "PrioritizedReplayBuffer": PrioritizedReplayBuffer,
    "PrioritizedDictReplayBuffer": PrioritizedDictReplayBuffer,
    "PrioritizedHerReplayBuffer": PrioritizedHerReplayBuffer,
}
_PENDING = "draw_log"  # the name that version 0.1.0 gave to pending states

# No larger buffer is stored, since loading looks at one entry for each slot.
MAX_SLOTS = 2**30

# The structure of a buffer's header; the buffer itself checks the other options.
BUFFER_STRUCTURE = {
    "kind": one_of([*_KINDS]),
    "observation_space": OBJECT,
    "action_space": OBJECT,
    "options": {
        "buffer_size": whole(1, MAX_SLOTS),
        "n_envs": whole(1, MAX_SLOTS),
        "optimize_memory_usage": FLAG,
        "handle_timeout_termination": FLAG,
        "n_steps": whole(1),
        "gamma": number(0, 1),
    },
    "state": {"pos": whole(0), "full": FLAG, "beta": number(0, 1), "generator": OBJECT},
    "prioritization": {"name": TEXT, "arrays": [TEXT], "values": OBJECT},
}


def save_buffer(buffer: PrioritizedReplayBuffer, path: str | os.PathLike[str]) -> None:
    """
    Save a buffer: transitions, priorities, awaited TD errors, beta and the random generator.

    The file is replaced as a whole or not at all. The transitions are not copied in memory.

    :param buffer: A buffer of this library; only ``save_replay_buffer`` can store subclasses.
    :param path: The file, with its suffix.
    :raises ValueError: for a subclass, stored infos (``copy_info_dict`` of hindsight replay), a
        space without a JSON form, a random generator that is not NumPy's, or a prioritization of
        your own without ``state`` and ``restore``.
    """
    header, members = pack_buffer(buffer)
    write_archive(path, {"format": FORMAT, "version": VERSION, **header}, members)


def load_buffer(
    path: str | os.PathLike[str],
    device: th.device | str = "auto",
    prioritization: Callable[..., Prioritization] | None = None,
) -> PrioritizedReplayBuffer:
    """
    Return a new buffer that continues where the stored buffer stopped.

    A loaded buffer for hindsight replay has no environments: pass it to ``use_replay_buffer`` of an
    algorithm, or call ``set_env``.

    :param path: A file of ``save_buffer``.
    :param device: The device of batches.
    :param prioritization: The class, if the buffer has a prioritization of your own.
    :raises ValueError: for a file that is damaged or holds something else.
    """
    with Archive(path, FORMAT, VERSION) as archive:
        check_structure(archive.header, {"buffer": BUFFER_STRUCTURE}, f"the header of {path}")
        return unpack_buffer(archive, device, prioritization)


def pack_buffer(buffer: PrioritizedReplayBuffer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a buffer's contents for an archive: its part of the header, and views of arrays."""
    name = type(buffer).__name__
    rule = f"only {' and '.join(_KINDS)} can be stored without pickle, no subclass"
    rule += " (save_replay_buffer pickles any buffer)"
    require(_KINDS.get(name) is type(buffer), rule, name)
    rule = f"a stored buffer must have at most {MAX_SLOTS} slots"
    require(buffer.n_slots <= MAX_SLOTS, rule, buffer.n_slots)
    buffer.hand_over_new_rows()
    state = _prioritization_state(buffer.prioritization)
    arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    header = {
        "kind": name,
        "observation_space": space_to_json(buffer.observation_space),
        "action_space": space_to_json(buffer.action_space),
        "options": buffer_options(buffer),
        "state": {**buffer.state(), "generator": state_of(buffer.generator)},
        "prioritization": {
            "name": _name_of(buffer),
            "arrays": [*arrays],
            "values": {key: value for key, value in state.items() if key not in arrays},
        },
    }
    members = {f"prioritization/{key}": array for key, array in arrays.items()}
    storage = buffer.storage()
    storage[_PENDING] = _without_tail(storage[_PENDING])
    return {"buffer": header}, {**storage, **members}


def unpack_buffer(
    archive: Archive, device: th.device | str, prioritization: Callable[..., Prioritization] | None
) -> PrioritizedReplayBuffer:
    """
    Return the buffer that ``pack_buffer`` was given.

    :param archive: A file whose ``header["buffer"]`` has the structure ``BUFFER_STRUCTURE``.
    :raises ValueError: for anything in the file that ``pack_buffer`` cannot have written.
    """
    header = archive.header["buffer"]
    stored = header["prioritization"]
    rule = f"the buffer in {archive.path} needs prioritization={stored['name']}"
    is_given = stored["name"] in PRIORITIZATIONS or prioritization is not None
    require(is_given, rule, prioritization)
    buffer = _empty_buffer(header, device, prioritization)
    # The names of the class that was built: the callable may be a partial, or any other function.
    kind = type(buffer.prioritization)
    names = PRIORITIZATION_NAMES.get(kind), kind.__qualname__
    require(stored["name"] in names, rule, prioritization)
    buffer.generator = generator_from(header["state"]["generator"])
    buffer.restore({**header["state"], "generator": buffer.generator.bit_generator.state})
    for name, view in buffer.storage().items():
        if name == _PENDING:
            _restore_pending(view, archive)
        else:
            archive.read_into(name, view)
    arrays = {name: archive.array(f"prioritization/{name}") for name in stored["arrays"]}
    buffer.restore_prioritization({**stored["values"], **arrays})
    return buffer


def _empty_buffer(
    header: dict[str, Any],
    device: th.device | str,
    prioritization: Callable[..., Prioritization] | None,
) -> PrioritizedReplayBuffer:
    """
    Return a buffer with stored options.

    The buffer takes no more memory than the file holds: its arrays are zeros, for which the
    operating system reserves memory when they are first written.
    """
    kind, stored = _KINDS[header["kind"]], header["options"]
    unknown = sorted(stored.keys() - inspect.signature(kind).parameters.keys())
    require(not unknown, f"stored options must be those of {kind.__name__}", unknown)
    known = PRIORITIZATIONS.get(header["prioritization"]["name"])
    own: dict[str, Any] = {
        "observation_space": space_from_json(header["observation_space"]),
        "action_space": space_from_json(header["action_space"]),
        "device": device,
        "prioritization": prioritization or known,
    }
    twice = sorted(stored.keys() & own.keys())
    require(not twice, "stored options must not name what is stored elsewhere", twice)
    if kind is PrioritizedHerReplayBuffer:
        own["env"] = None
    with refusing("a stored buffer must be one that can be made here"):
        return kind(**own, **stored)


def _without_tail(states: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return pending states without the zeros at the end, which a new buffer has."""
    known = np.flatnonzero(states)
    return states[: known[-1] + 1 if len(known) else 0]


def _restore_pending(states: NDArray[np.int8], archive: Archive) -> None:
    stored = stored_array({_PENDING: archive.array(_PENDING)}, _PENDING, np.int8, len(states))
    if archive.header["version"] == 1:
        stored = states_of_0_1_0(stored)
    require(are_states(stored), f"stored {_PENDING} must be states of PendingUpdates", stored)
    states[: len(stored)] = stored


def buffer_options(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Return a buffer's arguments, except spaces, device and kind of prioritization."""
    stacked = {} if isinstance(buffer, PrioritizedHerReplayBuffer) else {"n_stack": buffer.n_stack}
    return {
        "buffer_size": buffer.n_slots,
        "n_envs": buffer.n_envs,
        "optimize_memory_usage": bool(buffer.optimize_memory_usage),  # SB3 also takes 0 and 1
        "handle_timeout_termination": bool(buffer.handle_timeout_termination),
        "n_steps": buffer.n_steps,
        "gamma": buffer.gamma,
        **stacked,
        **buffer.options(),
    }


def _name_of(buffer: PrioritizedReplayBuffer) -> str:
    """Return the name of one of our prioritizations, or the name of the class to be given."""
    kind = type(buffer.prioritization)
    is_ours = kind in PRIORITIZATION_NAMES and getattr(buffer.sampler, "is_made_by_its_class", True)
    return PRIORITIZATION_NAMES[kind] if is_ours else kind.__qualname__


def _prioritization_state(prioritization: Prioritization) -> dict[str, Any]:
    kind = type(prioritization)
    # A subclass that inherits both methods from ours would silently lose what it adds.
    has_state = kind in PRIORITIZATIONS.values() or {"state", "restore"} <= vars(kind).keys()
    rule = "a prioritization of your own must define state() and restore(state) itself to be "
    rule += "stored, so that what it adds is stored, too"
    require(has_state, rule, kind.__name__)
    state: dict[str, Any] = prioritization.state()
    return state
