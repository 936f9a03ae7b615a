"""Which replay buffer a PERDQN has, and with what options."""

import warnings
from typing import Any

from gymnasium import spaces
from stable_baselines3 import DQN

from sb3_per.buffers.prioritized import (
    OPTION_NAMES,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
)
from sb3_per.prioritization.names import PRIORITIZATION_NAMES
from sb3_per.rules import require

_BETA = "beta is annealed by PERDQN: pass beta_initial instead"


def refuse_options(arguments: dict[str, Any]) -> None:
    """:raises ValueError: for an option of the buffer among the arguments of the algorithm."""
    for name in OPTION_NAMES:
        rule = _BETA if name == "beta" else f"{name} belongs in replay_buffer_kwargs"
        require(name not in arguments, rule, arguments.get(name))


def fitting_class(
    named: type[Any] | None, observation_space: spaces.Space[Any]
) -> type[PrioritizedReplayBuffer]:
    """
    :param named: What the user wants; None for ours.
    :raises ValueError: for a class without priorities, or for other observations.
    """
    has_dict = isinstance(observation_space, spaces.Dict)
    fitting = PrioritizedDictReplayBuffer if has_dict else PrioritizedReplayBuffer
    is_class = named is None or isinstance(named, type)
    require(is_class, "replay_buffer_class must be a class", named)
    # A model that was saved names the class that fitted, as does a file that serves all spaces.
    if named is None or named is PrioritizedReplayBuffer:
        return fitting
    if issubclass(named, fitting) and issubclass(named, PrioritizedDictReplayBuffer) == has_dict:
        return named
    raise ValueError(
        f"replay_buffer_class must be {fitting.__name__} or a subclass of it for these "
        f"observations (for uniform or hindsight replay use DQN; to go on from a "
        f"model of DQN, load it with replay_buffer_class={fitting.__name__}), "
        f"got {named.__name__}"
    )


def completed(asked_for: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """
    :param asked_for: The user's options of the buffer.
    :param known: Those that the algorithm knows.
    :return: Both.
    :raises ValueError: for beta, and where the two differ.
    """
    require(isinstance(asked_for, dict), "replay_buffer_kwargs must be a dict", asked_for)
    for name, value in asked_for.items():
        require(name != "beta", _BETA, value)
        rule = f"{name} in replay_buffer_kwargs must equal PERDQN's {name}={known.get(name)}"
        require(name not in known or value == known[name], rule, value)
    return {**asked_for, **known}


def require_fitting(buffer: PrioritizedReplayBuffer, model: DQN) -> None:
    """:raises ValueError: unless a model can learn from a buffer: for its shape or its returns."""
    expected_of = {
        "n_envs": model.n_envs,
        "n_steps": model.n_steps,
        "gamma": model.gamma if buffer.n_steps > 1 else buffer.gamma,  # else it is not used
        "observation_space": model.observation_space,
        "action_space": model.action_space,
    }
    for name, expected in expected_of.items():
        value = getattr(buffer, name)
        require(value == expected, f"the buffer's {name} must be the model's {expected}", value)


def taken_over(
    asked_for: dict[str, Any], ours: PrioritizedReplayBuffer, theirs: PrioritizedReplayBuffer
) -> dict[str, Any]:
    """
    Options that make such a buffer again, with a warning where the user had asked for others.

    :param asked_for: The user's options of the buffer.
    :param ours: What they have made.
    :param theirs: What takes its place.
    """
    if type(ours) is not type(theirs):
        return asked_for  # another class may choose its options itself
    before = _options_of(ours)
    new = {name: value for name, value in _options_of(theirs).items() if value != before[name]}
    for name in sorted(new.keys() & asked_for.keys()):
        warnings.warn(
            f"the buffer keeps its own {name}={new[name]!r} instead of the "
            f"{asked_for[name]!r} of replay_buffer_kwargs",
            stacklevel=3,
        )
    return {**asked_for, **new}


def _options_of(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    kind = type(buffer.prioritization)
    return {
        "prioritization": PRIORITIZATION_NAMES.get(kind, kind),
        "handle_timeout_termination": buffer.handle_timeout_termination,
        **buffer.options(),
    }
