"""RL-Zoo's record_training, for algorithms that RL-Zoo does not bring itself."""

import runpy
import subprocess
import sys
from typing import Any

_THEIRS = ["python", "-m", "rl_zoo3.record_video"]
_OURS = [sys.executable, "-m", "sb3_per", "record_video"]


def record_training() -> None:
    """
    Run ``rl_zoo3.record_training`` with the arguments in ``sys.argv``.

    It starts ``rl_zoo3.record_video`` in a process of its own for each model. There nobody has
    registered our algorithms, so that these processes are started through the launcher instead.
    """
    call = subprocess.call

    def call_through_launcher(command: list[str], **kwargs: Any) -> int:
        ours = command[: len(_THEIRS)] == _THEIRS
        return call([*_OURS, *command[len(_THEIRS) :]] if ours else command, **kwargs)

    subprocess.call = call_through_launcher
    try:
        runpy.run_module("rl_zoo3.record_training", run_name="__main__")
    finally:
        subprocess.call = call
