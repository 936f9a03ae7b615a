"""What must always hold of a buffer, and whether two buffers are the same."""

import copy
import math
from itertools import pairwise

import numpy as np

from sb3_per import PrioritizedHerReplayBuffer, load_buffer, save_buffer
from sb3_per.prioritization.proportional import Proportional
from sb3_per.prioritization.rank_based import RankBased


def check_valid(buffer, finite=True):
    """Check a buffer's invariants; ``finite``: whether what is stored is finite, too."""
    shares = buffer.prioritization.probabilities(np.arange(buffer.n_slots))
    drawable = np.arange(buffer.n_slots) < len(buffer)
    if isinstance(buffer, PrioritizedHerReplayBuffer):
        drawable &= buffer.ep_length.flatten() > 0
    if buffer.optimize_memory_usage and buffer.full:
        drawable[buffer._slots_of(buffer.pos)] = False
    assert (shares > 0).tolist() == drawable.tolist(), "a wrong set of slots can be sampled"
    assert buffer.n_sampleable == drawable.sum()
    if buffer.n_sampleable:
        assert math.isclose(math.fsum(shares), 1.0, rel_tol=1e-9), "probabilities do not add up"
    check = {Proportional: check_proportional, RankBased: check_ranks}
    check.get(type(buffer.prioritization), lambda prioritization: None)(buffer.prioritization)
    for name, rows in arrays_of(buffer._state_dict()).items() if finite else ():
        assert rows.dtype.kind in "biu" or np.isfinite(rows).all(), f"{name} is not finite"


def check_proportional(prioritization):
    tree = prioritization.tree
    check_sums(tree)
    assert prioritization.largest_priority >= prioritization.initial_priority
    largest = prioritization.largest_priority**prioritization.alpha
    assert tree.leaf_masses.max() <= largest * (1 + 1e-12), "a leaf is above the largest priority"


def check_ranks(prioritization):
    slots, priorities = prioritization._order.entries()
    ranks = prioritization._order.ranks(slots)
    assert ranks.tolist() == list(range(len(slots))), "ranks and order differ"
    assert (np.diff(priorities) <= 0).all(), "priorities are out of order"
    assert len(priorities) == 0 or priorities[0] <= prioritization.largest_priority
    check_sums(prioritization.tree)
    weights = prioritization.tree.leaf_masses
    expected = np.arange(1.0, len(slots) + 1) ** -prioritization.alpha
    np.testing.assert_allclose(weights[: len(slots)], expected, rtol=1e-15)
    assert not weights[len(slots) :].any(), "a rank without a slot can be sampled"


def check_sums(tree):
    """Every node is the sum of its children, in their order."""
    bounds = [*tree.starts.tolist(), len(tree.nodes)]
    levels = [tree.nodes[start:stop] for start, stop in pairwise(bounds)]
    for parents, children in pairwise(levels):
        sums = np.zeros(len(children) // 8)
        for child in range(8):
            sums += children[child::8]
        np.testing.assert_array_equal(parents[: len(sums)], sums)
    assert math.isclose(tree.total, math.fsum(tree.leaf_masses), rel_tol=1e-12, abs_tol=0)


def assert_same_batch(left, right):
    """Two batches are the same, bit by bit."""
    for found, other in zip(left, right, strict=True):
        parts = found if isinstance(found, dict) else {"": found}
        others = other if isinstance(other, dict) else {"": other}
        assert parts.keys() == others.keys()
        for key, part in parts.items():
            assert part is others[key] is None or np.array_equal(part, others[key])
            assert part is None or part.dtype == others[key].dtype


def assert_same_buffer(left, right):
    """Contents, generators and probabilities of two buffers are the same, bit by bit."""
    assert_same_state(left._state_dict(), right._state_dict())
    slots = np.arange(left.n_slots)
    assert left.probabilities(slots).tolist() == right.probabilities(slots).tolist()


def assert_same_state(left, right, name="state"):
    if isinstance(left, dict):
        assert left.keys() == right.keys(), name
        for key in left:
            assert_same_state(left[key], right[key], f"{name}/{key}")
    elif isinstance(left, list):
        for i, pair in enumerate(zip(left, right, strict=True)):
            assert_same_state(*pair, f"{name}/{i}")
    elif isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right, err_msg=name)
    else:
        assert left == right, name


def arrays_of(state):
    """Return all arrays in a state, by name."""
    if isinstance(state, np.ndarray):
        return {"": state}
    items = state.items() if isinstance(state, dict) else enumerate(state)
    parts = {key: arrays_of(x) for key, x in items if isinstance(x, dict | list | np.ndarray)}
    return {
        f"{key}/{name}".rstrip("/"): x for key, part in parts.items() for name, x in part.items()
    }


def saved_and_loaded(buffer, path):
    """Return a copy of a buffer, emptied and filled from the buffer's file."""
    save_buffer(buffer, path)
    loaded = copy.deepcopy(buffer)
    if getattr(buffer, "env", None) is not None:  # of hindsight replay, which is not copied
        loaded.set_env(buffer.env)
    loaded.reset()
    loaded.sampler.flags[:] = 0  # a new buffer knows of no TD errors that are stale
    load_buffer(path, loaded)
    return loaded
