"""Files of named arrays with a JSON header: whole or refused, and read without running code."""

import hashlib
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sb3_per.rules import require
from sb3_per.saving.atomic import new_file
from sb3_per.saving.structure import refusing

# How much is read or hashed at a time, in bytes.
_CHUNK = 1 << 20
_HEADER = "header.json"
# The end of every file: the SHA-256 of all that comes before, in hexadecimal.
_SEAL_LENGTH = len(b"\nsha256:") + 64


def write_archive(
    path: str | os.PathLike[str], header: Mapping[str, Any], members: Mapping[str, Any]
) -> None:
    """
    Write a file as a whole or not at all; an older file stays in its place until then.

    Arrays are written one after the other, without copying them in memory. The file is a zip
    archive that ``numpy.load`` can open, followed by its checksum.

    :param path: The file; missing folders are made. Until it is whole, the file is called
        ``.<name>.*.partial``.
    :param header: Anything that JSON can hold.
    :param members: Arrays and bytes by name.
    :raises ValueError: for what cannot be stored; see ``as_json`` and ``require_storable``.
    """
    with new_file(Path(path)) as file:
        hashing = _HashingWriter(file)
        # The writer cannot seek, so the file is written and hashed from front to back.
        with zipfile.ZipFile(hashing, "w") as archive:  # type: ignore[call-overload]  # needs write
            archive.writestr(zipfile.ZipInfo(_HEADER), as_json(header))
            for name, member in members.items():
                _write_member(archive, name, member)
        file.write(_seal(hashing.digest.hexdigest()))


def _write_member(archive: zipfile.ZipFile, name: str, member: NDArray[Any] | bytes) -> None:
    require_storable(name, member)
    suffix = ".npy" if isinstance(member, np.ndarray) else ""
    info = zipfile.ZipInfo(f"{name}{suffix}")
    with archive.open(info, "w", force_zip64=True) as target:
        if isinstance(member, np.ndarray):
            _write_array(target, member)
        else:
            target.write(member)


def as_json(values: Mapping[str, Any]) -> str:
    """
    Return values as JSON.

    :param values: Text, numbers (including NumPy's), booleans and None, in lists and dicts.
    :raises ValueError: for anything else.
    """
    return json.dumps(values, default=_plain)


def _plain(value: Any) -> Any:
    is_numpys = isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf"
    require(is_numpys, "only arrays, and values that JSON holds, can be stored", value)
    return value.tolist()


def require_storable(name: str, member: NDArray[Any] | bytes) -> None:
    """
    Check that ``write_archive`` can write a member.

    :raises ValueError: for an array of Python objects, which only a pickle could hold, and for a
        name that no member of a zip archive can have.
    """
    is_name = "\0" not in name and name.isprintable()
    require(is_name, "names of stored members must be printable text", name)
    if isinstance(member, np.ndarray):
        _require_plain(name, member.dtype)


def _require_plain(name: str, dtype: np.dtype[Any]) -> None:
    require(not dtype.hasobject, f"{name} must not be an array of Python objects", dtype)


class DamagedArchive(ValueError):
    """Raised for a file that was changed after it was written."""


class Archive:
    """
    A file of ``write_archive``, open for reading.

    Invariant: the checksum was right when the file was opened, and all members lie uncompressed in
    the file, so none can be larger than the file. A checksum reveals damage but stops no attacker:
    everything that is read is checked before it is used.

    :param path: The file.
    :param kind: The value that ``header["format"]`` must have.
    :param version: The newest ``header["version"]`` that the caller can read.
    :raises DamagedArchive: for a damaged file.
    :raises ValueError: for a file of another kind or a newer version.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str, version: int) -> None:
        self.path = Path(path)
        _check_seal(self.path)
        self._rule = f"{self.path} must be a file as sb3-per writes it"
        with refusing(self._rule):
            self._zip = zipfile.ZipFile(self.path)
        try:
            _check_members(self.path, self._zip.infolist())
            self.header = self._read_header()
            found, found_version = self.header.get("format"), self.header.get("version")
            require(found == kind, f"{self.path} must hold a {kind}", found)
            rule = f"{self.path} must have format version {version} or older (update sb3-per)"
            is_known = isinstance(found_version, int) and 1 <= found_version <= version
            require(is_known, rule, found_version)
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> dict[str, Any]:
        with refusing(self._rule):
            header = json.loads(self.bytes_of(_HEADER))
        require(isinstance(header, dict), f"{self.path} must have a header of named values", header)
        return dict(header)

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
        """Close the file."""
        self._zip.close()

    def array(self, name: str) -> NDArray[Any]:
        """
        Return an array by its name. It takes no more memory than the file holds.

        :raises ValueError: if there is no such array, or not as ``write_archive`` writes it.
        """
        with refusing(self._rule), self._open(f"{name}.npy") as file:
            shape, dtype = self._array_header(name, file)
            array: NDArray[Any] = np.empty(shape, dtype)
            _fill(array, file)
        return array

    def read_into(self, name: str, target: NDArray[Any]) -> None:
        """
        Fill an array, without a second array in memory.

        :raises ValueError: if what is stored has another shape or type.
        """
        with refusing(self._rule), self._open(f"{name}.npy") as file:
            shape, dtype = self._array_header(name, file)
            rule = f"{name} in {self.path} must be {target.dtype} of shape {target.shape}"
            require((shape, dtype) == (target.shape, target.dtype), rule, f"{dtype} of {shape}")
            _fill(target, file)

    def bytes_of(self, name: str) -> bytes:
        """Return bytes by their name."""
        with refusing(self._rule), self._open(name) as file:
            content: bytes = file.read()
        return content

    def _open(self, member: str) -> Any:
        require(member in self._zip.namelist(), f"{self.path} must hold {member}", "nothing")
        return self._zip.open(member)

    def _array_header(self, name: str, file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Read shape and type of an array whose numbers must fill the rest of the member."""
        require(
            npy.read_magic(file) == (1, 0), f"{name} must be an array of .npy version 1.0", name
        )
        shape, is_fortran, dtype = npy.read_array_header_1_0(file)
        require(not is_fortran, f"{name} in {self.path} must be stored by rows", is_fortran)
        _require_plain(name, dtype)
        n_bytes = self._zip.getinfo(f"{name}.npy").file_size - file.tell()
        is_size = min(shape, default=0) >= 0 and dtype.itemsize > 0
        fits = is_size and math.prod(shape) * dtype.itemsize == n_bytes
        require(fits, f"{name} in {self.path} must have {n_bytes} bytes", f"{dtype} of {shape}")
        return shape, dtype


def _fill(array: NDArray[Any], file: Any) -> None:
    for rows in _chunks(array):
        rows[...] = np.frombuffer(file.read(rows.nbytes), array.dtype).reshape(rows.shape)


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Raise ValueError unless all members are uncompressed and together fit into the file."""
    size = path.stat().st_size
    for member in members:
        lies_in = 0 <= member.header_offset < size and member.compress_size == member.file_size
        is_plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
        require(lies_in and is_plain, f"members of {path} must be stored uncompressed", member)
    names = [member.filename for member in members]
    require(len(set(names)) == len(names), f"members of {path} must have different names", names)
    n_bytes = sum(member.file_size for member in members)
    require(n_bytes <= size, f"members of {path} must take at most its {size} bytes", n_bytes)


def _write_array(file: Any, array: NDArray[Any]) -> None:
    """Write an array as NumPy's ``write_array`` does, but with smaller copies than its 16 MiB."""
    described = npy.header_data_from_array_1_0(array)
    npy.write_array_header_1_0(file, {**described, "fortran_order": False})
    for rows in _chunks(array):
        file.write(rows.tobytes())


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield views of successive rows, small enough to be copied; none of an empty array."""
    if array.size == 0:
        return
    array = np.atleast_1d(array)
    n_rows = max(_CHUNK // max(array.nbytes // len(array), 1), 1)
    for start in range(0, len(array), n_rows):
        yield array[start : start + n_rows]


class _HashingWriter:
    """Writes to a file, and computes the checksum of what it writes."""

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
        is_pickle = file.read(1) == b"\x80"
        file.seek(0)
        n_left = os.fstat(file.fileno()).st_size - _SEAL_LENGTH
        while n_left > 0:
            chunk = file.read(min(_CHUNK, n_left))
            digest.update(chunk)
            n_left -= len(chunk)
        is_whole = file.read() == _seal(digest.hexdigest())
    if not is_whole and is_pickle:
        raise ValueError(
            f"{path} must not be a pickle, as save_replay_buffer writes it: load it with "
            "model.load_replay_buffer"
        )
    if not is_whole:
        raise DamagedArchive(
            f"{path} is damaged: it was cut short, changed after it was written, or not written "
            "by sb3-per (PERDQN.load and load_replay_buffer read SB3's files)"
        )
