"""Exported networks choose the same actions as the original, whatever the batch size."""

import warnings

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_per import Rainbow

IMAGES = spaces.Box(0, 255, (4, 36, 36), np.uint8)
VECTORS = spaces.Box(-1, 1, (3,), np.float32)
SPACES = {
    "MlpPolicy": VECTORS,
    "CnnPolicy": IMAGES,
    "MultiInputPolicy": spaces.Dict({"image": IMAGES, "vector": VECTORS, "n": spaces.Discrete(4)}),
}
# The parts that a network may lack.
PARTS = ({}, {"dueling": False}, {"n_atoms": 1}, {"noisy": False})
CASES = [(name, parts) for name in Rainbow.policy_aliases for parts in PARTS]
LAST = {"layers": [(8, 3, 1)], "channels_last": True}
CASES.append(("CnnPolicy", {"features_extractor_kwargs": LAST}))


class Values(th.nn.Module):
    """The actions, Q-values and distributions of a policy, in one module."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, observations):
        q_net = self.policy.q_net
        return (
            self.policy(observations, deterministic=True),
            self.policy(observations, deterministic=False),
            q_net(observations),
            q_net.probabilities(observations),
        )


def make(name, parts):
    space, schedule = SPACES[name], lambda _: 1e-3
    parts = {"noisy_sigma": 0.0, **parts}  # noise that changes no action
    policy = Rainbow.policy_aliases[name](space, spaces.Discrete(3), schedule, **parts)
    return Values(policy).eval()


def observations(space, n):
    """Return a batch of random observations as tensors."""
    if isinstance(space, spaces.Dict):
        return {name: observations(part, n) for name, part in space.items()}
    space.seed(n)
    return th.as_tensor(np.stack([space.sample() for _ in range(n)]))


def traced(module, example):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks of shapes, and that tracing is deprecated
        return th.jit.trace(module, (example,))


def exported(module, example):
    batch = {0: th.export.Dim("batch")}
    sizes = dict.fromkeys(example, batch) if isinstance(example, dict) else batch
    return th.export.export(module, (example,), dynamic_shapes=(sizes,)).module()


@pytest.mark.parametrize("export", [traced, exported])
@pytest.mark.parametrize(("name", "parts"), CASES)
def test_exported_policy_is_right_for_other_batch_sizes(name, parts, export):
    module = make(name, parts)
    copy = export(module, observations(SPACES[name], 2))

    for n in (1, 2, 5):
        batch = observations(SPACES[name], n)
        with th.no_grad():
            for ours, theirs in zip(module(batch), copy(batch), strict=True):
                th.testing.assert_close(theirs, ours)
