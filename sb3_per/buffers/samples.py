"""The batches of a prioritized buffer."""

from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.type_aliases import TensorDict

from sb3_per.prioritization.sum_tree import IntArray


class PrioritizedReplayBufferSamples(NamedTuple):
    """SB3's fields, and then weights and slots. Dict observations are dicts of tensors."""

    observations: th.Tensor | TensorDict
    actions: th.Tensor
    next_observations: th.Tensor | TensorDict
    dones: th.Tensor  # (B, 1)
    rewards: th.Tensor  # (B, 1), the n-step return for n_steps > 1
    discounts: th.Tensor | None  # (B, 1), gamma^(steps in the return); None for n_steps = 1
    weights: th.Tensor  # (B, 1) float32
    slots: IntArray  # (B,), for `update_priorities`; on the host, whatever the device

    @property
    def indices(self) -> IntArray:
        """Return ``slots``, shape (B,), under another name."""
        return self.slots


def concatenated(parts: list[Any]) -> Any:
    """Return the concatenation of tensors, or of dicts of tensors."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], dict):
        return {key: th.cat([part[key] for part in parts]) for key in parts[0]}
    return th.cat(parts)
