"""Prioritized experience replay for Stable-Baselines3."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_per.buffer_files import load_buffer, save_buffer
    from sb3_per.buffers import (
        PrioritizedDictReplayBuffer,
        PrioritizedReplayBuffer,
        PrioritizedReplayBufferSamples,
    )
    from sb3_per.checkpoint import (
        CheckpointCallback,
        latest_checkpoint,
        load_checkpoint,
        save_checkpoint,
    )
    from sb3_per.dqn import PERDQN

__version__ = "0.1.0"

__all__ = [
    "PERDQN",
    "CheckpointCallback",
    "PrioritizedDictReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "__version__",
    "latest_checkpoint",
    "load_buffer",
    "load_checkpoint",
    "save_buffer",
    "save_checkpoint",
]

_ROOMS = {
    "PERDQN": "dqn",
    "CheckpointCallback": "checkpoint",
    "PrioritizedDictReplayBuffer": "buffers",
    "PrioritizedReplayBuffer": "buffers",
    "PrioritizedReplayBufferSamples": "buffers",
    "latest_checkpoint": "checkpoint",
    "load_buffer": "buffer_files",
    "load_checkpoint": "checkpoint",
    "save_buffer": "buffer_files",
    "save_checkpoint": "checkpoint",
}


def __getattr__(name: str) -> Any:
    # Only when a name is asked for: gymnasium before 1.0 imports `sb3_per.registration` in the
    # middle of its own import. Torch would cost seconds there, and SB3 needs all of gymnasium.
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"sb3_per.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
