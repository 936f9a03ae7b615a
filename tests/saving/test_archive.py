import errno
import hashlib
import io
import json
import os
import stat
import threading
import zipfile

import numpy as np
import pytest
from sb3_per.saving.archive import Archive, write_archive
from sb3_per.saving.atomic import new_file

from sb3_per.saving import archive

HEADER = {"format": "numbers", "version": 3, "seed": 2**127}
MEMBERS = {"rows": np.arange(12.0).reshape(4, 3), "empty": np.zeros((0, 2)), "blob": b"bytes"}


@pytest.fixture
def path(tmp_path):
    write_archive(tmp_path / "some" / "file.npz", HEADER, MEMBERS)
    return tmp_path / "some" / "file.npz"


def test_what_was_written_is_read(path):
    with Archive(path, "numbers", 3) as found:
        assert found.header == HEADER
        np.testing.assert_array_equal(found.array("rows"), MEMBERS["rows"])
        assert found.array("empty").shape == (0, 2)
        assert found.bytes_of("blob") == b"bytes"


def test_numpy_opens_the_arrays_without_pickle(path):
    with np.load(path, allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["rows"], MEMBERS["rows"])


def test_an_array_is_read_into_a_part_of_another_in_several_chunks(path, monkeypatch):
    monkeypatch.setattr(archive, "_CHUNK", 48)
    target = np.zeros((6, 3))

    with Archive(path, "numbers", 3) as found:
        found.read_into("rows", target[1:5])

    assert target.tolist() == [[0] * 3, *MEMBERS["rows"].tolist(), [0] * 3]


@pytest.mark.parametrize("array", [np.arange(12).reshape(3, 4).T, np.arange(12)[::2]])
def test_arrays_that_lie_otherwise_in_memory_are_stored_by_rows(array, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_CHUNK", 16)
    write_archive(tmp_path / "file", HEADER, {"array": array})
    target = np.zeros_like(array, order="F")

    with Archive(tmp_path / "file", "numbers", 3) as found:
        found.read_into("array", target)
        stored = found.array("array")

    assert target.tolist() == stored.tolist() == array.tolist()


def test_the_same_contents_make_the_same_file_whenever_they_are_written(path, tmp_path):
    write_archive(tmp_path / "again", HEADER, MEMBERS)

    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    with zipfile.ZipFile(path) as stored:
        assert {member.date_time for member in stored.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_file_cut_short_anywhere_is_refused_by_name(path):
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"file\.npz is damaged"):
            Archive(path, "numbers", 3)


def test_a_changed_byte_anywhere_is_refused_by_name(path):
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"file\.npz is damaged"):
            Archive(path, "numbers", 3)


def test_more_bytes_than_were_written_are_refused(path):
    path.write_bytes(path.read_bytes() + b"\0")

    with pytest.raises(ValueError, match=r"file\.npz is damaged"):
        Archive(path, "numbers", 3)


@pytest.mark.parametrize(
    ("kind", "version", "complaint"),
    [
        ("letters", 3, r"file.npz must hold a letters, got 'numbers'"),
        ("numbers", 2, r"file.npz must have format version 2 or older.* got 3"),
    ],
)
def test_another_kind_or_a_newer_version_is_refused(kind, version, complaint, path):
    with pytest.raises(ValueError, match=complaint):
        Archive(path, kind, version)


@pytest.mark.parametrize("target", [np.zeros((3, 3)), np.zeros((4, 3), dtype=np.float32)])
def test_an_array_of_another_shape_or_type_is_refused_and_the_target_left_alone(target, path):
    with (
        Archive(path, "numbers", 3) as found,
        pytest.raises(ValueError, match=r"rows in .*file.npz must be .* got 'float64 of \(4, 3\)'"),
    ):
        found.read_into("rows", target)

    assert not target.any()


def test_a_missing_member_is_named(path):
    with Archive(path, "numbers", 3) as found, pytest.raises(ValueError, match=r"columns\.npy"):
        found.array("columns")


def test_arrays_of_python_objects_are_refused_and_no_file_is_left(tmp_path):
    with pytest.raises(ValueError, match="Python objects"):
        write_archive(tmp_path / "file", HEADER, {"list": np.array([{}], dtype=object)})

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [{1}, b"x", 1j, np.datetime64("2024-01-01"), np.array([{}])])
def test_what_json_does_not_hold_is_refused_and_no_file_is_left(value, tmp_path):
    with pytest.raises(
        ValueError, match="only arrays, and values that JSON holds, can be stored, got"
    ):
        write_archive(tmp_path / "file", HEADER | {"value": value}, {})

    assert not list(tmp_path.iterdir())


def test_an_array_without_axes_comes_back_so(tmp_path):
    write_archive(tmp_path / "file", HEADER, {"one": np.array(2.5)})

    with Archive(tmp_path / "file", "numbers", 3) as found:
        assert found.array("one").shape == ()
        assert found.array("one") == 2.5


def test_where_a_link_leads_to_is_replaced(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path)

    write_archive(link, HEADER, {"new": np.arange(3)})

    assert link.is_symlink()
    with Archive(path, "numbers", 3) as found:
        assert found.array("new").tolist() == [0, 1, 2]


def test_an_array_that_would_need_pickle_is_not_read(tmp_path):
    """Whoever writes the checksum, too, can still not have code run."""
    monster = tmp_path / "file"
    np.savez(tmp_path / "evil.npz", code=np.array([print], dtype=object))
    with zipfile.ZipFile(tmp_path / "evil.npz") as evil:
        write_archive(monster, HEADER, {"code.npy": evil.read("code.npy")})

    with (
        Archive(monster, "numbers", 3) as found,
        pytest.raises(ValueError, match="code must not be an array of Python objects"),
    ):
        found.array("code")


# Crafted files, whose checksum is right


def seal(path):
    """Give a zip archive the checksum that ``write_archive`` would."""
    content = path.read_bytes()
    path.write_bytes(content + f"\nsha256:{hashlib.sha256(content).hexdigest()}".encode())


def npy(shape, n_bytes=8, **described):
    """An array's member with a header of one's own."""
    file = io.BytesIO()
    described = {"descr": "<f8", "fortran_order": False, "shape": shape, **described}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue() + b"\0" * n_bytes


def test_compressed_members_are_refused_before_they_are_read(tmp_path):
    """A zip bomb: 10 kB that would take 10 MB."""
    with zipfile.ZipFile(tmp_path / "file", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("header.json", json.dumps(HEADER))
        bomb.writestr("rows.npy", npy((1_250_000,), 10_000_000))
    seal(tmp_path / "file")

    with pytest.raises(ValueError, match=r"members of .*file must be stored uncompressed"):
        Archive(tmp_path / "file", "numbers", 3)


@pytest.mark.parametrize(
    ("member", "complaint"),
    [
        (npy((10**12,)), "must have 8 bytes, got 'float64 of"),
        (npy((10**30,)), "must have 8 bytes"),
        (npy((-1,)), "must have 8 bytes"),
        (npy((-1, -1)), "must have 8 bytes"),
        (npy((0,)), "must have 8 bytes"),
        (npy((10**12,), 0, descr="<U0"), "must have 0 bytes"),
        (npy((1,), fortran_order=True), "must be stored by rows"),
        (npy((1,), descr="nonsense"), "descr is not a valid dtype"),
        (npy((1,)).replace(b"\x93NUMPY\x01", b"\x93NUMPY\x03"), "must be an array of .npy version"),
        (npy((1,))[:30], "as sb3-per writes it|EOF"),
        (npy((1,)).replace(b"{", b"("), "as sb3-per writes it|[Cc]annot parse header"),
        (b"", "EOF"),
    ],
)
def test_an_array_that_says_something_else_than_its_bytes_is_refused(member, complaint, tmp_path):
    write_archive(tmp_path / "file", HEADER, {"rows.npy": member})

    with Archive(tmp_path / "file", "numbers", 3) as found:
        with pytest.raises(ValueError, match=complaint):
            found.array("rows")
        with pytest.raises(ValueError, match=r"rows|EOF|header|valid dtype"):
            found.read_into("rows", np.zeros(1, dtype=np.float32))


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"1", b"nonsense", b"[" * 100_000, b"\xff", b'{"format": "numbers"}', b"1" * 5000]
    + [
        b'{"format": "numbers", "version": %s}' % wrong for wrong in (b"0", b"null", b'"3"', b"NaN")
    ],
)
def test_a_header_that_is_none_is_refused(header, tmp_path):
    with zipfile.ZipFile(tmp_path / "file", "w") as archive:
        archive.writestr("header.json", header)
    seal(tmp_path / "file")

    with pytest.raises(ValueError, match=r"file must|Expecting value|Extra data|decode|digits"):
        Archive(tmp_path / "file", "numbers", 3)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_of_one_name_and_no_zip_archive_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "file", "w") as archive:
        for _ in range(2):
            archive.writestr("header.json", json.dumps(HEADER))
    seal(tmp_path / "file")
    tmp_path.joinpath("text").write_text("no zip archive")
    seal(tmp_path / "text")

    with pytest.raises(ValueError, match="must have different names"):
        Archive(tmp_path / "file", "numbers", 3)
    with pytest.raises(
        ValueError, match=r"text must be a file as sb3-per writes it, got BadZipFile"
    ):
        Archive(tmp_path / "text", "numbers", 3)


@pytest.mark.parametrize("name", ["a\0b", "line\nbreak", "\ud800"])
def test_names_that_no_member_can_have_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match="names of stored members must be printable text"):
        write_archive(tmp_path / "file", HEADER, {name: np.zeros(2)})

    assert not list(tmp_path.iterdir())


# Taking the place of another file


def write_half_of_a_file(path):
    with new_file(path) as file:
        file.write(b"half of ")
        raise OSError(errno.ENOSPC, "the disk is full")


def test_an_error_while_writing_leaves_the_file_that_was_there_and_nothing_else(path):
    before = path.read_bytes()

    with pytest.raises(OSError, match="full"):
        write_half_of_a_file(path)

    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


def test_what_a_killed_writer_has_left_is_removed_an_hour_later(path):
    old, young, other = (
        path.with_name(name)
        for name in (".file.npz.partial", ".file.npz.1a.partial", ".other.npz.1b.partial")
    )
    for partial in (old, young, other):
        partial.write_bytes(b"left behind by a crash")
    for partial in (old, other):
        os.utime(partial, (0, 0))

    write_archive(path, HEADER, {})

    assert Archive(path, "numbers", 3).header == HEADER
    assert sorted(path.parent.iterdir()) == sorted([path, young, other])


def test_of_two_writers_to_one_place_the_last_one_wins_whole(path):
    with new_file(path) as first:
        first.write(b"first")
        with new_file(path) as second:
            second.write(b"sec")
            second.flush()
            first.write(b" and more")
            second.write(b"ond")
        assert path.read_bytes() == b"second"

    assert path.read_bytes() == b"first and more"
    assert [*path.parent.iterdir()] == [path]


def test_writers_at_the_same_time_leave_a_whole_file(tmp_path):
    arrays = [np.full(50_000, number) for number in range(4)]

    def write(array):
        for _ in range(5):
            write_archive(tmp_path / "file", HEADER, {"array": array})

    writers = [threading.Thread(target=write, args=[array]) for array in arrays]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    with Archive(tmp_path / "file", "numbers", 3) as found:
        assert any((found.array("array") == array).all() for array in arrays)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_synced_is_warned_of(path, monkeypatch):
    """Some network file systems refuse it, and the file is in its place by then."""
    fsync = os.fsync

    def refuse_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)

    with pytest.warns(UserWarning, match=r"some cannot be synced to the disk .*Invalid argument"):
        write_archive(path, HEADER, {"new": np.arange(3)})

    with Archive(path, "numbers", 3) as found:
        assert found.array("new").tolist() == [0, 1, 2]


@pytest.mark.skipif(os.name != "posix", reason="elsewhere folders cannot be synced")
def test_a_file_is_on_the_disk_before_it_takes_its_place_and_its_place_after(path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        events.append("folder" if os.path.isdir(f"/dev/fd/{descriptor}") else "file")  # noqa: PTH112
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", lambda *a, **k: (events.append("replace"), replace(*a, **k)))

    write_archive(path, HEADER, {})

    assert events == ["file", "replace", "folder"]


def test_headers_take_numpys_numbers(tmp_path):
    write_archive(tmp_path / "file", {**HEADER, "alpha": np.float32(0.5)}, {})

    with zipfile.ZipFile(tmp_path / "file") as stored:
        assert json.loads(stored.read("header.json"))["alpha"] == 0.5
