"""The options of the prioritized buffers: each one is declared, typed and checked here."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from typing_extensions import TypedDict

from sb3_per._utils import require_number, require_one_of

# Names of classes in ``sb3_per.prioritization``, or a class of the user's own.
PrioritizationChoice = Literal["proportional", "rank", "lap"] | Callable[..., Any]
NewPriority = Literal["max_seen", "max_stored"]
Normalization = Literal["batch", "buffer", "mean", "none"]
Beta = float | Sequence[float] | Callable[[float], float]

# TD errors come from float32 networks. The bound keeps every sum of priorities below what float64
# can hold.
LARGEST_TD_ERROR = float(np.finfo(np.float32).max)
SMALLEST = sys.float_info.min


class PrioritizationKwargs(TypedDict, total=False):
    """The options of prioritization as keyword arguments; see ``PrioritizedReplayBuffer``."""

    prioritization: PrioritizationChoice
    prioritization_kwargs: Mapping[str, Any] | None
    alpha: float
    beta: Beta
    eps: float
    td_error_clip: float | Literal["loss"] | None
    uniform_share: float
    initial_priority: float
    new_priority: NewPriority
    weight_normalization: Normalization
    stratified: bool
    replacement: bool


class ReplayBufferKwargs(PrioritizationKwargs, total=False):
    """What ``replay_buffer_kwargs`` takes; see ``PrioritizedReplayBuffer``."""

    n_steps: int
    gamma: float
    n_stack: int | None
    info_keys: Sequence[str]


# The settings of Schaul et al. (2016, table 3).
PAPER: ReplayBufferKwargs = {
    "prioritization": "proportional",
    "alpha": 0.6,
    "beta": (0.4, 1.0),
    "td_error_clip": None,
    "uniform_share": 0.0,
    "weight_normalization": "batch",
}
# The settings of Hessel et al. (2018, table 1): the defaults of Rainbow.
RAINBOW: ReplayBufferKwargs = {**PAPER, "alpha": 0.5}
# The defaults of QR-DQN and TQC, whose loss turns linear at no single TD error.
HALF_UNIFORM: ReplayBufferKwargs = {
    **PAPER,
    "uniform_share": 0.5,
    "weight_normalization": "mean",
}
# The defaults of DQN: a priority is the size of the Huber loss's derivative with respect to Q, and
# the weights correct fully, so that the expected gradient is that of uniform replay.
FULL_CORRECTION: ReplayBufferKwargs = {
    "prioritization": "proportional",
    "alpha": 1.0,
    "beta": 1.0,
    "td_error_clip": "loss",
    "uniform_share": 0.5,
    "weight_normalization": "none",
}
# The defaults of SAC, TD3, DDPG and CrossQ (Fujimoto et al. 2020, section 5).
LAP: ReplayBufferKwargs = {"prioritization": "lap", "alpha": 0.4, "beta": 0.0}

OPTION_NAMES = tuple(PrioritizationKwargs.__annotations__)


@dataclass(frozen=True)
class PrioritizationOptions:
    """
    The options of prioritization, checked when they are made.

    ``PrioritizedReplayBuffer`` explains them. Its defaults are these: the paper's, except that beta
    stays at 0.4, since a buffer does not know the progress of a training.

    :raises ValueError: for an option out of its range.
    """

    prioritization: PrioritizationChoice = "proportional"
    prioritization_kwargs: Mapping[str, Any] | None = None
    alpha: float = 0.6
    beta: Beta = 0.4
    eps: float = 1e-6
    td_error_clip: float | None = None
    uniform_share: float = 0.0
    initial_priority: float = 1.0
    new_priority: NewPriority = "max_seen"
    weight_normalization: Normalization = "batch"
    stratified: bool = True
    replacement: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.prioritization_kwargs, Mapping | None):
            got = repr(self.prioritization_kwargs)
            raise ValueError(f"prioritization_kwargs must be a dict or None, got {got}")
        object.__setattr__(self, "beta", as_beta(self.beta))
        for name in ("alpha", "uniform_share"):
            require_number(name, getattr(self, name), 0, 1)
        for name in ("eps", "initial_priority"):
            require_positive(name, getattr(self, name))
        if self.td_error_clip is not None:  # "loss" needs an algorithm, since a buffer has none
            require_positive("td_error_clip", self.td_error_clip)
        require_one_of("new_priority", self.new_priority, get_args(NewPriority))
        require_one_of("weight_normalization", self.weight_normalization, get_args(Normalization))
        for name in ("stratified", "replacement"):
            require_one_of(name, getattr(self, name), (True, False))
        if self.uniform_share > 0 and not self.replacement:
            raise ValueError(
                "replacement=False needs uniform_share=0, because no exact weights are known for "
                "another one (the algorithm's default, if you set none), got "
                f"{self.uniform_share}"
            )

    @property
    def shared(self) -> dict[str, Any]:
        """Return the options that every prioritization takes, in addition to its own."""
        names = ("alpha", "eps", "td_error_clip", "initial_priority", "new_priority")
        return {name: getattr(self, name) for name in names}

    @property
    def of_priorities(self) -> dict[str, Any]:
        """Return the options that stored priorities depend on, as JSON returns them."""
        names = ("prioritization", "prioritization_kwargs")
        options = {**self.shared, **{name: getattr(self, name) for name in names}}
        if self.prioritization in ("rank", "lap"):
            del options["eps"]  # without effect
        as_read: dict[str, Any] = json.loads(json.dumps(options, default=_as_json))
        return as_read


def _as_json(value: Any) -> Any:
    """Return a value that JSON does not know as numbers, text, lists or dicts."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return [*value]
    return getattr(value, "__qualname__", str(type(value)))


def require_known(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError for a name that no option has; the message has the nearest one, if near."""
    for name in names:
        if name not in known:
            # Less near names are those of other options: 'new_priority' for 'priority_eps'.
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"the options are {[*known]}."
            if name == "threshold":
                hint = "LAP's belongs in prioritization_kwargs."
            page = 'For names of other libraries, see "Coming from elsewhere" in the documentation.'
            raise ValueError(f"there is no option {name!r}: {hint} {page}")


def require_positive(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a number above 0 that float32 can hold."""
    try:
        require_number(name, value, SMALLEST, LARGEST_TD_ERROR)
    except ValueError:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}") from None


def as_beta(beta: Any) -> Beta:
    """
    Return beta as a number, a tuple or a function.

    :param beta: One of these, or another sequence: a list, an array, or Hydra's ``ListConfig``.
    :raises ValueError: for anything else, and numbers out of range.
    """
    if callable(beta):
        function: Beta = beta
        return function
    if np.ndim(beta) == 0:
        require_number("beta", beta, 0, 1)
        return float(beta)
    if len(beta) not in (2, 3):
        raise ValueError(f"beta must be (first, last) or (first, last, n_steps), got {beta!r}")
    for value in beta[:2]:
        require_number("beta", value, 0, 1)
    if beta[1] < beta[0]:
        raise ValueError(f"beta must not fall from first to last, got {beta!r}")
    for value in beta[2:]:
        require_number("n_steps of beta", value, 1, np.inf)
    return tuple(map(float, beta))


def beta_at(beta: Beta, progress: float = 0.0, n_steps: int = 0) -> float:
    """
    Return the exponent of the weights at some point of the training.

    :param beta: What ``as_beta`` returns.
    :param progress: How much of the training is done, from 0 to 1.
    :param n_steps: Environment steps of the model so far.
    :raises ValueError: if a function returns a number outside of [0, 1].
    """
    if callable(beta):
        value = beta(1.0 - progress)
        require_number("beta", value, 0, 1)
        return float(value)
    if isinstance(beta, float):
        return beta
    done = min(n_steps / beta[2], 1.0) if len(beta) == 3 else progress
    return float(np.interp(done, (0.0, 1.0), beta[:2]))
