"""The sampler: it samples slots by priority, weights them, and drops TD errors that are stale."""

import json
import logging
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_per._utils import as_arrays, generator_from, generator_state, kernel, require_one_of
from sb3_per.options import PrioritizationOptions
from sb3_per.prioritization.proportional import (
    LossAdjusted,
    Prioritization,
    Proportional,
    stored_array,
)
from sb3_per.prioritization.rank_based import RankBased
from sb3_per.prioritization.sum_tree import (
    FloatArray,
    IntArray,
    SampledSlots,
    SamplingScheme,
)

PRIORITIZATIONS: dict[str, Callable[..., Prioritization]] = {
    "proportional": Proportional,
    "rank": RankBased,
    "lap": LossAdjusted,
}

# What a slot's byte says: it can be sampled; it was sampled, and its TD error has not come yet; its
# transition was overwritten or removed after it was sampled. Zeros take no memory before a write.
INSERTED, SAMPLED, STALE = 1, 2, 4

Flags = NDArray[np.uint8]


class SampledBatch(NamedTuple):
    """The slots of a batch and the importance-sampling weights of their transitions."""

    slots: IntArray  # (B,)
    weights: NDArray[np.float32]  # (B, 1)


class PrioritizedSampler:
    """
    Samples slots by priority (Schaul et al. 2016); a share of each batch may be sampled uniformly.

    Invariant: a slot can be sampled from ``insert`` until ``remove`` or ``clear``, and never
    otherwise. The caller has checked the arguments.
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
        self.scheme = SamplingScheme(bool(options.stratified), bool(options.replacement))
        self.n_demonstrations = 0  # the first slots
        self.flags: Flags = np.zeros(n_slots, dtype=np.uint8)
        # N, in an array that only kernels change: no thread sees a half-done change.
        self._n_inserted = np.zeros(1, dtype=np.int64)
        self._uniform = UniformSlots(n_slots) if options.uniform_share > 0 else None

    @property
    def n_sampleable(self) -> int:
        """Return N: how many slots are inserted."""
        return int(self._n_inserted[0])

    def insert(self, slots: IntArray) -> None:
        """Insert new transitions, shape (n,), each slot named once."""
        self.prioritization.insert(slots)
        if self._uniform is not None:
            self._uniform.insert(slots)
        # Last: another thread may sample as soon as the number is above 0.
        _mark_inserted(self.flags, self._n_inserted, slots)

    def remove(self, slots: IntArray) -> None:
        """Keep slots, shape (n,), from being sampled; TD errors of earlier batches are stale."""
        _mark_removed(self.flags, self._n_inserted, slots)
        if self._uniform is not None:
            self._uniform.remove(slots)
        self.prioritization.remove(slots)

    def is_inserted(self, slots: Any) -> Any:
        """Return whether a slot can be sampled, or an array of it, shape (n,)."""
        return (self.flags[slots] & INSERTED) > 0

    def clear(self) -> None:
        """Forget all slots and priorities; TD errors of earlier batches are stale."""
        self._n_inserted[0] = 0
        self.flags[:] = np.where(self.flags & (SAMPLED | STALE), STALE, 0)
        if self._uniform is not None:
            self._uniform = UniformSlots(len(self.flags))
        self.prioritization.clear()

    def sample(self, batch_size: int, beta: float) -> SampledBatch:
        """
        Sample slots, in O(B log n_slots).

        :param batch_size: B, at least 1; without replacement at most ``n_sampleable``.
        :param beta: Exponent of the weights (N * P)^-beta, in [0, 1].
        """
        if self.options.demonstration_share > 0 and self.n_demonstrations > 0:
            sampled = self._sample_with_demonstrations(batch_size)
        else:
            sampled = self._sample_all(batch_size)
        _mark_sampled(self.flags, sampled.slots)
        return SampledBatch(sampled.slots, self._weights(sampled, beta))

    def _sample_all(self, batch_size: int) -> SampledSlots:
        if self._uniform is not None:
            return self._sample_mixture(batch_size, self._uniform)
        uniforms = self.generator.random(self.scheme.n_uniforms(batch_size))
        return self._sample_by_priority(batch_size, uniforms)

    def _sample_by_priority(self, batch_size: int, uniforms: FloatArray) -> SampledSlots:
        prioritization: Any = self.prioritization
        with_smallest = self.options.weight_normalization == "buffer"
        if hasattr(prioritization, "sample"):  # a class of the user's own
            own: SampledSlots = prioritization.sample(
                self.scheme, batch_size, uniforms, with_smallest=with_smallest
            )
            return own
        leaves, probabilities, smallest = self.scheme.sample(
            prioritization.tree, batch_size, uniforms, with_smallest=with_smallest
        )
        return SampledSlots(prioritization.slots_at(leaves), probabilities, smallest)

    def _sample_mixture(self, batch_size: int, uniform: "UniformSlots") -> SampledSlots:
        """
        Sample a share of the batch uniformly and the rest by priority.

        Each slot gets its probability under the mixture, whichever part it came from: the balance
        heuristic (Veach & Guibas 1995). The number of uniform samples is share * B, rounded up or
        down at random so that it is share * B on average. Therefore the probabilities are exact for
        each share, and no weight exceeds share^-beta.
        """
        share, uniforms = self.options.uniform_share, self.generator.random(batch_size + 1)
        n_uniform = min(int(share * batch_size + uniforms[-1]), batch_size)
        n_prioritized = batch_size - n_uniform
        # At least one sample: its smallest probability may be needed even if the sample is not.
        n_asked = max(n_prioritized, 1)
        sampled = self._sample_by_priority(n_asked, uniforms[batch_size - n_asked : batch_size])
        by_uniform = uniform.sample(uniforms[:n_uniform], self.scheme.stratified)
        slots = np.concatenate([sampled.slots[:n_prioritized], by_uniform])
        of_uniform = self.prioritization.probabilities(by_uniform)
        by_priority = np.concatenate([sampled.probabilities[:n_prioritized], of_uniform])
        uniform_part = share / self.n_sampleable
        smallest_of_all = uniform_part + (1 - share) * sampled.smallest_probability
        return SampledSlots(slots, uniform_part + (1 - share) * by_priority, smallest_of_all)

    def _sample_with_demonstrations(self, batch_size: int) -> SampledSlots:
        """Sample a share of the batch uniformly from demonstrations; see ``_sample_mixture``."""
        share = self.options.demonstration_share
        n_demonstrations = min(int(share * batch_size + self.generator.random()), batch_size)
        n_others = batch_size - n_demonstrations
        uniforms = self.generator.random(n_demonstrations)
        chosen = np.empty(n_demonstrations, dtype=np.int64)
        _sample_first(self.n_demonstrations, uniforms, self.scheme.stratified, chosen)
        others = self._sample_all(max(n_others, 1))
        slots = np.concatenate([others.slots[:n_others], chosen])
        by_base = np.concatenate(
            [others.probabilities[:n_others], self._base_probabilities(chosen)]
        )
        return SampledSlots(slots, self._with_demonstrations(slots, by_base))

    def _with_demonstrations(self, slots: IntArray, by_base: FloatArray) -> FloatArray:
        share, n = self.options.demonstration_share, self.n_demonstrations
        if share == 0 or n == 0:
            return by_base
        mixture: FloatArray = share * (slots < n) / n + (1 - share) * by_base
        return mixture

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """
        Set priorities from TD errors, both of shape (B,), in O(B log n_slots).

        Stale TD errors are dropped: their transition was overwritten or removed after it was
        sampled. If a slot occurs twice, its last TD error counts.
        """
        is_current = np.empty(len(slots), dtype=np.bool_)
        if _mark_updated(self.flags, slots, is_current) < len(slots):
            slots, td_errors = slots[is_current], td_errors[is_current]
        if self.options.demonstration_bonus > 0:
            bonus = self.options.demonstration_bonus * (slots < self.n_demonstrations)
            td_errors = np.abs(td_errors) + bonus
        self.prioritization.update(slots, td_errors)

    def probabilities(self, slots: IntArray) -> FloatArray:
        """Return the probability of slots, shape (n,), for one sample of the mixture."""
        return self._with_demonstrations(slots, self._base_probabilities(slots))

    def _base_probabilities(self, slots: IntArray) -> FloatArray:
        by_priority = self.prioritization.probabilities(slots)
        if self._uniform is None:
            return by_priority
        share = self.options.uniform_share
        uniform = (self.flags[slots] & INSERTED) / max(self.n_sampleable, 1)
        mixture: FloatArray = share * uniform + (1 - share) * by_priority
        return mixture

    def stored_flags(self) -> Flags:
        """Return the flags up to the last slot that has one, to be stored."""
        return np.trim_zeros(self.flags, "b")

    def state_dict(self) -> dict[str, Any]:
        """
        Return what ``load_state_dict`` needs: arrays, and values that JSON can hold.

        :raises ValueError: for a prioritization of the user's own whose state would be incomplete.
        """
        kind = type(self.prioritization)
        # A subclass that inherits both methods from ours would silently lose what it adds.
        defined = {"state_dict", "load_state_dict"} <= vars(kind).keys()
        if kind not in PRIORITIZATIONS.values() and not defined:
            raise ValueError(
                "a prioritization of your own must define state_dict() and load_state_dict(state) "
                f"itself to be stored, so that what it adds is stored, too, got {kind.__name__}"
            )
        return {
            "generator": generator_state(self.generator),
            "options": self._options_of_priorities(),
            "flags": self.stored_flags(),
            "priorities": self.prioritization.state_dict(),
        }

    def _options_of_priorities(self) -> dict[str, Any]:
        """Return the options that stored priorities depend on, as JSON returns them."""
        options = {**self.options.shared, "prioritization": self.options.prioritization}
        options["prioritization_kwargs"] = self.options.prioritization_kwargs
        text = json.dumps(options, default=_as_json)
        as_read: dict[str, Any] = json.loads(text)
        return as_read

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Continue from a state. Slots that have a priority can be sampled.

        If options of priorities differ, nothing can be sampled, and a warning says so.

        :raises ValueError: for a state that does not fit; the sampler is of no use then.
        """
        self.clear()
        self.generator = generator_from(state["generator"])
        options, stored = self._options_of_priorities(), state["options"]
        if options != stored:
            differ = {
                name: stored.get(name) for name in options if options[name] != stored.get(name)
            }
            warnings.warn(
                "the stored priorities do not fit the options of the buffer, so all transitions "
                f"get the initial priority; they were stored with {differ}",
                stacklevel=6,
            )
            return
        flags = stored_array(
            {"flags": as_arrays(state["flags"])}, "flags", np.uint8, len(self.flags)
        )
        self.prioritization.load_state_dict(as_arrays(state["priorities"]))
        slots = np.arange(len(self.flags))
        inserted = slots[self.prioritization.probabilities(slots) > 0]
        self.flags[: len(flags)] |= flags & (SAMPLED | STALE)
        self.flags[inserted] |= INSERTED
        self._n_inserted[0] = len(inserted)
        if self._uniform is not None and len(inserted) > 0:
            self._uniform.insert(inserted)

    def _weights(self, sampled: SampledSlots, beta: float) -> NDArray[np.float32]:
        divided_by = self.options.weight_normalization
        reference = 1 / max(self.n_sampleable, 1)
        if divided_by == "batch":
            reference = 0.0
        elif divided_by == "buffer":
            reference = sampled.smallest_probability
        weights = importance_weights(sampled.probabilities, reference, beta)
        if divided_by == "mean":
            weights /= weights.sum() / len(weights)  # `mean` returns the same, 3 us later
        return weights


class UniformSlots:
    """
    The slots that can be sampled, for uniform sampling in the order of slots.

    Invariant: they are the first ``end`` slots, except for those in ``missing``, which are sorted.
    Few are missing: running episodes with hindsight replay, the write head of memory-optimised
    storage.
    """

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self._set = 0, np.empty(0, dtype=np.int64)  # end, missing; one tuple for other threads

    def insert(self, slots: IntArray) -> None:
        """Insert slots, shape (n,), each named once, in the order of the ring."""
        end, missing = self._set
        if len(slots) == 0 or (end == self._n_slots and len(missing) == 0):
            return
        last = end + len(slots) - 1
        if slots[0] == end and slots[-1] == last:  # a new row
            self._set = last + 1, missing
        elif slots.max() >= end or np.isin(slots, missing).any():
            new_end = max(end, int(slots.max()) + 1)
            gaps = np.concatenate([missing, np.arange(end, new_end)])
            self._set = new_end, np.setdiff1d(gaps, slots)

    def remove(self, slots: IntArray) -> None:
        """Remove slots, shape (n,)."""
        end, missing = self._set
        self._set = end, np.union1d(missing, slots[slots < end])

    def sample(self, uniforms: FloatArray, stratified: bool) -> IntArray:
        """
        Return sampled slots, shape (B,).

        :param uniforms: Random numbers in [0, 1), shape (B,).
        :param stratified: One sample from each of B equal parts, or independent samples.
        """
        end, missing = self._set
        slots = np.empty(len(uniforms), dtype=np.int64)
        _sample_first(end - len(missing), uniforms, stratified, slots)
        if len(missing) > 0:  # so far these are the numbers of present slots: skip missing ones
            n_before = missing - np.arange(len(missing))  # present slots before each missing one
            slots += np.searchsorted(n_before, slots, side="right")
        return slots


def _as_json(value: Any) -> Any:
    """Return a value that JSON does not know as numbers or text."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return getattr(value, "__qualname__", str(type(value)))


@cache
def warm_up(kind: str, scheme: SamplingScheme, with_extremes: bool, with_share: bool) -> None:
    """
    Compile all functions that a sampler needs, or load them from numba's cache.

    Otherwise the first training steps would wait for the compiler.
    """
    started = time.monotonic()
    options = PrioritizationOptions(
        kind,
        stratified=scheme.stratified,
        replacement=scheme.replacement,
        uniform_share=0.5 if with_share else 0.0,
        weight_normalization="buffer" if with_extremes else "batch",
        new_priority="max_stored" if with_extremes else "max_seen",
    )
    sampler = PrioritizedSampler(9, options, np.random.default_rng(0))
    sampler.insert(np.arange(9))
    slots = sampler.sample(2, 0.5).slots
    sampler.update(slots, np.ones(2))
    sampler.remove(slots)
    sampler.insert(slots)  # "max_stored" now finds a largest priority
    if time.monotonic() - started > 1.0:
        # A log message, since a warning would end programs that turn warnings into errors.
        logging.getLogger("sb3_per").warning(
            "sb3-per has compiled its functions, which takes some seconds the first time"
        )


@kernel
def _mark_inserted(flags: Flags, n_inserted: IntArray, slots: IntArray) -> None:
    for i in range(len(slots)):
        flag = flags[slots[i]]
        n_inserted[0] += not flag & INSERTED
        flags[slots[i]] = INSERTED | STALE if flag & (SAMPLED | STALE) else INSERTED


@kernel
def _mark_removed(flags: Flags, n_inserted: IntArray, slots: IntArray) -> None:
    for i in range(len(slots)):
        flag = flags[slots[i]]
        n_inserted[0] -= flag & INSERTED
        flags[slots[i]] = STALE if flag & (SAMPLED | STALE) else 0


@kernel
def _mark_sampled(flags: Flags, slots: IntArray) -> None:
    for i in range(len(slots)):
        flags[slots[i]] = (flags[slots[i]] & INSERTED) | SAMPLED


@kernel
def _mark_updated(flags: Flags, slots: IntArray, is_current: NDArray[np.bool_]) -> int:
    """Fill in which TD errors are not stale, and return how many."""
    n_current = 0
    for i in range(len(slots)):
        is_current[i] = flags[slots[i]] & (INSERTED | STALE) == INSERTED
        n_current += is_current[i]
    # A second pass, since a slot may be named twice. Stale slots stay stale until they are sampled:
    # more TD errors may come from batches of before.
    for i in range(len(slots)):
        if is_current[i]:
            flags[slots[i]] = INSERTED
    return n_current


@kernel
def _sample_first(n: int, uniforms: FloatArray, stratified: bool, slots: IntArray) -> None:
    """Fill in uniform samples of the first ``n`` slots, as a tree of ``n`` ones would give them."""
    for i in range(len(uniforms)):
        mass = (i + uniforms[i]) * (n / len(uniforms)) if stratified else uniforms[i] * n
        slots[i] = min(int(mass), n - 1)


def importance_weights(
    probabilities: FloatArray, reference: float, beta: float
) -> NDArray[np.float32]:
    """
    Return importance-sampling weights (N * P)^-beta, divided by the weight of a reference
    probability: (reference / P)^beta (Schaul et al. 2016, section 3.4).

    :param probabilities: P(i) of each sampled slot, shape (B,), all > 0.
    :param reference: The probability whose weight is 1: with 1 / N, weights are not divided. 0
        stands for the smallest of ``probabilities``, which divides by the largest weight.
    :param beta: 0 for no correction, 1 for full correction.
    :return: Weights, shape (B, 1).
    """
    weights = np.empty((len(probabilities), 1), dtype=np.float32)
    _weigh(probabilities, reference, beta, weights)
    return weights


@kernel
def _weigh(
    probabilities: FloatArray, reference: float, beta: float, weights: NDArray[np.float32]
) -> None:
    if reference == 0.0:
        reference = np.inf
        for i in range(len(probabilities)):
            reference = min(reference, probabilities[i])
    for i in range(len(probabilities)):
        weights[i, 0] = (reference / probabilities[i]) ** beta
