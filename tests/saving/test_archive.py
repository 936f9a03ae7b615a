import errno
import json
import os
import zipfile

import numpy as np
import pytest

from sb3_per.saving import archive
from sb3_per.saving.archive import Archive, new_file, write_archive

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
        ("numbers", 2, r"file.npz must be of format version 2 at the most.* got 3"),
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
    with pytest.raises(ValueError, match="beside arrays only what JSON holds can be stored, got"):
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

    with Archive(monster, "numbers", 3) as found, pytest.raises(ValueError, match="allow_pickle"):
        found.array("code")


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


def test_a_part_that_was_left_behind_does_not_stop_the_next_file(path):
    partial = path.with_name(".file.npz.partial")
    partial.write_bytes(b"left behind by a crash" * 10_000)

    write_archive(path, HEADER, {})

    assert Archive(path, "numbers", 3).header == HEADER
    assert not partial.exists()


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
