"""The options of a buffer that its sampler keeps, as attributes of the buffer."""

from typing import Any, Literal

import numpy as np

from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.sampler import PrioritizedSampler
from sb3_per.prioritization.sampling import SamplingScheme
from sb3_per.rules import require, require_fraction


class SamplerOptions:
    """Gives a prioritized buffer the attribute beta, and attributes for its sampler's options."""

    sampler: PrioritizedSampler
    prioritization_options: dict[str, Any]

    @property
    def beta(self) -> float:
        """Return the exponent of the weights: 0 corrects nothing, 1 everything."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        require_fraction("beta", beta)
        self._beta = float(beta)

    @property
    def alpha(self) -> float:
        """Return how much prioritization there is; it cannot change."""
        return float(self.prioritization_options["alpha"])

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        rule = f"alpha must stay {self.alpha} (make a new buffer to change it)"
        require(alpha == self.alpha, rule, alpha)

    @property
    def prioritization(self) -> Prioritization:
        """Return the prioritization; new rows reach it at the next sample or update."""
        return self.sampler.prioritization

    @property
    def scheme(self) -> SamplingScheme:
        """Return how the samples of a batch depend on each other."""
        return self.sampler.scheme

    @property
    def weight_normalization(self) -> str:
        """Return what the weights are divided by; it cannot change."""
        return self.sampler.weight_normalization

    @weight_normalization.setter
    def weight_normalization(self, value: Literal["batch", "buffer", "mean", "none"]) -> None:
        self.sampler.weight_normalization = value

    @property
    def generator(self) -> np.random.Generator:
        """Return the random generator of the samples; set another one to seed the buffer."""
        return self.sampler.generator

    @generator.setter
    def generator(self, generator: np.random.Generator) -> None:
        self.sampler.generator = generator

    def options(self) -> dict[str, Any]:
        """Return the options of prioritization, except its kind and beta."""
        return {**self.sampler.options(), **self.prioritization_options}
