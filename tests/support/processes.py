"""Processes of this machine, read from /proc."""

import contextlib
import time
from pathlib import Path


def descendants(pid):
    """Return the ids and command lines of all processes below one."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            parents.setdefault(int(parent), []).append(int(folder.name))
            names[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
    found, wanted = {}, [pid]
    while wanted:
        below = parents.get(wanted.pop(), [])
        found |= {process: names[process] for process in below if process in names}
        wanted += below
    return found


def is_running(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(condition, seconds=180):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
