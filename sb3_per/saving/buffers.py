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
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.lib import format as npy
from numpy.typing import NDArray

from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.prioritization.proportional import Prioritization
from sb3_per.prioritization.sampler import PRIORITIZATIONS

# 1 and 2 were written by 0.1.0 and 0.2.0.
VERSION = 3
HEADER = "header.json"
# How much is read at a time, in bytes.
CHUNK = 1 << 20

KINDS: dict[str, type[PrioritizedReplayBuffer]] = {
    "PrioritizedReplayBuffer": PrioritizedReplayBuffer,
    "PrioritizedDictReplayBuffer": PrioritizedDictReplayBuffer,
    "PrioritizedHerReplayBuffer": PrioritizedHerReplayBuffer,
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
    write_archive(path, {"format": "buffer", "version": VERSION, "buffer": header}, members)


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
    name = type(buffer).__name__
    if KINDS.get(name) is not type(buffer):
        rule = f"only {', '.join(KINDS)} can be stored without pickle (use save_replay_buffer)"
        raise ValueError(f"{rule}, got {name}")
    state = _state_of(buffer.prioritization)
    arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    header = {
        "kind": name,
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
    prioritization: Callable[..., Prioritization] | None,
    storage_dir: str | os.PathLike[str] | None,
) -> PrioritizedReplayBuffer:
    """
    Return the buffer that ``pack_buffer`` was given.

    :raises ValueError: for anything in the file that ``pack_buffer`` cannot have written.
    """
    header = archive.header["buffer"]
    buffer = empty_buffer(header, device, prioritization, storage_dir)
    buffer.restore(header["state"])
    for name, view in buffer.storage().items():
        if name != "flags":
            archive.read_into(name, view)
    arrays = {name: archive.array(f"priorities/{name}") for name in header["priority_arrays"]}
    flags = archive.array("flags")
    if flags.dtype != np.uint8 or flags.ndim != 1 or len(flags) > buffer.n_slots:
        raise ValueError(f"stored flags must be bytes, one for each slot, got {flags!r}")
    buffer.restore_priorities({**header["priorities"], **arrays}, flags)
    return buffer


def empty_buffer(
    header: dict[str, Any],
    device: th.device | str,
    prioritization: Callable[..., Prioritization] | None,
    storage_dir: str | os.PathLike[str] | None = None,
) -> PrioritizedReplayBuffer:
    """Return a buffer with the spaces, options and random generator of a header."""
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
    return buffer


def _arguments_of(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Return a buffer's arguments, except spaces, device, prioritization and beta."""
    arguments = buffer.arguments()
    own = arguments["prioritization_kwargs"]
    try:
        stored = json.loads(json.dumps(own, default=_plain_number))
    except (TypeError, ValueError):
        stored = None
    if stored != own:
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
    """
    Return the state of a random generator, which names its kind.

    :raises ValueError: for a kind that is not NumPy's.
    """
    state: dict[str, Any] = dict(generator.bit_generator.state)
    if state["bit_generator"] not in BIT_GENERATORS:
        rule = f"a random generator must be one of {BIT_GENERATORS} to be stored"
        raise ValueError(f"{rule}, got {state['bit_generator']}")
    return state


def generator_from(state: dict[str, Any]) -> np.random.Generator:
    """Return a random generator that continues from a state of ``generator_state``."""
    if state["bit_generator"] not in BIT_GENERATORS:
        rule = f"a stored random generator must be one of {BIT_GENERATORS}"
        raise ValueError(f"{rule}, got {state['bit_generator']}")
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
    path: str | os.PathLike[str], header: Mapping[str, Any], members: Mapping[str, Any]
) -> None:
    """
    Write a file as a whole or not at all; an older file stays in its place until then.

    :param path: The file; missing folders are made. Until it is whole, the file is called
        ``.<name>.*.partial``.
    :param header: Anything that JSON can hold.
    :param members: Arrays and bytes by name.
    :raises ValueError: for what cannot be stored; nothing is written then.
    """
    path = Path(path).resolve()  # if it is a link, the file behind it is replaced
    encoded = as_json(header)
    require_storable(members)
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


def require_storable(members: Mapping[str, Any]) -> None:
    """Raise ValueError for an array of Python objects, which only a pickle could hold."""
    for name, member in members.items():
        if isinstance(member, np.ndarray) and member.dtype.hasobject:
            raise ValueError(f"{name} must not be an array of Python objects, got {member.dtype}")


def as_json(values: Mapping[str, Any]) -> str:
    """
    Return values as JSON.

    :param values: Text, numbers (including NumPy's), booleans and None, in lists and dicts.
    :raises ValueError: for anything else.
    """
    return json.dumps(values, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return value.tolist()
    raise ValueError(f"only what JSON can hold can be stored, got {value!r}")


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError


class Archive:
    """
    A file of ``write_archive``, open for reading; ``zipfile`` compares checksums while it reads.

    :param header: The header.
    :param members: The open archive.
    """

    def __init__(self, header: dict[str, Any], members: zipfile.ZipFile) -> None:
        self.header = header
        self._zip = members

    def bytes_of(self, name: str) -> bytes:
        """Return bytes by their name."""
        return self._zip.read(name)

    def array(self, name: str) -> NDArray[Any]:
        """Return an array by its name. It takes no more memory than the file holds."""
        with self._zip.open(f"{name}.npy") as file:
            shape, dtype = _array_header(file)
            n_bytes = self._zip.getinfo(f"{name}.npy").file_size
            if math.prod(shape) * dtype.itemsize > n_bytes:
                raise ValueError(f"{name} must have at most {n_bytes} bytes, got shape {shape}")
            array: NDArray[Any] = np.empty(shape, dtype)
            _fill(array, file)
        return array

    def read_into(self, name: str, target: NDArray[Any]) -> None:
        """
        Fill an array, without a second array in memory.

        :raises ValueError: if what is stored has another shape or type.
        """
        with self._zip.open(f"{name}.npy") as file:
            shape, dtype = _array_header(file)
            if (shape, dtype) != (target.shape, target.dtype):
                rule = f"{name} must be {target.dtype} of shape {target.shape}"
                raise ValueError(f"{rule}, got {dtype} of {shape}")
            _fill(target, file)


@contextmanager
def open_archive(path: str | os.PathLike[str], kind: str) -> Iterator[Archive]:
    """
    Open a file of ``write_archive``.

    :param kind: The value that ``header["format"]`` must have.
    :raises ValueError: for a file that is damaged, of another kind, or of another version of this
        package; also while it is read.
    """
    try:
        with zipfile.ZipFile(path) as members:
            # zipfile raises many kinds of errors for compressed and encrypted members.
            if any(each.compress_type or each.flag_bits & 1 for each in members.infolist()):
                raise ValueError("its members must be stored as they are")
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
    # What zipfile, json, NumPy, gymnasium and SB3 raise for what they cannot read.
    except (
        zipfile.BadZipFile,
        ArithmeticError,
        AssertionError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        NotImplementedError,
        OSError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{path} must be a whole file of this version of sb3-per that holds a {kind} "
            f"(PERDQN.load and load_replay_buffer read SB3's files): {error}"
        ) from error


def _array_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if npy.read_magic(file) != (1, 0):
        raise ValueError("arrays must be of .npy version 1.0")
    shape, is_fortran, dtype = npy.read_array_header_1_0(file)
    if is_fortran or dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError(f"arrays must hold numbers by rows, got {dtype} of {shape}")
    return shape, dtype


def _fill(array: NDArray[Any], file: Any) -> None:
    view = array.reshape(-1).view(np.uint8)
    for start in range(0, len(view), CHUNK):
        part = view[start : start + CHUNK]
        part[:] = np.frombuffer(file.read(len(part)), np.uint8)
    if file.read(1):  # at its end, zipfile compares the checksum
        raise ValueError("an array must fill its member")


# Spaces.


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """
    Return a space as JSON.

    :param space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
    :raises ValueError: for any other space.
    """
    name = type(space).__name__
    if name in _CODECS:
        encoded: dict[str, Any] = {"type": name, **_CODECS[name].encode(space)}
        returned = space_from_json(encoded)
        # A subclass may have more attributes, and older versions of == ignore the types.
        if (type(returned), returned, returned.dtype) == (type(space), space, space.dtype):
            return encoded
    raise ValueError(f"only {', '.join(_CODECS)} spaces can be stored without pickle, got {space}")


def space_from_json(encoded: dict[str, Any]) -> spaces.Space[Any]:
    """Return the space that ``space_to_json`` was given."""
    space: spaces.Space[Any] = _CODECS[encoded["type"]].decode(encoded)
    return space


class _Codec(NamedTuple):
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[dict[str, Any]], spaces.Space[Any]]


def _bound(bound: Any) -> Any:
    """Return one number if all bounds are equal, as for images."""
    return bound.flat[0].item() if bound.size and (bound == bound.flat[0]).all() else bound.tolist()


def _box_from_json(encoded: dict[str, Any]) -> spaces.Box:
    dtype, shape = np.dtype(encoded["dtype"]), tuple(encoded["shape"])
    low, high = (
        np.broadcast_to(np.array(encoded[end], dtype=dtype), shape) for end in ("low", "high")
    )
    return spaces.Box(low, high, shape, dtype.type)


_CODECS = {
    "Box": _Codec(
        lambda space: {
            "low": _bound(space.low),
            "high": _bound(space.high),
            "shape": list(space.shape),
            "dtype": str(space.dtype),
        },
        _box_from_json,
    ),
    "Discrete": _Codec(
        lambda space: {"n": int(space.n), "start": int(space.start), **_dtype_of(space)},
        lambda encoded: spaces.Discrete(encoded["n"], start=encoded["start"], **_typed(encoded)),
    ),
    "MultiDiscrete": _Codec(
        lambda space: {
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            **_dtype_of(space),
        },
        lambda encoded: spaces.MultiDiscrete(
            encoded["nvec"], start=encoded["start"], **_typed(encoded)
        ),
    ),
    "MultiBinary": _Codec(
        lambda space: {"n": space.n if isinstance(space.n, int) else list(space.n)},
        lambda encoded: spaces.MultiBinary(
            tuple(encoded["n"]) if isinstance(encoded["n"], list) else encoded["n"]
        ),
    ),
    "Dict": _Codec(
        lambda space: {"spaces": [[key, space_to_json(part)] for key, part in space.items()]},
        lambda encoded: spaces.Dict([(key, space_from_json(p)) for key, p in encoded["spaces"]]),
    ),
}


def _dtype_of(space: spaces.Space[Any]) -> dict[str, str]:
    """Return the type of a space's whole numbers, unless it is int64."""
    return {} if space.dtype == np.int64 else {"dtype": str(space.dtype)}


def _typed(encoded: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": np.dtype(encoded["dtype"]).type} if "dtype" in encoded else {}
