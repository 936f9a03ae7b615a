"""Replay buffers that sample by priority."""

from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
)

__all__ = [
    "PrioritizedDictReplayBuffer",
    "PrioritizedHerReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
]
