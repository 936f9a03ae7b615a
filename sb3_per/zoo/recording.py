"""RL-Zoo's ``record_training``, made to work with our algorithms."""

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

    RL-Zoo starts ``rl_zoo3.record_video`` in a new process for each model. Our algorithms are not
    registered there, so this function starts ``sb3-per record_video`` instead.

    :raises SystemExit: if ffmpeg is missing: it joins the videos at the end, or they would be lost.
    """
    asks_for_help = {"-h", "--help"} & set(sys.argv)
    if not asks_for_help and shutil.which("ffmpeg") is None:
        raise SystemExit(
            "sb3-per record_training needs the program ffmpeg, which pip cannot install"
        )
    call = subprocess.call

    def call_through_launcher(command: list[str], **kwargs: Any) -> int:
        is_theirs = command[: len(_THEIRS)] == _THEIRS
        return call([*_OURS, *command[len(_THEIRS) :]] if is_theirs else command, **kwargs)

    subprocess.call = call_through_launcher  # type: ignore[assignment]  # enough for RL-Zoo's one call
    try:
        runpy.run_module("rl_zoo3.record_training", run_name="__main__")
    finally:
        subprocess.call = call
