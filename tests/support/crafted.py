"""Files that ``save_buffer`` cannot have written: valid files with changes."""

import io
import json
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np

MISSING = object()
# Values for any place of a header.
JUNK = [None, True, -1, 0.5, 10**6, 10**30, float("nan"), "", "rank", [], [None], {}, {"a": 1}]


class Crafted:
    """
    The parts of a file, to be changed.

    :param path: A file of ``write_archive``.
    """

    def __init__(self, path):
        self.members = {}
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                is_array = name.endswith(".npy")
                member = archive.read(name)
                self.members[name] = np.load(io.BytesIO(member)) if is_array else member
        self.header = json.loads(self.members.pop("header.json"))

    def write(self, path, compression=zipfile.ZIP_STORED):
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("header.json", json.dumps(self.header))
            for name, member in self.members.items():
                archive.writestr(name, as_npy(member) if isinstance(member, np.ndarray) else member)
        return path


def as_npy(array):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=(1, 0))
    return file.getvalue()


def npy_of_shape(shape):
    """Return a float64 member of 8 bytes that states some shape."""
    file = io.BytesIO()
    described = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + b"\0" * 8


def places_in(value, place=()):
    """Yield the places of all values within a header."""
    parts = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        parts = enumerate(value[:2])
    for name, part in parts:
        yield (*place, name)
        yield from places_in(part, (*place, name))


def set_at(header, place, value):
    """Change the value at a place of a header; ``MISSING`` removes it."""
    *where, last = place
    for name in where:
        header = header[name]
    if value is MISSING:
        del header[last]
    else:
        header[last] = value


@contextmanager
def bounded_memory(n_bytes):
    """Fail if the block takes more memory than allowed at any moment; only Linux can tell."""
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not refs.exists():
        yield
        return
    refs.write_text("5")  # starts to look for the peak again
    before = _peak(status)
    yield
    taken = _peak(status) - before
    assert taken <= n_bytes, f"{taken / 1e6:.0f} MB were taken"


def _peak(status):
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
