"""A uniform share on whole buffers: fully corrected, the expected update is uniform replay's."""

import itertools

import numpy as np
import pytest
from builders import (
    BOX,
    DICT,
    TWO_ACTIONS,
    fill,
    fill_with_stacks,
    probabilities_in,
)
from gymnasium import spaces

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

STACK = spaces.Box(0, 255, (4, 4, 3), np.uint8)
SIZE, BATCH, SHARE = 48, 32, 0.5
MEMORY_OPTIMISED = {"optimize_memory_usage": True, "handle_timeout_termination": False}
STORAGES = {
    "plain": {},
    "several environments": {"n_envs": 3},
    "memory-optimised": {"n_envs": 2, **MEMORY_OPTIMISED},
    "n-step": {"n_steps": 3},
    "Dict": {"space": DICT, "n_envs": 2},
    "frames": {"space": STACK, "n_stack": 3, "n_steps": 2},
    "Dict and n-step": {"space": DICT, "n_envs": 2, "n_steps": 3},
}
# Priorities stay as they are, so that the probabilities of all batches are the same.
pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")
COMBINATIONS = pytest.mark.parametrize(
    ("storage", "prioritization", "stratified"),
    list(itertools.product(STORAGES, ["proportional", "rank", "lap"], [True, False])),
)


def make(storage, prioritization, stratified):
    """A buffer that is full and partly overwritten, with skewed priorities."""
    options = {"space": BOX, **STORAGES[storage]}
    space = options.pop("space")
    kind = PrioritizedDictReplayBuffer if space is DICT else PrioritizedReplayBuffer
    options |= {"prioritization": prioritization, "stratified": stratified}
    options |= {"uniform_share": SHARE, "weight_normalization": "none", "beta": 1.0}
    buffer = kind(SIZE, space, TWO_ACTIONS, "cpu", **options)
    add = fill_with_stacks if "n_stack" in options else fill
    add(buffer, SIZE)
    slots, generator = np.arange(buffer.n_slots), np.random.default_rng(1)
    buffer.update_priorities(slots, np.exp(2 * generator.standard_normal(len(slots))))
    add(buffer, 7, first=SIZE)
    buffer.generator = np.random.default_rng(0)
    return buffer


def errors_from_uniform_replay(buffer, weights_of=None):
    """How many standard errors the mean of weight * gradient is away from its mean over slots."""
    probabilities = buffer.probabilities(np.arange(buffer.n_slots))
    # Larger where priorities are larger, but not in proportion, as if those were out of date.
    noise = np.random.default_rng(2).standard_normal(buffer.n_slots)
    gradients = np.sqrt(probabilities / probabilities.max()) + 0.3 * noise
    updates = np.empty(1500)
    for i in range(len(updates)):
        batch = buffer.sample(BATCH)
        slots = batch.slots
        weights = batch.weights.numpy()[:, 0] if weights_of is None else weights_of[slots]
        updates[i] = np.mean(weights * gradients[slots])
    distance = abs(updates.mean() - gradients[probabilities > 0].mean())
    return distance / (updates.std() / np.sqrt(len(updates)))


@pytest.mark.slow
@COMBINATIONS
def test_the_expected_update_is_uniform_replays(storage, prioritization, stratified):
    buffer = make(storage, prioritization, stratified)

    assert errors_from_uniform_replay(buffer) < 4.5


@pytest.mark.slow
@COMBINATIONS
@pytest.mark.parametrize("wrong", ["none", "without the share"])
def test_the_same_test_rejects_other_weights(wrong, storage, prioritization, stratified):
    buffer = make(storage, prioritization, stratified)
    weights = np.ones(buffer.n_slots)
    if wrong == "without the share":
        by_priority = probabilities_in(buffer, np.arange(buffer.n_slots))
        stored = by_priority > 0
        weights[stored] = 1 / (stored.sum() * by_priority[stored])

    assert errors_from_uniform_replay(buffer, weights) > 4.5
