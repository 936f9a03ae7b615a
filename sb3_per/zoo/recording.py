"""RL-Zoo's commands that need help before they know algorithms other than RL-Zoo's own."""

import runpy
import shutil
import subprocess
import sys
from typing import Any

_THEIRS = ["python", "-m", "rl_zoo3.record_video"]
_OURS = [sys.executable, "-m", "sb3_per", "record_video"]


def record_training() -> None:
    """
    Run ``rl_zoo3.record_training`` with the arguments in ``sys.argv``.

    It starts ``rl_zoo3.record_video`` in a process of its own for each model. There nobody has
    registered our algorithms, so these processes are started through the launcher instead.

    :raises SystemExit: if there is no ffmpeg to join the films with; else all would be lost.
    """
    asks_for_help = {"-h", "--help"} & set(sys.argv)
    if not asks_for_help and shutil.which("ffmpeg") is None:
        raise SystemExit("sb3-per record_training needs the program ffmpeg, which pip cannot bring")
    call = subprocess.call

    def call_through_launcher(command: list[str], **kwargs: Any) -> int:
        is_theirs = command[: len(_THEIRS)] == _THEIRS
        return call([*_OURS, *command[len(_THEIRS) :]] if is_theirs else command, **kwargs)

    subprocess.call = call_through_launcher  # type: ignore[assignment]  # enough for RL-Zoo's one call
    try:
        runpy.run_module("rl_zoo3.record_training", run_name="__main__")
    finally:
        subprocess.call = call
