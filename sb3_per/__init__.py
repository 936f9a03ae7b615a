"""Prioritized experience replay for Stable-Baselines3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sb3_per import algorithms
from sb3_per.algorithms import *  # noqa: F403  # whatever algorithms there are
from sb3_per.algorithms.networks import RainbowKwargs
from sb3_per.buffers.files import load_buffer, save_buffer
from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
)
from sb3_per.checkpoints import (
    CheckpointCallback,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from sb3_per.options import PAPER, ReplayBufferKwargs

__version__ = "0.3.0.dev0"

__all__ = [
    "PAPER",
    "CheckpointCallback",
    "PrioritizedDictReplayBuffer",
    "PrioritizedHerReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "RainbowKwargs",
    "ReplayBufferKwargs",
    "__version__",
    "latest_checkpoint",
    "load_buffer",
    "load_checkpoint",
    "save_buffer",
    "save_checkpoint",
]
__all__ += algorithms.__all__


if not TYPE_CHECKING:  # a type checker would take any name

    def __getattr__(name: str) -> Any:
        from sb3_per._utils import install

        if name in ("PERQRDQN", "PERTQC", "PERCrossQ"):  # else they are there
            raise ImportError(f"sb3_per.{name} needs sb3-contrib: {install('contrib')}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
