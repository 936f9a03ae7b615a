"""Files that ``save_buffer`` cannot have written: valid ones, changed, with a right checksum."""

import copy
import hashlib
import io
import json
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import strategies as st


class Crafted:
    """
    The parts of a file, to be changed: ``header``, and ``members`` as arrays or bytes by name.

    :param content: A file of ``write_archive``.
    """

    def __init__(self, content):
        self.members = {}
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                member = archive.read(name)
                if name.endswith(".npy"):
                    self.members[name] = np.load(io.BytesIO(member))
                else:
                    self.members[name] = member
        self.header = json.loads(self.members.pop("header.json"))

    def content(self):
        """Return the bytes of the file, its checksum still missing."""
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("header.json", json.dumps(self.header))
            for name, member in self.members.items():
                archive.writestr(name, member if isinstance(member, bytes) else as_npy(member))
        return file.getvalue()

    def write(self, path):
        """Write the file with its checksum."""
        path.write_bytes(sealed(self.content()))
        return path


def as_npy(array):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)
    return file.getvalue()


def sealed(content):
    return content + f"\nsha256:{hashlib.sha256(content).hexdigest()}".encode()


@contextmanager
def bounded_memory(n_bytes):
    """Fail if the block takes more memory than allowed for a moment; Linux alone can tell."""
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


# Changes by hypothesis: each takes ``data.draw`` and what it changes.

NUMBERS = [0, 1, -1, 7, 0.5, 1e9, 1e300, 10**9, 10**30, -(10**19), float("nan"), float("inf")]
OTHERS = [None, True, False, "", "0", "rank", "PCG64", "\ud800", [], {}, [[]], [None], {"": 1}]
# Copies: a change may put one value into another.
JUNK = st.sampled_from([*NUMBERS, *OTHERS]).map(copy.deepcopy)


def places_in(value, place=()):
    """Yield the places of all values within a header."""
    yield place
    parts = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        parts = enumerate(value[:3])
    for name, part in parts:
        yield from places_in(part, (*place, name))


def change_header(draw, header):
    """Replace, rescale, wrap or drop a value of a header."""
    *where, last = draw(st.sampled_from([*places_in(header)][1:]))
    for name in where:
        header = header[name]
    kind = draw(st.sampled_from(["junk", "junk", "scale", "wrap", "drop", "more"]))
    value = header[last]
    if kind == "scale" and isinstance(value, int | float):
        header[last] = value * 10 ** draw(st.integers(-3, 8))
    elif kind == "wrap":
        header[last] = [value]
    elif kind == "drop":
        del header[last]
    elif kind == "more" and isinstance(value, dict):
        value[draw(st.sampled_from(["beta", "device", "x", "self", "args"]))] = draw(JUNK)
    else:
        header[last] = draw(JUNK)


def change_member(draw, members):
    """Cut, retype, rescale, reshape, flip or drop a member, or put another in its place."""
    name = draw(st.sampled_from(sorted(members)))
    member = members[name]
    if isinstance(member, bytes):
        members[name] = change_bytes(draw, member)
        return
    kinds = ["cut", "grow", "retype", "scale", "entry", "reverse", "shape", "swap", "flip", "drop"]
    kind = draw(st.sampled_from(kinds))
    if kind == "drop":
        del members[name]
    elif kind == "flip":
        members[name] = change_bytes(draw, as_npy(member))
    elif kind == "swap":
        members[name] = members[draw(st.sampled_from(sorted(members)))]
    else:
        with np.errstate(all="ignore"):
            members[name] = change_array(draw, member, kind)


def change_array(draw, array, kind):
    if kind == "cut":
        return array[: draw(st.integers(0, len(array)))]
    if kind == "grow":
        return np.concatenate([array] * draw(st.integers(2, 5)))
    if kind == "retype":
        types = ["f8", "f4", "i8", "i4", "i1", "u8", ">f8", ">i8", "?", "c16", "U3", "M8[s]"]
        new = np.resize(array.astype("f8") if array.dtype.kind in "biuf" else 0.0, array.shape)
        return new.astype(draw(st.sampled_from(types)))
    if kind == "shape":
        return array.reshape(draw(st.sampled_from([(-1,), (-1, 1), (1, -1)])))
    if kind == "reverse":
        return array[::-1].copy()
    array = array.copy()
    if kind == "entry" and array.size and array.dtype.kind in "iuf":
        value = draw(st.sampled_from([0, -1, 1, 2, 60, 127, -128, 1e6, 1e300, np.nan, np.inf]))
        place = draw(st.integers(0, array.size - 1))
        array.flat[place] = np.array(float(value)).astype(array.dtype)
    elif kind == "scale" and array.dtype.kind in "iuf":
        factor = draw(st.sampled_from([0.0, -1.0, 0.5, 2.0, 1e3, 1e-300]))  # -1 fits no uint8
        array = (array * factor).astype(array.dtype)
    return array


def change_bytes(draw, content):
    """Flip, cut, double or replace bytes."""
    if not content:
        return b"\0"
    place = draw(st.integers(0, len(content) - 1))
    kind = draw(st.sampled_from(["flip", "flip", "cut", "double", "value"]))
    if kind == "cut":
        return content[:place]
    if kind == "double":
        return content[:place] + content[place // 2 :]
    byte = draw(st.integers(0, 255)) if kind == "value" else content[place] ^ 1 << place % 8
    return content[:place] + bytes([byte]) + content[place + 1 :]
