"""What a buffer shows of its sampler: options as attributes, and probabilities."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from numpy.typing import ArrayLike

from sb3_per.buffers.arguments import as_slots
from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.sampler import PrioritizedSampler
from sb3_per.prioritization.sampling import SamplingScheme
from sb3_per.prioritization.sum_tree import FloatArray
from sb3_per.rules import require, require_fraction


def _kept(name: str) -> property:
    """Return a property with the value of an option; setting another value raises ValueError."""

    def value_of(self: "SamplerOptions") -> Any:
        return self.options()[name]

    def keep(self: "SamplerOptions", value: Any) -> None:
        kept = value_of(self)
        require(value == kept, f"{name} must stay {kept!r} (make a new buffer to change it)", value)

    return property(value_of, keep, doc=f"The option ``{name}``; it cannot change.")


class SamplerOptions:
    """Gives a prioritized buffer the attribute beta, and what its sampler keeps."""

    sampler: PrioritizedSampler
    prioritization_options: dict[str, Any]
    n_slots: int
    hand_over_new_rows: Callable[[], None]

    alpha = _kept("alpha")
    eps = _kept("eps")
    td_error_clip = _kept("td_error_clip")
    initial_priority = _kept("initial_priority")
    new_priority = _kept("new_priority")
    uniform_share = _kept("uniform_share")
    weight_normalization = _kept("weight_normalization")
    stratified = _kept("stratified")
    replacement = _kept("replacement")
    prioritization_kwargs = _kept("prioritization_kwargs")

    @property
    def beta(self) -> float:
        """Return the exponent of the weights: 0 corrects nothing, 1 everything."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        require_fraction("beta", beta)
        self._beta = float(beta)

    @property
    def prioritization(self) -> Prioritization:
        """Return the prioritization; new rows reach it at the next sample or update."""
        return self.sampler.prioritization

    @property
    def scheme(self) -> SamplingScheme:
        """Return how the samples of a batch depend on each other."""
        return self.sampler.scheme

    @property
    def generator(self) -> np.random.Generator:
        """Return the random generator of the samples; set another one to seed the buffer."""
        return self.sampler.generator

    @generator.setter
    def generator(self, generator: np.random.Generator) -> None:
        self.sampler.generator = generator

    def probabilities(self, slots: ArrayLike | th.Tensor) -> FloatArray:
        """
        Return P(i) for slots, as the weights use it: the probability for one sample of a batch.

        With ``uniform_share`` it is the mixture's. A slot that cannot be sampled has 0. With
        ``replacement=False`` it is the probability for the first sample, not that of the weights.

        :param slots: Whole numbers in [0, n_slots), shape (n,) or (n, 1).
        :return: Shape (n,).
        :raises ValueError: for other slots.
        """
        slots = as_slots(slots)
        in_range = bool(((slots >= 0) & (slots < self.n_slots)).all())
        require(in_range, f"slots must lie in [0, {self.n_slots})", slots)
        self.hand_over_new_rows()
        return self.sampler.probabilities(slots)

    def options(self) -> dict[str, Any]:
        """Return the options of prioritization, except its kind and beta."""
        return {**self.sampler.options(), **self.prioritization_options}
