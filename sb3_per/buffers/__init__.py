"""Replay buffers that sample by priority."""

from sb3_per.buffers.prioritized import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
)

__all__ = [
    "PrioritizedDictReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
]
