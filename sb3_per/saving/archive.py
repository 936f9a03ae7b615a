"""Files of named arrays below a JSON header: whole or refused, and read without running code."""

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sb3_per.rules import require

# How much is read or hashed at a time, in bytes.
_CHUNK = 1 << 20
_HEADER = "header.json"
# The end of every file: the SHA-256 of all that comes before, in hexadecimal.
_SEAL_LENGTH = len(b"\nsha256:") + 64


def write_archive(
    path: str | os.PathLike[str], header: Mapping[str, Any], members: Mapping[str, Any]
) -> None:
    """
    Write a file that is at its place either whole or not at all; the one that was there before
    stays until then. Arrays are written one after the other, without a copy of them in memory.

    The file is a zip archive that ``numpy.load`` can open, followed by its checksum.

    :param path: Where to; folders are made. A file ``.<name>.partial`` is used beside it meanwhile.
    :param header: Anything that JSON can hold.
    :param members: Arrays and bytes by name.
    :raises ValueError: for what cannot be stored; see ``as_json`` and ``require_plain``.
    """
    with new_file(Path(path)) as file:
        hashing = _HashingWriter(file)
        # Being unable to seek, it is written from front to back, and the checksum with it.
        with zipfile.ZipFile(hashing, "w") as archive:  # type: ignore[call-overload]  # needs write
            archive.writestr(zipfile.ZipInfo(_HEADER), as_json(header))
            for name, member in members.items():
                is_array = isinstance(member, np.ndarray)
                info = zipfile.ZipInfo(f"{name}.npy" if is_array else name)
                with archive.open(info, "w", force_zip64=True) as target:
                    if is_array:
                        require_plain(name, member)
                        _write_array(target, member)
                    else:
                        target.write(member)
        file.write(_seal(hashing.digest.hexdigest()))


def as_json(values: Mapping[str, Any]) -> str:
    """
    :param values: Text, numbers (NumPy's too), truth and None, in lists and dicts.
    :raises ValueError: for anything else.
    """
    return json.dumps(values, default=_plain)


def _plain(value: Any) -> Any:
    is_numpys = isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf"
    require(is_numpys, "beside arrays only what JSON holds can be stored", value)
    return value.tolist()


def require_plain(name: str, array: NDArray[Any]) -> None:
    """:raises ValueError: for an array of Python objects, which only a pickle could hold."""
    rule = f"arrays of Python objects cannot be stored, and {name} is one"
    require(not array.dtype.hasobject, rule, array.dtype)


def partial_name(name: str) -> str:
    """:return: What a file is called beside its place until it is whole."""
    return f".{name}.partial"


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """
    A file to be written that takes its place, durably, when the block ends without an error. One
    process at a time may write to a place; where that is a link, what it leads to is replaced.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(partial_name(path.name))
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


class DamagedArchive(ValueError):
    """A file that is not as it was written."""


class Archive:
    """
    A file of ``write_archive``, open for reading.

    Invariant: the checksum was right when the file was opened.

    :param path: The file.
    :param kind: What ``header["format"]`` has to be.
    :param version: The newest ``header["version"]`` that the caller can read.
    :raises DamagedArchive: for a file that is damaged.
    :raises ValueError: for one of another kind, or newer.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str, version: int) -> None:
        self.path = Path(path)
        _check_seal(self.path)
        self._zip = zipfile.ZipFile(self.path)
        self.header: dict[str, Any] = json.loads(self._zip.read(_HEADER))
        found, found_version = self.header.get("format"), self.header.get("version")
        require(found == kind, f"{self.path} must hold a {kind}", found)
        rule = f"{self.path} must be of format version {version} at the most: update sb3-per"
        require(isinstance(found_version, int) and found_version <= version, rule, found_version)

    def __enter__(self) -> "Archive":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._zip.close()

    def array(self, name: str) -> NDArray[Any]:
        """An array by its name."""
        with self._open(f"{name}.npy") as file:
            array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
        return array

    def read_into(self, name: str, target: NDArray[Any]) -> None:
        """
        Fill an array, without a second one in memory.

        :raises ValueError: if what is stored has another shape or type.
        """
        with self._open(f"{name}.npy") as file:
            npy.read_magic(file)
            shape, _, dtype = npy.read_array_header_1_0(file)
            rule = f"{name} in {self.path} must be {target.dtype} of shape {target.shape}"
            require((shape, dtype) == (target.shape, target.dtype), rule, f"{dtype} of {shape}")
            for rows in _chunks(target):
                rows[...] = np.frombuffer(file.read(rows.nbytes), dtype).reshape(rows.shape)

    def bytes_of(self, name: str) -> bytes:
        """Bytes by their name."""
        with self._open(name) as file:
            content: bytes = file.read()
        return content

    def _open(self, member: str) -> Any:
        require(member in self._zip.namelist(), f"{self.path} must hold {member}", "nothing")
        return self._zip.open(member)


def _write_array(file: Any, array: NDArray[Any]) -> None:
    """As ``numpy.lib.format.write_array``, which copies up to 16 MiB at a time."""
    described = npy.header_data_from_array_1_0(array)
    npy.write_array_header_1_0(file, {**described, "fortran_order": False})
    for rows in _chunks(array):
        file.write(rows.tobytes())


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Views of successive rows, small enough to be copied."""
    array = np.atleast_1d(array)
    row_size = max(array.nbytes // max(len(array), 1), 1)
    n_rows = max(_CHUNK // row_size, 1)
    for start in range(0, len(array), n_rows):
        yield array[start : start + n_rows]


class _HashingWriter:
    """Passes on what is written, and knows its checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _seal(digest: str) -> bytes:
    return f"\nsha256:{digest}".encode()


def _check_seal(path: Path) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        n_left = os.fstat(file.fileno()).st_size - _SEAL_LENGTH
        while n_left > 0:
            chunk = file.read(min(_CHUNK, n_left))
            digest.update(chunk)
            n_left -= len(chunk)
        is_whole = file.read() == _seal(digest.hexdigest())
    if not is_whole:
        raise DamagedArchive(
            f"{path} is damaged: it was cut short, changed after it was written, or not written "
            "by sb3-per (PERDQN.load and load_replay_buffer read SB3's files)"
        )


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # Windows cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
