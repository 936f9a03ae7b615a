"""Prioritized experience replay for Stable-Baselines3."""

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
