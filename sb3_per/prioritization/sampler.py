"""The sampler: it samples slots by priority, weights them, and drops TD errors that are stale."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_per._utils import kernel, n_compiled, require_one_of
from sb3_per.options import LARGEST_TD_ERROR, PrioritizationOptions
from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.proportional import LossAdjusted, Proportional
from sb3_per.prioritization.rank_based import RankBased
from sb3_per.prioritization.sum_tree import (
    INDEPENDENT,
    STRATIFIED,
    FloatArray,
    IntArray,
    find_leaves,
    sample_distinct,
)

PRIORITIZATIONS: dict[str, Callable[..., Prioritization]] = {
    "proportional": Proportional,
    "rank": RankBased,
    "lap": LossAdjusted,
}

# What a slot's byte says. Zeros take no memory before a write.
INSERTED = 1  # it can be sampled
SAMPLED = 2  # it was sampled, and its TD error has not arrived
STALE = 4  # its transition was overwritten or removed after it was sampled
# The numbers of a sampler: how many slots are inserted, and one past the last of them.
N_INSERTED, END = range(2)

Flags = NDArray[np.uint8]


class SampledBatch(NamedTuple):
    """The slots of a batch and the importance-sampling weights of their transitions."""

    slots: IntArray  # (B,)
    weights: NDArray[np.float32]  # (B, 1)


class PrioritizedSampler:
    """
    Samples slots by priority (Schaul et al. 2016); a share of each batch may be sampled uniformly.

    Invariant: a slot can be sampled from ``insert`` until ``remove`` or ``clear``, and never
    otherwise. The caller has checked slots, TD errors and batch sizes.
    """

    def __init__(
        self, n_slots: int, options: PrioritizationOptions, generator: np.random.Generator
    ) -> None:
        kind: Any = options.prioritization
        if not callable(kind):
            require_one_of("prioritization", kind, tuple(PRIORITIZATIONS))
            kind = PRIORITIZATIONS[kind]
        self.options = options
        self.generator = generator
        self.prioritization: Prioritization = kind(
            n_slots, **options.shared, **(options.prioritization_kwargs or {})
        )
        self._stratified = bool(options.stratified)  # NumPy's would compile another kernel
        self.flags: Flags = np.zeros(n_slots, dtype=np.uint8)
        # Counted in one kernel, so that no thread sees a change that is half done.
        self._numbers = np.zeros(2, dtype=np.int64)

    @property
    def n_sampleable(self) -> int:
        """Return N: how many slots are inserted."""
        return int(self._numbers[N_INSERTED])

    @property
    def end(self) -> int:
        """Return one past the last slot that is inserted."""
        return int(self._numbers[END])

    def insert(self, slots: IntArray) -> None:
        """Insert new transitions, shape (n,), each slot named once."""
        self.prioritization.insert(slots)
        # Last: another thread may sample as soon as the number is above 0.
        _mark(self.flags, self._numbers, slots, INSERTED)

    def remove(self, slots: IntArray) -> None:
        """Keep slots, shape (n,), from being sampled; TD errors of earlier batches are stale."""
        _mark(self.flags, self._numbers, slots, 0)
        self.prioritization.remove(slots)

    def is_inserted(self, slots: Any) -> Any:
        """Return whether a slot can be sampled, or an array of it, shape (n,)."""
        return (self.flags[slots] & INSERTED) > 0

    def clear(self) -> None:
        """Forget all slots and priorities; TD errors of earlier batches are stale."""
        # First the priorities, and flags with their numbers in one kernel: Ctrl-C may come between.
        self.prioritization.clear()
        _mark(self.flags, self._numbers, np.arange(len(self.flags)), 0)

    def sample(self, batch_size: int, beta: float) -> SampledBatch:
        """
        Sample slots, in O(B log n_slots).

        :param batch_size: B, at least 1; without replacement at most ``n_sampleable``.
        :param beta: Exponent of the weights (N * P)^-beta, in [0, 1].
        """
        normalization = self.options.weight_normalization
        sample = self._sample_mixture if self.options.replacement else self._sample_distinct
        batch = sample(batch_size, beta, normalization)
        if normalization == "mean":
            weights = batch.weights
            weights /= weights.sum() / batch_size  # `mean` returns the same, 3 us later
        return batch

    def _sample_mixture(self, batch_size: int, beta: float, normalization: str) -> SampledBatch:
        """
        Sample a share of the batch uniformly, and the rest by priority.

        Each slot gets its probability under the mixture, whichever part it came from: the balance
        heuristic (Veach & Guibas 1995). The size of the uniform part is rounded up or down at
        random, so that it is share * B on average. Therefore the probabilities are exact for each
        share.
        """
        tree, n_inserted = self.prioritization.tree, self.n_sampleable
        share, n_uniform = float(self.options.uniform_share), 0
        # One number for each transition, and one that rounds the share: a second call is slower.
        numbers = self.generator.random(batch_size + (share > 0))
        if share > 0:
            n_uniform = min(int(share * batch_size + numbers[-1]), batch_size)
        uniforms, points = numbers[:n_uniform], numbers[n_uniform:batch_size]
        leaves = np.zeros(batch_size, dtype=np.int64)
        kind = STRATIFIED if self._stratified else INDEPENDENT
        total = find_leaves(tree.nodes, tree.starts, points, kind, leaves)
        slots = self.prioritization.slots_at(leaves)
        if n_uniform > 0:
            uniform_slots = slots[-n_uniform:]  # a view of the end of the batch
            _sample_uniform(self.flags, self._numbers, uniforms, self._stratified, uniform_slots)
            if slots is not leaves:  # ranks; else the leaves are filled in already
                leaves[-n_uniform:] = self.prioritization.leaves_of(uniform_slots)
        uniform_part = share / n_inserted
        reference = 0.0 if normalization == "batch" else 1 / n_inserted
        if normalization == "buffer":
            reference = uniform_part + (1 - share) * (tree.smallest() / total)
        weights = np.empty((batch_size, 1), dtype=np.float32)
        mixture = total, share, uniform_part
        _weigh_mixture(
            tree.nodes, tree.starts, leaves, slots, mixture, (reference, beta), self.flags, weights
        )
        return SampledBatch(slots, weights)

    def _sample_distinct(self, batch_size: int, beta: float, normalization: str) -> SampledBatch:
        """Sample distinct slots by priority."""
        leaves, probabilities, smallest = sample_distinct(
            self.prioritization.tree,
            batch_size,
            self.generator,
            with_smallest=normalization == "buffer",
        )
        slots = self.prioritization.slots_at(leaves)
        self.flags[slots] = (self.flags[slots] & INSERTED) | SAMPLED
        references = {"batch": probabilities.min(), "buffer": smallest}
        reference = references.get(normalization, 1 / self.n_sampleable)
        weights = (reference / probabilities) ** beta
        return SampledBatch(slots, weights.astype(np.float32)[:, None])

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """
        Set priorities from TD errors, both (B,), and drop stale ones; O(B log n_slots).

        If a slot occurs twice, its last TD error counts.
        """
        is_current = np.empty(len(slots), dtype=np.bool_)
        if not _mark_updated(self.flags, slots, is_current):
            slots, td_errors = slots[is_current], td_errors[is_current]
        self.prioritization.update(slots, td_errors)

    def probabilities(self, slots: IntArray) -> FloatArray:
        """Return the probability of slots, shape (n,), for one sample of the mixture."""
        share = self.options.uniform_share
        mixture: FloatArray = share * (self.is_inserted(slots) / max(self.n_sampleable, 1))
        mixture += (1 - share) * self.prioritization.probabilities(slots)
        return mixture

    def entries(self) -> tuple[IntArray, FloatArray, float]:
        """
        Return what a file keeps: slots, values of the prioritization, and the largest priority.

        :raises ValueError: for a prioritization of the user's own that defines no such methods.
        """
        kind = type(self.prioritization)
        # A subclass that inherits both methods from ours would silently lose what it adds.
        if kind not in PRIORITIZATIONS.values() and not {"entries", "restore"} <= vars(kind).keys():
            raise ValueError(
                "a prioritization of your own must define entries() and restore(slots, values, "
                f"largest) itself to be stored, got {kind.__name__}"
            )
        return self.prioritization.entries()

    def restore(self, slots: IntArray, values: FloatArray, largest: float) -> None:
        """Fill an empty sampler with what ``entries`` returned."""
        self.prioritization.restore(slots, values, largest)
        _mark(self.flags, self._numbers, slots, INSERTED)


def require_updatable(slots: IntArray, td_errors: FloatArray, n_slots: int) -> None:
    """Raise ValueError for slots out of range, and TD errors that are not finite in float32."""
    bad = _first_bad(slots, td_errors, n_slots)
    if bad == len(slots):
        return
    slot, td_error = slots[bad], td_errors[bad]
    if not 0 <= slot < n_slots:
        raise ValueError(f"slots must lie in [0, {n_slots}), got {slot}")
    raise ValueError(
        f"a TD error must be finite in float32, got {td_error} for slot {slot}: either the "
        "network has diverged, or the rewards or observations in it are not finite"
    )


def warm_up(options: PrioritizationOptions) -> None:
    """
    Compile all functions that a sampler needs, or load them from numba's cache.

    Otherwise the first training steps would wait for the compiler.
    """
    if not isinstance(options.prioritization, str):
        options = replace(options, prioritization="proportional", prioritization_kwargs=None)
    if options.uniform_share > 0:
        options = replace(options, uniform_share=0.5)  # a batch of two has a uniform sample
    sampler, slots = PrioritizedSampler(9, options, np.random.default_rng(0)), np.arange(9)
    n_before = n_compiled()
    sampler.insert(slots)
    if n_compiled() > n_before:
        # A log message, since a warning would end programs that turn warnings into errors.
        logging.getLogger("sb3_per").warning(
            "sb3-per compiles its functions, which takes some seconds the first time"
        )
    sampler.insert(slots)  # again: "max_stored" finds a largest priority now
    sampler.sample(2, 0.5)
    require_updatable(slots, np.ones(9), 9)
    sampler.update(slots, np.ones(9))
    sampler.remove(slots)


@kernel
def _mark(flags: Flags, numbers: IntArray, slots: IntArray, inserted: int) -> None:
    """Mark slots as INSERTED, or as removed (0); TD errors of earlier batches are stale."""
    for i in range(len(slots)):
        slot = slots[i]
        flag = flags[slot]
        numbers[N_INSERTED] += inserted - (flag & INSERTED)
        flags[slot] = inserted | STALE if flag & (SAMPLED | STALE) else inserted
        if numbers[END] <= slot:
            numbers[END] = slot + 1
    while numbers[END] > 0 and not flags[numbers[END] - 1] & INSERTED:
        numbers[END] -= 1


@kernel
def _first_bad(slots: IntArray, td_errors: FloatArray, n_slots: int) -> int:
    """Return the first position that ``require_updatable`` refuses; the length if there is none."""
    for i in range(len(slots)):
        if not (0 <= slots[i] < n_slots and abs(td_errors[i]) <= LARGEST_TD_ERROR):
            return i
    return len(slots)


@kernel
def _mark_updated(flags: Flags, slots: IntArray, is_current: NDArray[np.bool_]) -> bool:
    """Fill in which TD errors are not stale, mark their slots, and return whether all are."""
    are_all = True
    for i in range(len(slots)):
        is_current[i] = flags[slots[i]] & (INSERTED | STALE) == INSERTED
        # Stale slots stay stale until they are sampled: TD errors of earlier batches may follow.
        if is_current[i]:
            flags[slots[i]] = INSERTED
        are_all &= is_current[i]
    return are_all


@kernel
def _sample_uniform(
    flags: Flags, numbers: IntArray, uniforms: FloatArray, stratified: bool, slots: IntArray
) -> None:
    """
    Fill in uniform samples.

    A slot that cannot be sampled is replaced by another uniform sample. Few are missing: running
    episodes with hindsight replay, the write head of memory-optimised storage.
    """
    n, end = len(slots), numbers[END]
    for i in range(n):
        uniform = uniforms[i]
        point = (i + uniform) * (end / n) if stratified else uniform * end
        slot = min(int(point), end - 1)
        # The next random numbers: SplitMix64 (Steele et al. 2014), which the first one seeds.
        state = np.uint64(uniform * 2.0**53)
        while not flags[slot] & INSERTED:
            state += np.uint64(0x9E3779B97F4A7C15)
            mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
            slot = int((mixed >> np.uint64(11)) * 2.0**-53 * end)
        slots[i] = slot


@kernel
def _weigh_mixture(
    nodes: FloatArray,
    starts: IntArray,
    leaves: IntArray,
    slots: IntArray,
    mixture: tuple[float, float, float],
    reference_and_beta: tuple[float, float],
    flags: Flags,
    weights: NDArray[np.float32],
) -> None:
    """
    Mark slots as sampled, and fill in their weights (Schaul et al. 2016, section 3.4).

    A weight is (reference / P)^beta. With the reference 1 / N it is (N P)^-beta. Another reference
    divides the weights by the weight that belongs to this probability.

    :param mixture: The sum of all masses, the share that is uniform, and its part of a probability.
    :param reference_and_beta: The probability whose weight is 1, or 0 for the smallest one of the
        batch, which divides by the largest weight; and the exponent.
    """
    total, share, uniform_part = mixture
    reference, beta = reference_and_beta
    probabilities, smallest = np.empty(len(slots)), np.inf
    for i in range(len(slots)):
        probability = nodes[starts[-1] + leaves[i]] / total
        probabilities[i] = uniform_part + (1 - share) * probability
        smallest = min(smallest, probabilities[i])
        flags[slots[i]] = (flags[slots[i]] & INSERTED) | SAMPLED
    if reference == 0.0:
        reference = smallest
    for i in range(len(slots)):
        weights[i, 0] = (reference / probabilities[i]) ** beta
