"""
Saved models: SB3's fields hold what SB3 can read, and an extra field holds our options.

So SB3 loads a model of ``PERDQN`` as one of ``DQN`` where this package is not installed. It sets
the extra field as an attribute, and saves it again. An option that JSON cannot hold (a function
for beta, a class of the user's own) is pickled alone in that field, which SB3 does not unpickle.
"""

from __future__ import annotations

import io
import json
import pathlib
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import data_to_json, json_to_data
from stable_baselines3.her import HerReplayBuffer

from sb3_per.algorithms.environments import resolve_buffer_class
from sb3_per.buffers.prioritized import PrioritizedReplayBuffer
from sb3_per.buffers.storage import library_class
from sb3_per.options import OPTION_NAMES

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm

Place = str | pathlib.Path | io.BufferedIOBase
STORED = "prioritized_replay"  # the field of our options
# The options that SB3's buffers take, too: all, and HerReplayBuffer alone.
_SHARED_OPTIONS = ("handle_timeout_termination",)
_HER_OPTIONS = ("n_sampled_goal", "goal_selection_strategy", "copy_info_dict")


def copy_to_save(model: PrioritizedAlgorithm) -> Any:
    """Return a copy of a model for SB3's ``save``, with our options apart from SB3's fields."""
    saved: Any = object.__new__(type(model))  # not `copy`, which calls a subclass's __getstate__
    vars(saved).update(vars(model))
    kind: Any = model.replay_buffer_class
    options = dict(model.replay_buffer_kwargs)
    has_goals = issubclass(kind, HerReplayBuffer)
    saved.replay_buffer_class = HerReplayBuffer if has_goals else None
    names = (*_SHARED_OPTIONS, *_HER_OPTIONS) if has_goals else _SHARED_OPTIONS
    saved.replay_buffer_kwargs = {name: options[name] for name in names if name in options}
    if kind is not resolve_buffer_class(saved.replay_buffer_class, model.observation_space):
        options["replay_buffer_class"] = kind
    if isinstance(model.observation_space, spaces.Dict):
        # SB3 has no n-step returns there. True is 1 to SB3, and not the 1 that `load` may be given.
        options["n_steps"], saved.n_steps = model.n_steps, True
    setattr(saved, STORED, json.loads(data_to_json(options)))
    return saved


def restore_options(model: PrioritizedAlgorithm) -> None:
    """Give a model that SB3 has just loaded the options of its file; those of the user stay."""
    given = dict(model.replay_buffer_kwargs or {})
    if model.replay_buffer_class is NStepReplayBuffer:  # of a model of SB3, which copies both
        given.pop("n_steps", None)
        given.pop("gamma", None)
    stored = vars(model).pop(STORED, {})
    replaced = set(given)  # not read: a class of the user's may have gone
    of_file = stored.get("prioritization")
    prioritization = given.get("prioritization", of_file)
    # A class of the user's is pickled in the file, and given again if its module has moved.
    are_classes = callable(prioritization) and isinstance(of_file, dict)
    if prioritization != of_file and not are_classes:
        replaced |= {*OPTION_NAMES}  # the others were chosen for the stored prioritization
    kind = model.replay_buffer_class
    if isinstance(kind, type) and issubclass(kind, PrioritizedReplayBuffer):  # no file has it there
        replaced.add("replay_buffer_class")
    stored = {name: value for name, value in stored.items() if name not in replaced}
    options = json_to_data(json.dumps(stored))
    model.replay_buffer_class = options.pop("replay_buffer_class", model.replay_buffer_class)
    n_steps = options.pop("n_steps", 1)
    if model.n_steps is True:
        model.n_steps = n_steps
    model.replay_buffer_kwargs = {**options, **given}


def options_of(buffer: PrioritizedReplayBuffer, given: dict[str, Any]) -> dict[str, Any]:
    """Return all options of a buffer; of a subclass of the user's, only those that were given."""
    options = buffer.arguments()
    if type(buffer) is library_class(buffer):
        return options
    # Its constructor may not take the others.
    return {name: options.get(name, value) for name, value in given.items()}


def require_matching_policy(model: OffPolicyAlgorithm) -> None:
    """Raise ValueError if a policy, or that of a saved model, is another algorithm's."""
    policy, needed = model.policy_class, model.policy_aliases["MlpPolicy"]
    libraries = ("stable_baselines3.", "sb3_contrib.", "sb3_per.")
    bases = {kind for kind in policy.__mro__ if kind.__module__.startswith(libraries)}
    # Rainbow's are policies of DQN, too, but PERDQN would train them without noise.
    ours = [kind for kind in bases if kind.__module__.startswith("sb3_per.")]
    is_rainbows = bool(ours) and not any(issubclass(needed, kind) for kind in ours)
    # A policy of the user's own need not derive from any.
    if bases - {*BasePolicy.__mro__} and (is_rainbows or not issubclass(policy, needed)):
        raise ValueError(
            f"{type(model).__name__} needs a {needed.__name__}, got {policy.__name__}: a policy or "
            f"a model of another algorithm cannot become a {type(model).__name__}"
        )
