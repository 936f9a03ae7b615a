"""The options of prioritization: each one is declared, explained and checked here."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from sb3_per._utils import require_number, require_one_of, require_whole

Beta = float | Sequence[float] | Callable[[float], float]

# TD errors come from float32 networks. The bound keeps every sum of priorities below what float64
# can hold.
LARGEST_TD_ERROR = float(np.finfo(np.float32).max)
SMALLEST = sys.float_info.min
NAMES = ("proportional", "rank", "lap")

# The settings of Schaul et al. (2016, table 3).
PAPER: dict[str, Any] = {
    "prioritization": "proportional",
    "alpha": 0.6,
    "beta": (0.4, 1.0),
    "td_error_clip": None,
    "uniform_share": 0.0,
    "weight_normalization": "batch",
}
# The defaults of QR-DQN and TQC, whose loss turns linear at no single TD error.
HALF_UNIFORM: dict[str, Any] = {
    **PAPER,
    "uniform_share": 0.5,
    "weight_normalization": "mean",
}
# The defaults of DQN: priorities are the sizes of the gradients of its Huber loss.
CLIPPED: dict[str, Any] = {**HALF_UNIFORM, "td_error_clip": "loss"}
# The defaults of SAC, TD3, DDPG and CrossQ (Fujimoto et al. 2020, section 5).
LAP: dict[str, Any] = {"prioritization": "lap", "alpha": 0.4, "beta": 0.0}


@dataclass(frozen=True)
class PrioritizationOptions:
    """
    The options of a prioritized buffer, checked when they are made.

    :param prioritization: ``"proportional"``: P(i) from abs(TD error)^alpha; ``"rank"``: from its
        rank; ``"lap"``: from max(abs(TD error), threshold)^alpha; or a class of your own with the
        methods of ``sb3_per.prioritization.proportional.Prioritization``.
    :param prioritization_kwargs: Options of that class alone, such as LAP's ``threshold``.
    :param alpha: How much prioritization, in [0, 1]; 0 is uniform sampling.
    :param beta: Exponent of the importance-sampling weights, in [0, 1]: a number; (first, last),
        linear over the training; (first, last, n_steps), linear over so many steps; or a function
        of the remaining progress, which falls from 1 to 0. Only an algorithm changes it during
        training: a buffer on its own keeps the first value.
    :param eps: Added to abs(TD error) so that every transition can be sampled, > 0.
    :param td_error_clip: Upper bound of abs(TD error), before eps; None for no bound. In an
        algorithm's ``replay_buffer_kwargs``, ``"loss"`` stands for the threshold of its Huber loss;
        a loss without a threshold needs a number.
    :param uniform_share: The part of each batch that is sampled uniformly, in [0, 1]; needs
        ``replacement=True``. The weights use the probability under the mixture, P(i) = share / N +
        (1 - share) p_i^alpha / sum, so without normalization they are at most share^-beta.
    :param initial_priority: Priority of the first transitions, until a TD error is known, > 0.
    :param new_priority: New transitions get the largest priority ever seen (``"max_seen"``, the
        paper's algorithm 1), or the largest priority stored now (``"max_stored"``). That includes
        the transitions that they overwrite, except with hindsight replay and
        ``optimize_memory_usage``.
    :param weight_normalization: Divide the weights by the largest of the ``"batch"``, by the
        largest that any stored transition could have (``"buffer"``), by the ``"mean"`` of the
        batch, or not at all (``"none"``). ``"buffer"`` can stop learning as beta nears 1: one
        transition with a TD error near 0 makes all other weights vanish.
    :param demonstration_share: The part of each batch that is sampled uniformly from demonstrations
        if there are any, in [0, 1] (Ball et al. 2023, https://arxiv.org/abs/2302.02948: 0.5). The
        weights use the probability under the mixture.
    :param demonstration_bonus: Added to abs(TD error) of demonstrations, before the clip, >= 0
        (Hester et al. 2018, https://arxiv.org/abs/1704.03732).
    :param stratified: True: one sample from each of B equal slices of the probability. False: B
        independent samples.
    :param replacement: Whether a batch may hold a transition twice. If not, weights come from the
        probability of being in the batch; see ``sb3_per.prioritization.sum_tree.SamplingScheme``.
    :raises ValueError: for an option out of its range.
    """

    prioritization: str | Callable[..., Any] = "proportional"
    prioritization_kwargs: Mapping[str, Any] = field(default_factory=dict)
    alpha: float = 0.6
    beta: Beta = 0.4
    eps: float = 1e-6
    td_error_clip: float | None = None
    uniform_share: float = 0.0
    initial_priority: float = 1.0
    new_priority: Literal["max_seen", "max_stored"] = "max_seen"
    weight_normalization: Literal["batch", "buffer", "mean", "none"] = "batch"
    demonstration_share: float = 0.0
    demonstration_bonus: float = 0.0
    stratified: bool = True
    replacement: bool = True

    def __post_init__(self) -> None:
        if not callable(self.prioritization):
            require_one_of("prioritization", self.prioritization, NAMES)
        if not isinstance(self.prioritization_kwargs, Mapping):
            got = repr(self.prioritization_kwargs)
            raise ValueError(f"prioritization_kwargs must be a dict or None, got {got}")
        check_beta(self.beta)
        for name in ("alpha", "uniform_share", "demonstration_share"):
            require_number(name, getattr(self, name), 0, 1)
        require_number("demonstration_bonus", self.demonstration_bonus, 0, LARGEST_TD_ERROR)
        for name in ("eps", "initial_priority"):
            require_number(name, getattr(self, name), SMALLEST, LARGEST_TD_ERROR)
        if self.td_error_clip is not None:  # "loss" needs an algorithm, since a buffer has none
            require_number("td_error_clip", self.td_error_clip, SMALLEST, LARGEST_TD_ERROR)
        require_one_of("new_priority", self.new_priority, ("max_seen", "max_stored"))
        normalizations = ("batch", "buffer", "mean", "none")
        require_one_of("weight_normalization", self.weight_normalization, normalizations)
        for name in ("stratified", "replacement"):
            require_one_of(name, getattr(self, name), (True, False))
        self._require_exact_weights()

    def _require_exact_weights(self) -> None:
        for name in ("uniform_share", "demonstration_share"):
            if getattr(self, name) > 0 and not self.replacement:
                rule = (
                    f"{name} must be 0 with replacement=False, for which no exact weights are known"
                )
                raise ValueError(f"{rule}, got {getattr(self, name)}")
        if self.demonstration_share > 0 and self.weight_normalization == "buffer":
            raise ValueError("weight_normalization must not be 'buffer' with demonstration_share")

    @property
    def shared(self) -> dict[str, Any]:
        """Return the options that every prioritization takes, in addition to its own."""
        names = ("alpha", "eps", "td_error_clip", "initial_priority", "new_priority")
        return {name: getattr(self, name) for name in names}


OPTION_NAMES = tuple(each.name for each in fields(PrioritizationOptions))


def check_beta(beta: Any) -> None:
    """Raise ValueError unless ``beta`` is a number, a pair or a function as described above."""
    if callable(beta):
        return
    if not isinstance(beta, list | tuple):
        require_number("beta", beta, 0, 1)
        return
    if len(beta) not in (2, 3):
        raise ValueError(f"beta must be (first, last) or (first, last, n_steps), got {beta!r}")
    for value in beta[:2]:
        require_number("beta", value, 0, 1)
    if len(beta) == 3:
        require_whole("n_steps of beta", beta[2])


def beta_at(beta: Beta, progress: float = 0.0, n_steps: int = 0) -> float:
    """
    Return the exponent of the weights at some point of the training.

    :param progress: How much of the training is done, from 0 to 1.
    :param n_steps: Environment steps of the model so far.
    :raises ValueError: if a function returns a number outside of [0, 1].
    """
    if callable(beta):
        value = beta(1.0 - progress)
        require_number("beta", value, 0, 1)
        return float(value)
    if not isinstance(beta, list | tuple):
        return float(beta)  # type: ignore[arg-type]  # not a sequence
    done = min(n_steps / beta[2], 1.0) if len(beta) == 3 else progress
    return float(np.interp(done, (0.0, 1.0), beta[:2]))
