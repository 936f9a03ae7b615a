"""
Saved models: SB3's fields hold what SB3 can read, and an extra field holds our options.

So SB3 loads a model where this package is not installed. An option that JSON cannot hold (a
function for beta, a class of the user's own) is pickled alone, within our options: SB3 does not
unpickle it, and if it cannot be read, no other option is lost (of a prioritization, those of all
priorities). Rainbow's policy, which SB3 lacks, is stored by its name.
"""

from __future__ import annotations

import io
import json
import pathlib
import warnings
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import data_to_json, json_to_data, load_from_zip_file
from stable_baselines3.her import HerReplayBuffer

from sb3_per.algorithms.environments import WITHOUT_PRIORITIES, resolve_buffer_class
from sb3_per.buffers.prioritized import PrioritizedReplayBuffer
from sb3_per.buffers.storage import library_class
from sb3_per.options import OPTION_NAMES

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm

Place = str | pathlib.Path | io.BufferedIOBase
# The field of our options. SB3 sets it as an attribute of a loaded model, and saves it again.
STORED = "prioritized_replay"
# The options that SB3's buffers take, too: all, and HerReplayBuffer alone.
_SHARED_OPTIONS = ("handle_timeout_termination",)
_HER_OPTIONS = ("n_sampled_goal", "goal_selection_strategy", "copy_info_dict")


def copy_to_save(model: PrioritizedAlgorithm) -> Any:
    """Return a copy of a model for SB3's ``save``, with our options apart from SB3's fields."""
    saved: Any = object.__new__(type(model))  # not `copy`, which calls a subclass's __getstate__
    vars(saved).update(vars(model))
    kind, options = model.replay_buffer_class, dict(model.replay_buffer_kwargs)
    buffer = getattr(model, "replay_buffer", None)  # None if it was deleted
    if buffer is not None:  # perhaps not the one that the model had at first
        kind = type(buffer)
        # The model's beta, as `_update_beta` takes it: the buffer has its present value.
        options = options_of(buffer, options) | {"beta": options["beta"]}
        saved.optimize_memory_usage = buffer.optimize_memory_usage
        saved.n_steps = buffer.n_steps
        if buffer.n_steps > 1:  # discounts are the buffer's
            saved.gamma = buffer.gamma
        # SB3 divides `buffer_size` by n_envs; an assigned buffer may have another size.
        if buffer.buffer_size != max(model.buffer_size // model.n_envs, 1):
            saved.buffer_size = buffer.n_slots
    has_goals = issubclass(kind, HerReplayBuffer)  # type: ignore[arg-type]  # it is set by now
    saved.replay_buffer_class = HerReplayBuffer if has_goals else None
    names = (*_SHARED_OPTIONS, *_HER_OPTIONS) if has_goals else _SHARED_OPTIONS
    saved.replay_buffer_kwargs = {name: options[name] for name in names if name in options}
    if kind is not resolve_buffer_class(saved.replay_buffer_class, model.observation_space):
        options["replay_buffer_class"] = kind
    if isinstance(model.observation_space, spaces.Dict):
        options["n_steps"], saved.n_steps = saved.n_steps, 1  # SB3 has no n-step returns there
    saved.policy_class = _named_policy(model)
    setattr(saved, STORED, json.loads(data_to_json(options)))
    return saved


def options_of(buffer: PrioritizedReplayBuffer, given: dict[str, Any]) -> dict[str, Any]:
    """Return all options of a buffer; of a subclass of the user's, only those that were given."""
    options = buffer.arguments()
    if type(buffer) is library_class(buffer):
        return options
    # Its constructor may not take the others.
    return {name: options.get(name, value) for name, value in given.items()}


def arguments_to_load(
    algorithm: type[PrioritizedAlgorithm], path: Place, given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """
    Return the arguments with which SB3's ``load`` makes a model that has its stored options.

    :param given: The user's arguments, which come first, ``custom_objects`` among them.
    :return: The arguments; and by the names of the options that could not be read, the reason.
    :raises ValueError: for a model whose policy is another algorithm's.
    """
    # SB3 reads the file again in its `load`: it has no function for the fields alone.
    fields, *_ = load_from_zip_file(path, custom_objects=given["custom_objects"], device="cpu")
    if fields is None:
        raise ValueError(f"{path} must be a saved model (load_checkpoint reads checkpoints)")
    options, lost = _readable(fields.get(STORED, {}))
    buffer_class, n_steps, sb3_options = _read_sb3_fields(fields)
    # SB3 may have loaded and saved the model since, so its options count. The user's come last.
    later = {**sb3_options, **(given.get("replay_buffer_kwargs") or {})}
    stored = {
        "replay_buffer_class": options.pop("replay_buffer_class", buffer_class),
        "n_steps": options.pop("n_steps", n_steps),
    }
    named = given["custom_objects"] or {}
    arguments = {name: named.get(name, value) for name, value in stored.items()} | given
    prioritization = options.get("prioritization")
    is_another = later.get("prioritization", prioritization) != prioritization
    if is_another or "prioritization" in lost:
        # The other options were chosen for the stored prioritization.
        options = {name: v for name, v in options.items() if name not in OPTION_NAMES}
    arguments["replay_buffer_kwargs"] = {**options, **later}
    if isinstance(policy := fields.get("policy_class"), str):
        replaced = {"policy_class": _policy_of(algorithm, policy)}
        arguments["custom_objects"] = {**named, **replaced}
    return arguments, lost


def _read_sb3_fields(fields: dict[str, Any]) -> tuple[type[Any] | None, int, dict[str, Any]]:
    """Return the buffer class (None: the default), n_steps and options in the fields of SB3."""
    kind, n_steps = fields.get("replay_buffer_class"), fields.get("n_steps", 1)
    options = dict(fields.get("replay_buffer_kwargs") or {})
    if kind is NStepReplayBuffer:
        # Its options may name n_steps, which SB3's algorithm then has as 1; gamma is the same.
        n_steps = options.pop("n_steps", n_steps)
        options.pop("gamma", None)
    return None if kind in WITHOUT_PRIORITIES else kind, n_steps, options


def _named_policy(model: PrioritizedAlgorithm) -> type[BasePolicy] | str:
    """Return a model's policy; of one that SB3 lacks, a name that ``DQN.load`` refuses."""
    for name, policy in model.policy_aliases.items():
        if policy is model.policy_class and policy.__module__.startswith("sb3_per."):
            return f"{name} of sb3_per.{library_class(model).__name__}"
    return model.policy_class


def _policy_of(algorithm: type[PrioritizedAlgorithm], stored: str) -> type[BasePolicy]:
    """Return the policy of a name of ``_named_policy``."""
    name, _, owner = stored.partition(" of sb3_per.")
    if owner not in [kind.__name__ for kind in algorithm.__mro__]:
        hint = f"load a model of {owner} with {owner}"
        raise ValueError(f"{algorithm.__name__} has other policies than {owner} ({hint})")
    return algorithm.policy_aliases[name]


def _readable(stored: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options that can be read, and what is wrong with the others."""
    options: dict[str, Any] = {}
    lost: dict[str, str] = {}
    for name, value in stored.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Could not deserialize")  # SB3 warns of some errors
            try:
                options |= json_to_data(json.dumps({name: value}))
            except Exception as error:  # whatever the import of a module of the user's raises
                lost[name] = f"{type(error).__name__}: {error}"
        if name not in options:
            lost.setdefault(name, "SB3 did not read it")
    return options, lost


def require_matching_policy(model: OffPolicyAlgorithm) -> None:
    """Raise ValueError if a policy, such as that of a saved model, is another algorithm's."""
    policy, needed = model.policy_class, model.policy_aliases["MlpPolicy"]
    libraries = ("stable_baselines3.", "sb3_contrib.", "sb3_per.")
    bases = {kind for kind in policy.__mro__ if kind.__module__.startswith(libraries)}
    # Rainbow's are policies of DQN, too, but PERDQN would train them without noise.
    ours = [kind for kind in bases if kind.__module__.startswith("sb3_per.")]
    is_rainbows = bool(ours) and not any(issubclass(needed, kind) for kind in ours)
    # A policy of the user's own need not derive from any.
    if bases - {*BasePolicy.__mro__} and (is_rainbows or not issubclass(policy, needed)):
        raise ValueError(
            f"{type(model).__name__} needs a {needed.__name__}, got {policy.__name__}: load a "
            "model with the algorithm that saved it, or with the prioritized version of that"
        )
