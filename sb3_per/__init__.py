"""Prioritized experience replay for Stable-Baselines3."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_per.buffers import (
        PrioritizedDictReplayBuffer,
        PrioritizedReplayBuffer,
        PrioritizedReplayBufferSamples,
    )
    from sb3_per.dqn import PERDQN

__version__ = "0.1.0"

__all__ = [
    "PERDQN",
    "PrioritizedDictReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "__version__",
]

_ROOMS = {
    "PERDQN": "dqn",
    "PrioritizedDictReplayBuffer": "buffers",
    "PrioritizedReplayBuffer": "buffers",
    "PrioritizedReplayBufferSamples": "buffers",
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
