"""The options of a buffer that its sampler keeps: what they are, and which of them can change."""

from typing import Any, Literal

import numpy as np

from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.sampler import PrioritizedSampler
from sb3_per.prioritization.sampling import SamplingScheme
from sb3_per.rules import require, require_fraction


class SamplerOptions:
    """Attributes of a prioritized buffer that stand for options of its sampler, and beta."""

    sampler: PrioritizedSampler
    prioritization_options: dict[str, Any]

    @property
    def beta(self) -> float:
        """Exponent of the importance-sampling weights: 0 corrects nothing, 1 everything."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        require_fraction("beta", beta)
        self._beta = float(beta)

    @property
    def alpha(self) -> float:
        """How much prioritization; it cannot change."""
        return float(self.prioritization_options["alpha"])

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        require(alpha == self.alpha, f"alpha stays {self.alpha}: make a new buffer", alpha)

    @property
    def prioritization(self) -> Prioritization:
        """How often each slot is sampled; new rows reach it at the next sample or update."""
        return self.sampler.prioritization

    @property
    def scheme(self) -> SamplingScheme:
        """How the samples of a batch depend on each other."""
        return self.sampler.scheme

    @property
    def weight_normalization(self) -> str:
        """What the weights are divided by; it cannot change."""
        return self.sampler.weight_normalization

    @weight_normalization.setter
    def weight_normalization(self, value: Literal["batch", "buffer", "mean", "none"]) -> None:
        self.sampler.weight_normalization = value

    @property
    def generator(self) -> np.random.Generator:
        """The random numbers of sampling; give a buffer another generator to seed it."""
        return self.sampler.generator

    @generator.setter
    def generator(self, generator: np.random.Generator) -> None:
        self.sampler.generator = generator

    def options(self) -> dict[str, Any]:
        """Return the options of prioritization, except for its kind and beta."""
        return {**self.sampler.options(), **self.prioritization_options}
