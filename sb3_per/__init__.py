"""Prioritized experience replay for Stable-Baselines3."""

from importlib.util import find_spec
from typing import NoReturn

from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.rainbow import Rainbow
from sb3_per.algorithms.sac import PERSAC
from sb3_per.algorithms.td3 import PERDDPG, PERTD3
from sb3_per.buffers import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
)
from sb3_per.buffers.sources import collect
from sb3_per.options import PAPER
from sb3_per.saving.buffers import load_buffer, save_buffer
from sb3_per.saving.checkpoints import (
    CheckpointCallback,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

__version__ = "0.3.0"

__all__ = [
    "PAPER",
    "PERDDPG",
    "PERDQN",
    "PERSAC",
    "PERTD3",
    "CheckpointCallback",
    "PrioritizedDictReplayBuffer",
    "PrioritizedHerReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "Rainbow",
    "__version__",
    "collect",
    "latest_checkpoint",
    "load_buffer",
    "load_checkpoint",
    "save_buffer",
    "save_checkpoint",
]

if find_spec("sb3_contrib"):
    from sb3_per.algorithms.crossq import PERCrossQ
    from sb3_per.algorithms.qrdqn import PERQRDQN
    from sb3_per.algorithms.tqc import PERTQC

    __all__ += ["PERQRDQN", "PERTQC", "PERCrossQ"]
else:

    def __getattr__(name: str) -> NoReturn:
        from sb3_per._utils import install

        if name in ("PERQRDQN", "PERTQC", "PERCrossQ"):
            raise ImportError(f"sb3_per.{name} needs sb3-contrib: {install('contrib')}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
