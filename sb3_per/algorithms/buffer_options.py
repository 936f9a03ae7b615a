"""The replay buffer of an algorithm: its class and its options."""

import os
import warnings
from collections.abc import Iterable
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
from stable_baselines3.her import HerReplayBuffer

from sb3_per.buffers.goals import require_compute_reward, require_goals
from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import (
    OPTION_NAMES,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
)
from sb3_per.prioritization.names import PRIORITIZATION_NAMES
from sb3_per.rules import require
from sb3_per.signatures import argument_names, refuse_unknown

# Arguments that the algorithms do not have, and what to do instead: options of the buffer, and the
# names of Stable-Baselines 2.
_BETA = "beta is annealed during training, so pass beta_initial"
_SB2_OPTIONS = {"prioritized_replay_alpha": "alpha", "prioritized_replay_eps": "eps"}
ARGUMENT_HINTS = {
    **{name: f"pass replay_buffer_kwargs=dict({name}=...)" for name in OPTION_NAMES},
    "n_stack": "pass replay_buffer_kwargs=dict(n_stack=...)",
    "beta": _BETA,
    **{old: f"pass replay_buffer_kwargs=dict({new}=...)" for old, new in _SB2_OPTIONS.items()},
    "prioritized_replay": "replay is always prioritized, so leave it out",
    "prioritized_replay_beta0": "pass beta_initial",
    "prioritized_replay_beta_iters": "pass beta_fraction, a part of the training in (0, 1]",
    "loss": "its loss is a Huber loss already (of quantiles, for QR-DQN and TQC), so leave it out",
    "target_network_update_freq": "pass target_update_interval",
}
_OPTION_HINTS = {
    "beta": f"{_BETA} to the algorithm",
    **{old: f"pass {new}" for old, new in _SB2_OPTIONS.items()},
}
_UNKNOWN = object()  # equals no value of an option
# Arguments that SB3 passes to every buffer.
_GIVEN_BY_SB3 = (
    "buffer_size",
    "observation_space",
    "action_space",
    "env",
    "device",
    "n_envs",
    "optimize_memory_usage",
)


def refuse_buffer_options(algorithm: type[Any], arguments: Iterable[str]) -> None:
    """
    Refuse options of the buffer among the arguments of an algorithm.

    :param algorithm: Its class.
    :raises ValueError: for the first option; the message says where it belongs.
    """
    own = argument_names(algorithm) or []
    known = [name for name in arguments if name in own or name not in ARGUMENT_HINTS]
    refuse_unknown(f"{algorithm.__name__} has no argument", arguments, known, ARGUMENT_HINTS)


def resolve_buffer_class(
    named: type[Any] | None, observation_space: spaces.Space[Any]
) -> type[PrioritizedReplayBuffer]:
    """
    Return the buffer class for these observations.

    :param named: The user's choice; None for the default.
    :raises ValueError: for a class without priorities, or one for other observations.
    """
    has_dict = isinstance(observation_space, spaces.Dict)
    default = PrioritizedDictReplayBuffer if has_dict else PrioritizedReplayBuffer
    is_class = named is None or isinstance(named, type)
    require(is_class, "replay_buffer_class must be a class", named)
    if named is HerReplayBuffer:  # RL-Zoo's files name it, and models that SB3 has saved
        named = PrioritizedHerReplayBuffer
    # Naming the plain class is fine for Dict observations, too: a saved model names the class that
    # it had, and one YAML file may serve all observation spaces.
    if named is None or named is PrioritizedReplayBuffer:
        return default
    if issubclass(named, PrioritizedHerReplayBuffer):
        require_goals(observation_space)
    if issubclass(named, default) and issubclass(named, PrioritizedDictReplayBuffer) == has_dict:
        return named
    raise ValueError(
        f"replay_buffer_class must be {default.__name__} or a subclass of it for these "
        f"observations (for hindsight replay, PrioritizedHerReplayBuffer; for uniform replay, use "
        f"SB3's algorithm; to continue one of SB3's models, load it with "
        f"replay_buffer_class={default.__name__}), got {named.__name__}"
    )


def complete_options(
    kind: type[PrioritizedReplayBuffer], given: dict[str, Any], decided: dict[str, Any]
) -> dict[str, Any]:
    """
    Return the options with which the buffer is made.

    :param kind: The class of the buffer.
    :param given: The user's ``replay_buffer_kwargs``.
    :param decided: Options that are arguments of the algorithm, too: ``n_steps`` and ``gamma``.
    :raises ValueError: for an option that the class does not have, for beta, and for a value that
        differs from the algorithm's argument.
    """
    require(isinstance(given, dict), "replay_buffer_kwargs must be a dict", given)
    required = ["beta", *decided]
    names = argument_names(kind) or [*given, *required]
    missing = [name for name in required if name not in names]
    rule = f"replay_buffer_class must take {', '.join(required)} (or **kwargs, and pass them on)"
    require(not missing, rule, f"{kind.__name__} without {', '.join(missing)}")
    options = [name for name in names if name != "beta" and name not in _GIVEN_BY_SB3]
    refuse_unknown(f"{kind.__name__} has no option", given, options, _OPTION_HINTS)
    for name, value in given.items():
        rule = f"{name} in replay_buffer_kwargs must equal the algorithm's {name}="
        rule += (
            f"{decided.get(name)} (SB3 saves both; load its model with replay_buffer_kwargs={{}})"
        )
        require(name not in decided or value == decided[name], rule, value)
    return {**given, **decided}


def warn_of_size(buffer_size: int, buffer: PrioritizedReplayBuffer) -> None:
    """Warn that a loaded buffer has another size than the model's ``buffer_size``."""
    warnings.warn(
        f"buffer_size is now {buffer.n_slots}, the loaded buffer's, instead of {buffer_size}",
        stacklevel=4,
    )


def require_prioritized(method: str, buffer: object) -> None:
    """
    Raise ValueError unless a buffer has priorities.

    :param method: The name of the method that needs the buffer.
    """
    rule = f"{method} needs a buffer with priorities"
    is_path = isinstance(buffer, str | os.PathLike)
    rule += " (load_buffer reads a file of save_buffer)" if is_path else ""
    require(isinstance(buffer, PrioritizedReplayBuffer), rule, type(buffer).__name__)


def require_matching_buffer(buffer: PrioritizedReplayBuffer, model: OffPolicyAlgorithm) -> None:
    """
    Check that a model can learn from a buffer.

    :raises ValueError: if spaces, number of environments or n-step returns differ.
    """
    expected_of = {
        "n_envs": model.n_envs,
        "n_steps": model.n_steps,
        "gamma": model.gamma if buffer.n_steps > 1 else buffer.gamma,  # else it is not used
        "observation_space": model.observation_space,
        "action_space": model.action_space,
    }
    for name, expected in expected_of.items():
        value = getattr(buffer, name)
        require(value == expected, f"the buffer's {name} must equal the model's {expected}", value)


def require_fitting_environments(
    kind: type[PrioritizedReplayBuffer], n_stack: int, env: VecEnv | None
) -> None:
    """
    Raise ValueError unless a buffer can store what these environments return.

    :param kind: The class of the buffer. Hindsight replay needs environments with goals.
    :param n_stack: Frames in an observation; 1 if whole observations are stored.
    :param env: The environments; None only if the model is loaded without them.
    """
    if issubclass(kind, PrioritizedHerReplayBuffer):
        require_compute_reward(env)
    normalize = None if env is None else unwrap_vec_normalize(env)
    rule = "n_stack needs VecNormalize with norm_obs=False, because SB3 computes the last "
    rule += "observation of an episode from the normalized one, with rounding errors"
    require(n_stack == 1 or normalize is None or not normalize.norm_obs, rule, "norm_obs=True")


def require_batches_to_fit(buffer: PrioritizedReplayBuffer, batch_size: int) -> None:
    """Raise ValueError if a buffer without replacement can never hold a batch."""
    n_sampleable = buffer.n_slots - buffer.n_envs * buffer.optimize_memory_usage
    require(
        buffer.scheme.replacement or batch_size <= n_sampleable,
        f"batch_size must be at most {n_sampleable}, the transitions that the buffer can hold, "
        "with replacement=False",
        batch_size,
    )


def needs_ends(buffer: PrioritizedReplayBuffer) -> bool:
    """
    Return whether a buffer must know where an episode was interrupted.

    With one-step returns, the marks would change nothing, except in memory-optimised storage, which
    loses the last next observation when the next episode begins, and for new goals, which come from
    the same episode.
    """
    is_hindsight = isinstance(buffer, PrioritizedHerReplayBuffer)
    return buffer.n_steps > 1 or buffer.optimize_memory_usage or is_hindsight


def adopt_options(
    kind: type[Any] | None,
    given: dict[str, Any],
    before: dict[str, Any],
    adopted: PrioritizedReplayBuffer,
) -> dict[str, Any]:
    """
    Return options that make a buffer like the adopted one; warn about options that the user set.

    :param kind: The class of the buffers that the algorithm makes.
    :param given: The user's ``replay_buffer_kwargs``.
    :param before: The options of the buffer that was made with these; none if they are unknown.
    :param adopted: The buffer that replaces it.
    """
    if kind is None or type(adopted) is not kind:
        return given  # another class may choose its options itself
    names = argument_names(kind)
    new = {
        name: value
        for name, value in options_of(adopted).items()
        if value != before.get(name, _UNKNOWN) and (names is None or name in names)
    }
    for name in sorted(new.keys() & given.keys()):
        if given[name] != new[name]:
            warnings.warn(
                f"the buffer keeps its own {name}={new[name]!r} instead of the "
                f"{given[name]!r} of replay_buffer_kwargs",
                stacklevel=4,
            )
    return {**given, **new}


def options_of(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Return a buffer's options as ``replay_buffer_kwargs`` names them, with all defaults."""
    kind = type(buffer.prioritization)
    return {
        "prioritization": PRIORITIZATION_NAMES.get(kind, kind),
        "handle_timeout_termination": buffer.handle_timeout_termination,
        "n_stack": buffer.n_stack,
        **buffer.options(),
    }
