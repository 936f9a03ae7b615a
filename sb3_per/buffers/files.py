"""
Buffers in files without pickle: reading a file runs no code, and fills a buffer that exists.

A file is an ``.npz`` archive that ``numpy.load`` can open. It holds arrays, and a JSON header with
everything else. ``read_pickled_buffer`` alone reads pickles, which can run code: those of SB3.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl

from sb3_per._utils import require_number
from sb3_per.options import LARGEST_TD_ERROR, SMALLEST
from sb3_per.prioritization.sum_tree import FloatArray, IntArray

if TYPE_CHECKING:
    from sb3_per.buffers.prioritized import PrioritizedReplayBuffer

VERSION = 1
HEADER = "header.json"
# In the header, each of them stands for a member of the archive: {":array:": name}.
ARRAY, FILE = ":array:", ":file:"
# How much is read at a time, in bytes.
CHUNK = 1 << 20

# A path, or an open file.
Place = str | os.PathLike[str] | io.BufferedIOBase | BinaryIO


def save_buffer(buffer: PrioritizedReplayBuffer, path: Place) -> None:
    """
    Save a buffer: transitions, priorities, beta and the random generator.

    The file is replaced as a whole or not at all. The transitions are not copied in memory. Do not
    save a buffer while another thread adds transitions to it: the file could mix old and new rows.

    :param buffer: A buffer of this library.
    :param path: The file, with its suffix; or a file that is open for writing.
    :raises ValueError: for stored infos (``copy_info_dict`` of hindsight replay), a random
        generator that is not NumPy's, or a prioritization of your own without ``entries`` and
        ``restore``.
    """
    write_archive(path, "buffer", buffer._state_dict())


def load_buffer(path: Place, buffer: PrioritizedReplayBuffer) -> None:
    """
    Fill a buffer from a file: it continues where the stored buffer stopped.

    Size, spaces, number of environments, ``n_stack``, ``optimize_memory_usage``, ``info_keys``,
    hindsight replay and the options that decide about priorities must be those of the stored
    buffer; all other options are the buffer's own. Bounds of spaces are not compared: continuous
    actions are stored scaled to [-1, 1], so with other bounds they mean other actions. Transitions
    are those that were stored: an ``add`` of your own does not change them again.

    :param path: A file of ``save_buffer``, or such a file that is open for reading.
    :param buffer: A buffer; what it holds is replaced.
    :raises ValueError: before anything has changed, for a buffer that differs, with the difference,
        and for a file that holds something else, or is cut. If damage is found while arrays are
        read, the buffer is empty afterwards.
    """
    with open_archive(path, "buffer") as state:
        buffer._load_state_dict(state)


def checked_entries(stored: Mapping[str, Any], n_slots: int) -> tuple[IntArray, FloatArray, float]:
    """
    Return stored slots and values of priorities, (n,) each, and the largest priority.

    :raises ValueError: for what no buffer stores; the kernels that read them check nothing.
    """
    slots, values, largest = stored["slots"], stored["values"], stored["largest"]
    is_flat = len(slots.shape) == 1 and slots.shape == values.shape
    types = slots.dtype, values.dtype
    if not is_flat or types != (np.int64, np.float64) or slots.shape[0] > n_slots:
        raise ValueError(
            f"stored slots and values must be at most {n_slots} numbers, int64 and float64, got "
            f"{slots.dtype} of {slots.shape} and {values.dtype} of {values.shape}"
        )
    slots, values = np.asarray(slots), np.asarray(values)
    if len(slots) > 0 and not (slots.min() >= 0 and slots.max() < n_slots):
        raise ValueError(f"stored slots must lie in [0, {n_slots}), got {slots}")
    if len(np.unique(slots)) < len(slots):
        raise ValueError(f"stored slots must be distinct, got {slots}")
    highest = 2 * LARGEST_TD_ERROR
    require_number("stored largest", largest, SMALLEST, highest)
    if not ((values > 0) & (values <= highest)).all():
        raise ValueError(f"stored values must lie between 0 and {highest}, got {values}")
    return slots, values, float(largest)


def read_pickled_buffer(file: Any) -> ReplayBuffer:
    """
    Return the buffer that SB3's ``save_replay_buffer`` has pickled.

    :param file: It is open for reading.
    :raises ValueError: for a damaged file, and for something else than a buffer.
    """
    name = getattr(file, "name", file)
    rule = f"{name} must be a whole file of save_replay_buffer, or the pickle of a buffer of SB3"
    try:
        buffer = load_from_pkl(file)
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{rule}: {error}") from error
    if not isinstance(buffer, ReplayBuffer):
        raise ValueError(f"{rule}, got {type(buffer).__name__}")
    return buffer


# Archives.


def write_archive(path: Place, kind: str, contents: Mapping[str, Any]) -> None:
    """
    Write a file as a whole or not at all; an older file stays in its place until then.

    :param path: The file; missing folders are made. Until it is whole, the file is called
        ``.<name>.*.partial``. A file that is open is only written to.
    :param kind: What it holds, for ``open_archive``.
    :param contents: What JSON can hold, NumPy's numbers, arrays of numbers, and bytes, in dicts
        and lists.
    :raises TypeError: for other contents; nothing is written then.
    """
    members: dict[str, Any] = {}
    header = encoded({"format": kind, "version": VERSION, **contents}, members)
    if not isinstance(path, str | os.PathLike):
        _write(path, header, members)
        return
    path = Path(path).resolve()  # if it is a link, the file behind it is replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")
    try:
        with partial.open("xb") as file:
            _write(file, header, members)
            file.flush()
            os.fsync(file)  # a power cut could otherwise leave an empty file in the old one's place
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def encoded(contents: Mapping[str, Any], members: dict[str, Any]) -> str:
    """Return contents as JSON; add their arrays and bytes to ``members``."""
    return json.dumps(_without_members(contents, "", members))


def _without_members(value: Any, name: str, members: dict[str, Any]) -> Any:
    """Return what goes into the header; add arrays and bytes to ``members`` by name."""
    if isinstance(value, Mapping):
        start = f"{name}/" if name else ""
        return {
            key: _without_members(part, f"{start}{key}", members) for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_members(part, f"{name}/{i}", members) for i, part in enumerate(value)]
    if isinstance(value, np.ndarray | bytes):
        members[name] = value
        return {ARRAY if isinstance(value, np.ndarray) else FILE: name}
    return value.item() if isinstance(value, np.generic) else value


def _write(file: Any, header: str, members: Mapping[str, Any]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(HEADER), header)
        for name, member in members.items():
            suffix = ".npy" if isinstance(member, np.ndarray) else ""
            with archive.open(zipfile.ZipInfo(name + suffix), "w", force_zip64=True) as target:
                if isinstance(member, np.ndarray):
                    member = np.asarray(member, order="C")
                    npy.write_array_header_1_0(target, npy.header_data_from_array_1_0(member))
                    member = member.reshape(-1).view(np.uint8).data  # no copy
                target.write(member)


@contextmanager
def open_archive(path: Place, kind: str) -> Iterator[dict[str, Any]]:
    """
    Open a file of ``write_archive``, and return its contents; arrays are ``StoredArray``.

    :raises ValueError: for a file that is damaged, or of another kind or version.
    """
    with _damage_is_named(path):
        members = zipfile.ZipFile(path)
    with members:
        with _damage_is_named(path):

            def restored(value: dict[str, Any]) -> Any:
                if ARRAY in value:
                    return StoredArray(path, members, value[ARRAY])
                return members.read(value[FILE]) if FILE in value else value

            contents = json.loads(members.read(HEADER), object_hook=restored)
            if (contents["format"], contents["version"]) != (kind, VERSION):
                got = f"a {contents['format']} of version {contents['version']}"
                raise ValueError(f"it must hold a {kind} of version {VERSION}, got {got}")
        yield contents


def is_archive(file: Any) -> bool:
    """Return whether an open file begins like one of ``write_archive``."""
    start = file.read(4)
    file.seek(-len(start), os.SEEK_CUR)
    return bool(start == b"PK\3\4")


@contextmanager
def _damage_is_named(path: Place) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # zipfile and NumPy raise many kinds of errors
        name = path if isinstance(path, str | os.PathLike) else getattr(path, "name", path)
        raise ValueError(
            f"{name} cannot be loaded: {error} (load_buffer reads whole files of save_buffer, "
            "load_checkpoint of save_checkpoint, PERDQN.load SB3's files)"
        ) from error


class StoredArray:
    """
    An array in a file, which is read when it is used.

    :raises ValueError: if the file holds less or more than the shape says.
    """

    def __init__(self, path: Place, members: zipfile.ZipFile, name: str) -> None:
        self._path, self._members, self._name = path, members, f"{name}.npy"
        with members.open(self._name) as file:
            npy.read_magic(file)
            self.shape, is_fortran, self.dtype = npy.read_array_header_1_0(file)
            self._start, self._n_bytes = file.tell(), math.prod(self.shape) * self.dtype.itemsize
        n_bytes = members.getinfo(self._name).file_size - self._start
        if is_fortran or self.dtype.hasobject or self._n_bytes != n_bytes:
            got = f"{self.dtype} of {self.shape} in {n_bytes} bytes"
            raise ValueError(f"{name} must hold numbers by rows, got {got}")

    def read_into(self, target: NDArray[Any]) -> None:
        """
        Fill a C-contiguous array of the same shape and type, without a copy in memory.

        :raises ValueError: for damage: ``zipfile`` compares the checksum at the end.
        """
        view = target.reshape(-1).view(np.uint8)
        with _damage_is_named(self._path), self._members.open(self._name) as opened:
            file: Any = opened
            file.read(self._start)
            parts = (view[start : start + CHUNK] for start in range(0, len(view), CHUNK))
            if sum(map(file.readinto, parts)) != len(view) or file.read(1):
                raise ValueError(f"{self._name} must hold {len(view)} bytes")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = np.empty(self.shape, self.dtype)
        self.read_into(array)
        return array if dtype is None else array.astype(dtype)
