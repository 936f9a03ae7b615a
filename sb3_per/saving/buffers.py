"""
Prioritized buffers in files without pickle: reading a file runs no code.

A file is an ``.npz`` archive that ``numpy.load`` can open. It holds arrays, and a JSON header with
spaces, options and the state of the random generator.
"""

import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.lib import format as npy
from numpy.typing import NDArray

from sb3_per._utils import require_one_of
from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.prioritization.proportional import Prioritization, stored_array
from sb3_per.prioritization.sampler import PRIORITIZATIONS

# 1 and 2 were written by 0.1.0 and 0.2.0.
VERSION = 3
HEADER = "header.json"
# How much is read at a time, in bytes.
CHUNK = 1 << 20

KINDS: dict[str, type[PrioritizedReplayBuffer]] = {
    kind.__name__: kind
    for kind in (PrioritizedReplayBuffer, PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer)
}
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def save_buffer(buffer: PrioritizedReplayBuffer, path: str | os.PathLike[str]) -> None:
    """
    Save a buffer: transitions, priorities, beta and the random generator.

    The file is replaced as a whole or not at all. The transitions are not copied in memory. Do not
    save a buffer while another thread adds transitions to it: the file could mix old and new rows.

    :param buffer: A buffer of this library; only ``save_replay_buffer`` can store subclasses.
    :param path: The file, with its suffix.
    :raises ValueError: for a subclass, stored infos (``copy_info_dict`` of hindsight replay), a
        space or options without a JSON form, a random generator that is not NumPy's, or a
        prioritization of your own without ``state`` and ``restore``.
    """
    header, members = pack_buffer(buffer)
    write_archive(path, "buffer", {"buffer": header}, members)


def load_buffer(
    path: str | os.PathLike[str],
    device: th.device | str = "auto",
    prioritization: Callable[..., Prioritization] | None = None,
    storage_dir: str | os.PathLike[str] | None = None,
) -> PrioritizedReplayBuffer:
    """
    Return a new buffer that continues where the stored buffer stopped.

    A loaded buffer for hindsight replay has no environments: pass it to ``use_replay_buffer`` of an
    algorithm, or call ``set_env``.

    :param path: A file of ``save_buffer``.
    :param device: The device of batches.
    :param prioritization: The class, if the buffer has a prioritization of your own.
    :param storage_dir: As for ``PrioritizedReplayBuffer``; it is not stored.
    :raises ValueError: for a file that is damaged or holds something else.
    """
    with open_archive(path, "buffer") as archive:
        return unpack_buffer(archive, device, prioritization, storage_dir)


def pack_buffer(
    buffer: PrioritizedReplayBuffer,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """
    Return a buffer's part of a header, and views of its arrays by name.

    :raises ValueError: for a buffer that cannot be stored.
    """
    if type(buffer) not in KINDS.values():
        rule = f"only {', '.join(KINDS)} can be stored without pickle (use save_replay_buffer)"
        raise ValueError(f"{rule}, got {type(buffer).__name__}")
    state = _state_of(buffer.prioritization)
    arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    header = {
        "kind": type(buffer).__name__,
        "observation_space": space_to_json(buffer.observation_space),
        "action_space": space_to_json(buffer.action_space),
        "arguments": _arguments_of(buffer),
        "state": buffer.state(),
        "generator": generator_state(buffer.generator),
        "prioritization": _name_of(buffer),
        "priorities": {key: value for key, value in state.items() if key not in arrays},
        "priority_arrays": [*arrays],
    }
    priorities = {f"priorities/{key}": array for key, array in arrays.items()}
    return header, {**buffer.storage(), **priorities}


def unpack_buffer(
    archive: "Archive",
    device: th.device | str,
    prioritization: str | Callable[..., Prioritization] | None,
    storage_dir: str | os.PathLike[str] | None,
) -> PrioritizedReplayBuffer:
    """
    Return the buffer that ``pack_buffer`` was given.

    :raises ValueError: for anything in the file that ``pack_buffer`` cannot have written.
    """
    header = archive.header["buffer"]
    name = header["prioritization"]
    if name not in PRIORITIZATIONS and prioritization is None:
        raise ValueError(f"this buffer needs prioritization={name}, the class of its priorities")
    own: dict[str, Any] = {
        "observation_space": space_from_json(header["observation_space"]),
        "action_space": space_from_json(header["action_space"]),
        "device": device,
        "prioritization": prioritization or name,
        "storage_dir": storage_dir,
    }
    kind = KINDS[header["kind"]]
    if kind is PrioritizedHerReplayBuffer:
        own["env"] = None
    global_state = np.random.get_state()  # noqa: NPY002  # a buffer takes its seed from there
    buffer = kind(**own, **header["arguments"])
    np.random.set_state(global_state)  # noqa: NPY002  # but this one has a stored generator
    if _name_of(buffer) != name:
        raise ValueError(f"this buffer needs prioritization={name}, got {_name_of(buffer)}")
    buffer.generator = generator_from(header["generator"])
    buffer.restore(header["state"])
    for member, view in buffer.storage().items():
        if member != "flags":
            archive.array(member, view)
    arrays = {key: archive.array(f"priorities/{key}") for key in header["priority_arrays"]}
    flags = stored_array({"flags": archive.array("flags")}, "flags", np.uint8, buffer.n_slots)
    buffer.restore_priorities({**header["priorities"], **arrays}, flags)
    return buffer


def _arguments_of(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Return a buffer's arguments, except spaces, device, prioritization and beta."""
    arguments = buffer.arguments()
    own = arguments["prioritization_kwargs"]
    try:
        is_kept = json.loads(json.dumps(own, default=np.generic.item)) == own
    except (TypeError, ValueError):
        is_kept = False
    if not is_kept:
        raise ValueError(
            "prioritization_kwargs must be what JSON can hold to be stored without pickle (no "
            f"tuples, no arrays, text as keys), got {own!r}"
        )
    del arguments["prioritization"], arguments["beta"], arguments["storage_dir"]
    return {
        "buffer_size": buffer.n_slots,
        "n_envs": buffer.n_envs,
        "optimize_memory_usage": bool(buffer.optimize_memory_usage),
        "n_steps": buffer.n_steps,
        "gamma": buffer.gamma,
        **arguments,
    }


def _name_of(buffer: PrioritizedReplayBuffer) -> str:
    """Return the name of one of our prioritizations, or of the class of the user's own."""
    given = buffer.options.prioritization
    return given if isinstance(given, str) else type(buffer.prioritization).__qualname__


def _state_of(prioritization: Prioritization) -> dict[str, Any]:
    kind = type(prioritization)
    # A subclass that inherits both methods from ours would silently lose what it adds.
    if kind not in PRIORITIZATIONS.values() and not {"state", "restore"} <= vars(kind).keys():
        raise ValueError(
            "a prioritization of your own must define state() and restore(state) itself to be "
            f"stored, so that what it adds is stored, too, got {kind.__name__}"
        )
    return prioritization.state()


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state of a random generator, which names its kind, as ``as_json`` takes it."""
    state: dict[str, Any] = dict(generator.bit_generator.state)
    require_one_of("a random generator", state["bit_generator"], BIT_GENERATORS)
    return state


def generator_from(state: dict[str, Any]) -> np.random.Generator:
    """Return a random generator that continues from a state of ``generator_state``."""
    require_one_of("a random generator", state["bit_generator"], BIT_GENERATORS)
    bit_generator = getattr(np.random, state["bit_generator"])(0)
    bit_generator.state = _with_arrays(state)
    return np.random.Generator(bit_generator)


def _with_arrays(state: Any) -> Any:
    """Return a state with arrays in place of JSON's lists, as NumPy needs it."""
    if isinstance(state, dict):
        return {name: _with_arrays(part) for name, part in state.items()}
    return np.array(state, dtype=np.uint64) if isinstance(state, list) else state


# Files.


def write_archive(
    path: str | os.PathLike[str], kind: str, header: Mapping[str, Any], members: Mapping[str, Any]
) -> None:
    """
    Write a file as a whole or not at all; an older file stays in its place until then.

    :param path: The file; missing folders are made. Until it is whole, the file is called
        ``.<name>.*.partial``.
    :param kind: What it holds, for ``open_archive``.
    :param header: What ``as_json`` takes.
    :param members: Arrays and bytes by name.
    :raises ValueError: for another header; nothing is written then.
    """
    path = Path(path).resolve()  # if it is a link, the file behind it is replaced
    encoded = as_json({"format": kind, "version": VERSION, **header})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")
    try:
        with zipfile.ZipFile(partial, "x") as archive:
            archive.writestr(zipfile.ZipInfo(HEADER), encoded)
            for name, member in members.items():
                _write_member(archive, name, member)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_member(archive: zipfile.ZipFile, name: str, member: NDArray[Any] | bytes) -> None:
    suffix = ".npy" if isinstance(member, np.ndarray) else ""
    with archive.open(zipfile.ZipInfo(name + suffix), "w", force_zip64=True) as file:
        if isinstance(member, np.ndarray):
            array = np.ascontiguousarray(member)
            npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
            file.write(array.reshape(-1).view(np.uint8).data)  # no copy, unlike `tobytes`
        else:
            file.write(member)


def as_json(values: Mapping[str, Any]) -> str:
    """
    Return values as JSON.

    :param values: What JSON can hold, NumPy's numbers and arrays of them.
    :raises ValueError: for anything else.
    """
    return json.dumps(values, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return value.tolist()
    raise ValueError(f"only what JSON can hold can be stored, got {value!r}")


@dataclass
class Archive:
    """A file of ``write_archive``, open for reading."""

    header: dict[str, Any]
    members: zipfile.ZipFile

    def array(self, name: str, target: NDArray[Any] | None = None) -> NDArray[Any]:
        """
        Return an array; ``zipfile`` compares the checksum while it reads.

        :param target: The array to fill, so that there is no second one in memory.
        :raises ValueError: for a target of another shape or type, and if the file holds less than
            the shape says, before memory is taken.
        """
        file: Any = self.members.open(f"{name}.npy")
        with file:
            npy.read_magic(file)
            shape, is_fortran, dtype = npy.read_array_header_1_0(file)
            n_bytes = math.prod(shape) * dtype.itemsize
            if is_fortran or n_bytes > self.members.getinfo(file.name).file_size:
                raise ValueError(f"{name} must hold numbers by rows, got {dtype} of {shape}")
            if target is None:
                target = np.empty(shape, dtype)
            if (shape, dtype) != (target.shape, target.dtype):
                rule = f"{name} must be {target.dtype} of shape {target.shape}"
                raise ValueError(f"{rule}, got {dtype} of {shape}")
            view = target.reshape(-1).view(np.uint8)
            parts = (view[start : start + CHUNK] for start in range(0, n_bytes, CHUNK))
            if sum(map(file.readinto, parts)) != n_bytes or file.read(1):
                raise ValueError(f"{name} must hold {n_bytes} bytes")
        return target


@contextmanager
def open_archive(path: str | os.PathLike[str], kind: str) -> Iterator[Archive]:
    """
    Open a file of ``write_archive``.

    :raises ValueError: for a file that is damaged, of another kind, or of another version of this
        package; also while it is read.
    """
    try:
        with zipfile.ZipFile(path) as members:
            # A compressed member may take far more memory than the file.
            if any(member.compress_type for member in members.infolist()):
                raise ValueError("its members must not be compressed")
            header = json.loads(members.read(HEADER))
            if header["version"] != VERSION:
                raise ValueError(
                    f"it has format version {header['version']}: sb3-per 0.2.0 and older read 1 "
                    f"and 2, this version reads {VERSION}"
                )
            if header["format"] != kind:
                raise ValueError(f"it holds a {header['format']}")
            yield Archive(header, members)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # zipfile, NumPy, gymnasium and SB3 raise many kinds of errors
        raise ValueError(
            f"{path} cannot be loaded: {error} (it must be a whole file of this version of sb3-per "
            f"that holds a {kind}; PERDQN.load and load_replay_buffer read SB3's files)"
        ) from error


# Spaces.

# Their arguments, which are also their attributes.
_ARGUMENTS: dict[type, tuple[str, ...]] = {
    spaces.Box: ("low", "high", "shape", "dtype"),
    spaces.Discrete: ("n", "start", "dtype"),
    spaces.MultiDiscrete: ("nvec", "start", "dtype"),
    spaces.MultiBinary: ("n",),
    spaces.Dict: ("spaces",),
}
_SPACES = {kind.__name__: kind for kind in _ARGUMENTS}


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """
    Return a space as ``as_json`` takes it.

    :param space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
    :raises ValueError: for any other space; a subclass may have more attributes.
    """
    kind = type(space)
    if kind not in _ARGUMENTS:
        rule = f"only {', '.join(_SPACES)} spaces can be stored without pickle"
        raise ValueError(f"{rule}, got {space}")
    encoded = {name: getattr(space, name) for name in _ARGUMENTS[kind]}
    if "dtype" in encoded:
        encoded["dtype"] = str(space.dtype)
    if isinstance(space, spaces.Box):
        encoded |= {"low": _bound(space.low), "high": _bound(space.high)}
    elif isinstance(space, spaces.Dict):
        encoded["spaces"] = [[key, space_to_json(part)] for key, part in space.items()]
    elif space.dtype == np.int64:
        del encoded["dtype"]  # gymnasium 0.29 has no such argument for Discrete
    return {"type": kind.__name__, **encoded}


def space_from_json(encoded: dict[str, Any]) -> spaces.Space[Any]:
    """Return the space that ``space_to_json`` was given."""
    arguments = dict(encoded)
    kind = _SPACES[arguments.pop("type")]
    if "dtype" in arguments:
        arguments["dtype"] = np.dtype(arguments["dtype"]).type
    if kind is spaces.Box:
        for end in ("low", "high"):
            bound = np.array(arguments[end], arguments["dtype"])
            arguments[end] = np.broadcast_to(bound, arguments["shape"])
    elif kind is spaces.Dict:
        arguments["spaces"] = [(key, space_from_json(part)) for key, part in arguments["spaces"]]
    space: spaces.Space[Any] = kind(**arguments)
    return space


def _bound(bound: NDArray[Any]) -> Any:
    """Return one number if all bounds are equal, as for images."""
    return bound.flat[0] if bound.size and (bound == bound.flat[0]).all() else bound
