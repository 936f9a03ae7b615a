"""The sampler: it samples slots by priority, weights them, and tracks awaited TD errors."""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.compilation import kernel
from sb3_per.prioritization.names import resolve_prioritization
from sb3_per.prioritization.pending_updates import PendingUpdates
from sb3_per.prioritization.sampling import SampledSlots, SamplingScheme
from sb3_per.prioritization.sum_tree import FloatArray, IntArray
from sb3_per.prioritization.uniform import InsertedSlots, mix
from sb3_per.rules import fixed, require, require_bool, require_fraction
from sb3_per.signatures import argument_names, refuse_unknown

SLOTS_AT_A_TIME = 2**18
NORMALIZATIONS = ("batch", "buffer", "mean", "none")


class SampledBatch(NamedTuple):
    """The slots of a batch and the importance-sampling weights of their transitions."""

    slots: IntArray  # (B,)
    weights: NDArray[np.float32]  # (B, 1)


class PrioritizedSampler:
    """
    Samples slots by priority (Schaul et al. 2016); a share of each batch may be sampled uniformly.

    Invariant: a slot can be sampled from ``insert`` until ``remove`` or ``clear``, and never
    otherwise. The caller has checked the arguments.

    :param n_slots: Number of slots.
    :param prioritization: A name, or a class that obeys ``Prioritization``.
    :param prioritization_kwargs: Options of that class alone; None for none.
    :param uniform_share: The part of each batch that is sampled uniformly, in [0, 1].
    :param weight_normalization: Divide the weights by the largest of the ``"batch"``, by the
        largest that any slot could have (``"buffer"``), by the ``"mean"`` of the batch, or not at
        all (``"none"``).
    :param stratified: As for ``SamplingScheme``.
    :param replacement: As for ``SamplingScheme``; ``uniform_share`` needs it to be True.
    :param generator: The random generator.
    :param options: The options that all prioritizations share, such as alpha.
    :raises ValueError: for an option out of its range.
    """

    uniform_share: float = fixed("uniform_share")
    weight_normalization: Literal["batch", "buffer", "mean", "none"] = fixed("weight_normalization")

    def __init__(
        self,
        n_slots: int,
        *,
        generator: np.random.Generator,
        prioritization: str | Callable[..., Prioritization] = "proportional",
        prioritization_kwargs: dict[str, Any] | None = None,
        uniform_share: float = 0.0,
        weight_normalization: Literal["batch", "buffer", "mean", "none"] = "batch",
        stratified: bool = True,
        replacement: bool = True,
        **options: Any,
    ) -> None:
        kind = resolve_prioritization(prioritization)
        own_options = {} if prioritization_kwargs is None else prioritization_kwargs
        check_options(own_options, uniform_share, weight_normalization, replacement)
        require_bool("stratified", stratified)
        _refuse_unknown_options(kind, own_options, shared=options)
        self.prioritization = kind(n_slots, **options, **own_options)
        # A function or a partial may choose options that nothing else knows.
        self.is_made_by_its_class = isinstance(kind, type)
        self.prioritization_kwargs = dict(own_options)
        self.uniform_share = float(uniform_share)
        self.weight_normalization = weight_normalization
        self.scheme = SamplingScheme(bool(stratified), bool(replacement))
        self.scheme.compile_kernels()
        compile_kernels()
        self.generator = generator
        self.n_sampleable = 0  # N: how many slots are inserted
        self._pending = PendingUpdates(n_slots)
        self._inserted = InsertedSlots(n_slots) if self.uniform_share > 0 else None

    def insert(self, slots: IntArray) -> None:
        """Insert new transitions, shape (n,), each slot named once; the newest come last."""
        self.n_sampleable += self._pending.insert(slots)
        self.prioritization.insert(slots)
        if self._inserted is not None:
            self._inserted.insert(slots)

    def remove(self, slots: IntArray) -> None:
        """Keep slots, shape (n,), from being sampled; TD errors that they await will be late."""
        self.n_sampleable -= self._pending.remove(slots)
        self.prioritization.remove(slots)
        if self._inserted is not None:
            self._inserted.remove(slots)

    def clear(self) -> None:
        """Forget all slots and priorities; TD errors that are awaited will be late."""
        self._pending.remove(np.arange(len(self._pending.states)))
        self.n_sampleable = 0
        self.prioritization.clear()
        if self._inserted is not None:
            self._inserted.clear()

    def sample(self, batch_size: int, beta: float) -> SampledBatch:
        """
        Sample slots, in O(B log n_slots).

        :param batch_size: B, at least 1; without replacement at most ``n_sampleable``.
        :param beta: Exponent of the weights (N * P)^-beta, in [0, 1].
        """
        if self._inserted is not None:
            sampled = self._sample_mixture(batch_size, self._inserted)
        else:
            uniforms = self.generator.random(self.scheme.n_uniforms(batch_size))
            sampled = self._sample_by_priority(batch_size, uniforms)
        self._pending.sample(sampled.slots)
        return SampledBatch(sampled.slots, self._weights(sampled, beta))

    def _sample_by_priority(self, batch_size: int, uniforms: FloatArray) -> SampledSlots:
        with_smallest = self.weight_normalization == "buffer"
        return self.prioritization.sample(
            self.scheme, batch_size, uniforms, with_smallest=with_smallest
        )

    def _sample_mixture(self, batch_size: int, inserted: InsertedSlots) -> SampledSlots:
        """
        Sample a share of the batch uniformly and the rest by priority.

        Each slot gets its probability under the mixture, whichever part it came from: the balance
        heuristic (Veach & Guibas 1995). The number of uniform samples is share * B, rounded up or
        down at random so that it is share * B on average. Therefore the probabilities are exact for
        each share, and no weight exceeds share^-beta.
        """
        share, uniforms = self.uniform_share, self.generator.random(batch_size + 1)
        n_uniform = min(int(share * batch_size + uniforms[-1]), batch_size)
        n_prioritized = batch_size - n_uniform
        # At least one sample: its smallest probability may be needed even if the sample is not.
        n_asked = max(n_prioritized, 1)
        sampled = self._sample_by_priority(n_asked, uniforms[batch_size - n_asked : batch_size])
        by_uniform = inserted.sample(self.scheme, n_uniform, uniforms[:n_uniform])
        probabilities = np.empty(batch_size)
        slots = mix(
            (sampled.slots[:n_prioritized], by_uniform),
            (sampled.probabilities[:n_prioritized], self.prioritization.probabilities(by_uniform)),
            share,
            self.n_sampleable,
            probabilities,
        )
        smallest_of_all = share / self.n_sampleable + (1 - share) * sampled.smallest_probability
        return SampledSlots(slots, probabilities, smallest_of_all)

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """
        Set priorities from TD errors, both of shape (B,), in O(B log n_slots).

        A TD error that comes late is dropped: its transition was replaced or removed after it was
        sampled. If a slot occurs twice, its last TD error counts.
        """
        in_time, n_late = self._pending.settle(slots)
        if n_late > 0:
            slots, td_errors = slots[in_time], td_errors[in_time]
        self.prioritization.update(slots, td_errors)

    def are_late(self, slots: IntArray) -> NDArray[np.bool_]:
        """Return which slots, shape (B,), await late TD errors; any whole numbers are allowed."""
        return self._pending.are_late(slots)

    def probabilities(self, slots: IntArray) -> FloatArray:
        """Return the probability of slots, shape (n,), for one sample of the mixture."""
        by_priority = self.prioritization.probabilities(slots)
        if self._inserted is None:
            return by_priority
        uniform = self._inserted.are_inserted(slots) / max(self.n_sampleable, 1)
        mixture: FloatArray = self.uniform_share * uniform + (1 - self.uniform_share) * by_priority
        return mixture

    @property
    def pending_states(self) -> NDArray[np.int8]:
        """Return which slots await TD errors, shape (n_slots,), to be stored and restored."""
        return self._pending.states

    def options(self) -> dict[str, Any]:
        """Return the options of this class, without the options of the prioritization itself."""
        return {
            "uniform_share": self.uniform_share,
            "weight_normalization": self.weight_normalization,
            "prioritization_kwargs": dict(self.prioritization_kwargs),
            **self.scheme._asdict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """
        Continue from a state of the prioritization; restore ``pending_states`` before this call.

        :raises ValueError: for a state that does not fit.
        """
        self.prioritization.restore(state)
        self.find_inserted()

    def find_inserted(self) -> None:
        """Find out from the restored prioritization which slots are inserted; O(N log N)."""
        self.n_sampleable = 0
        if self._inserted is not None:
            self._inserted.clear()
        n_slots = len(self._pending.states)
        # In parts: a large buffer that is nearly empty must not take memory for all its slots.
        for start in range(0, n_slots, SLOTS_AT_A_TIME):
            slots = np.arange(start, min(start + SLOTS_AT_A_TIME, n_slots))
            is_inserted = self.prioritization.probabilities(slots) > 0
            inserted = slots[is_inserted]
            self.n_sampleable += len(inserted)
            # The states that version 0.1.0 stored do not say which slots are inserted.
            self._pending.remove(slots[~is_inserted])
            self._pending.insert(inserted[~self._pending.are_inserted(inserted)])
            if self._inserted is not None:
                self._inserted.insert(inserted)

    def _weights(self, sampled: SampledSlots, beta: float) -> NDArray[np.float32]:
        reference, divided_by = 1 / max(self.n_sampleable, 1), self.weight_normalization
        if divided_by == "batch":
            reference = smallest(sampled.probabilities)
        elif divided_by == "buffer":
            reference = sampled.smallest_probability
        weights = importance_weights(sampled.probabilities, reference, beta)
        if divided_by == "mean":
            weights /= weights.mean()
        return weights


def check_options(
    prioritization_kwargs: object,
    uniform_share: float,
    weight_normalization: str,
    replacement: bool,
) -> None:
    """Raise ValueError for an option of ``PrioritizedSampler`` out of its range."""
    is_dict = isinstance(prioritization_kwargs, dict)
    require(is_dict, "prioritization_kwargs must be a dict or None", prioritization_kwargs)
    require_fraction("uniform_share", uniform_share)
    rule = f"weight_normalization must be one of {NORMALIZATIONS}"
    require(weight_normalization in NORMALIZATIONS, rule, weight_normalization)
    require_bool("replacement", replacement)
    rule = "uniform_share must be 0 with replacement=False, since no exact weights are known there"
    require(replacement or uniform_share == 0, rule, uniform_share)


def _refuse_unknown_options(
    kind: Callable[..., Prioritization], given: dict[str, Any], shared: dict[str, Any]
) -> None:
    """Raise ValueError for options in ``prioritization_kwargs`` that are not those of the class."""
    hint = "it is shared by all prioritizations, so pass it directly"
    names = argument_names(kind) if isinstance(kind, type) else None
    known = {*(given if names is None else names)} - {*shared, "n_slots"}
    hints = dict.fromkeys(shared, hint)
    refuse_unknown("prioritization_kwargs has no option", given, sorted(known), hints)


@kernel
def importance_weights(
    probabilities: FloatArray, reference: float, beta: float
) -> NDArray[np.float32]:
    """
    Return importance-sampling weights (N * P)^-beta, divided by the weight of a reference
    probability: (reference / P)^beta (Schaul et al. 2016, section 3.4).

    :param probabilities: P(i) of each sampled slot, shape (B,), all > 0.
    :param reference: The probability whose weight is 1. With the smallest probability, weights are
        divided by the largest weight; with 1 / N, they are not divided.
    :param beta: 0 for no correction, 1 for full correction.
    :return: Weights, shape (B, 1).
    """
    weights = np.empty((len(probabilities), 1), dtype=np.float32)
    for i in range(len(probabilities)):
        weights[i, 0] = (reference / probabilities[i]) ** beta
    return weights


@kernel
def smallest(probabilities: FloatArray) -> float:
    """Return the smallest of probabilities, shape (B,); NumPy's min takes three times as long."""
    least = np.inf
    for i in range(len(probabilities)):
        least = min(least, probabilities[i])
    return least


@cache
def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache, so that no later call waits."""
    importance_weights(np.ones(1), 1.0, 1.0)
    smallest(np.ones(1))
