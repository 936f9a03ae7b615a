"""A uniform share on whole buffers: fully corrected, the expected update is uniform replay's."""

import itertools

import numpy as np
import pytest
from builders import BOX, DICT, TWO_ACTIONS, fill, fill_with_stacks, probabilities_in
from gymnasium import spaces

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

STACK = spaces.Box(0, 255, (4, 4, 3), np.uint8)
SIZE, BATCH, SHARE = 48, 32, 0.5
MEMORY_OPTIMISED = {"optimize_memory_usage": True, "handle_timeout_termination": False}
STORAGES = {
    "several environments": {"n_envs": 3},
    "memory-optimised": {"n_envs": 2, **MEMORY_OPTIMISED},
    "n-step": {"n_steps": 3},
    "Dict": {"space": DICT, "n_envs": 2, "n_steps": 3},
    "frames": {"space": STACK, "n_stack": 3, "n_steps": 2},
}


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


def distance(updates, expected):
    """How many standard errors the mean of updates is away from what is expected."""
    return abs(updates.mean() - expected) / (updates.std() / np.sqrt(len(updates)))


# Priorities stay as they are, so that the probabilities of all batches are the same.
@pytest.mark.filterwarnings("ignore:10 batches were sampled")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "prioritization", "stratified"),
    list(itertools.product(STORAGES, ["proportional", "rank", "lap"], [True, False])),
)
def test_the_expected_update_is_uniform_replays(storage, prioritization, stratified):
    """4.5 standard errors are exceeded in 7 of a million seeds; other weights exceed them."""
    buffer = make(storage, prioritization, stratified)
    slots = np.arange(buffer.n_slots)
    probabilities, by_priority = buffer.probabilities(slots), probabilities_in(buffer, slots)
    # Larger where priorities are larger, but not in proportion, as if those were out of date.
    noise = np.random.default_rng(2).standard_normal(buffer.n_slots)
    gradients = np.sqrt(probabilities / probabilities.max()) + 0.3 * noise
    with np.errstate(divide="ignore"):
        without_share = 1 / ((probabilities > 0).sum() * by_priority)

    updates = np.empty((3, 1500))
    for i in range(1500):
        batch = buffer.sample(BATCH)
        of_batch = gradients[batch.slots]
        updates[0, i] = np.mean(batch.weights.numpy()[:, 0] * of_batch)
        updates[1, i] = np.mean(of_batch)
        updates[2, i] = np.mean(without_share[batch.slots] * of_batch)

    expected = gradients[probabilities > 0].mean()
    assert distance(updates[0], expected) < 4.5
    assert distance(updates[1], expected) > 4.5
    assert distance(updates[2], expected) > 4.5
