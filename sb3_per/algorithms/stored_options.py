"""
Saved models: SB3's fields hold what SB3 can read, and an extra field holds our options.

So SB3 loads a model where this package is not installed. An option that JSON cannot hold (a
function for beta, a class of the user's own) is pickled alone, within our options: SB3 does not
unpickle it, and if it cannot be read, no other option is lost.
"""

import json
import warnings
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.save_util import data_to_json, json_to_data
from stable_baselines3.her import HerReplayBuffer

# SB3 sets it as an attribute of a loaded model, and saves it again with the model.
STORED = "prioritized_replay"
# The options that SB3's buffers take, too; all except the first are HerReplayBuffer's.
_OF_SB3 = (
    "handle_timeout_termination",
    "n_sampled_goal",
    "goal_selection_strategy",
    "copy_info_dict",
)


def set_stored_options(model: Any, default_class: type[Any]) -> None:
    """
    Move our options apart from SB3's fields, in a copy of a model that is saved.

    :param default_class: The buffer class if the user names none.
    """
    options, kind = dict(model.replay_buffer_kwargs), model.replay_buffer_class
    has_goals = issubclass(kind, HerReplayBuffer)
    model.replay_buffer_class = HerReplayBuffer if has_goals else None
    names = _OF_SB3 if has_goals else _OF_SB3[:1]
    model.replay_buffer_kwargs = {name: options[name] for name in names if name in options}
    if kind is not default_class:
        options["replay_buffer_class"] = kind
    if isinstance(model.observation_space, spaces.Dict):
        options["n_steps"], model.n_steps = model.n_steps, 1  # SB3 has no n-step returns there
    setattr(model, STORED, json.loads(data_to_json(options)))


def take_stored_options(model: Any, given: frozenset[str]) -> dict[str, str]:
    """
    Let a loaded model have the options that were stored with it; those of its user come first.

    :param given: The names of the arguments that the user has passed to ``load``.
    :return: By the names of the options that could not be read, the reason.
    """
    options, lost = _readable(vars(model).pop(STORED, {}))
    kind, n_steps = options.pop("replay_buffer_class", None), options.pop("n_steps", model.n_steps)
    theirs = dict(model.replay_buffer_kwargs)
    if model.replay_buffer_class is NStepReplayBuffer:
        # Its options may name n_steps, which SB3's algorithm then has as 1; gamma is the same.
        n_steps = theirs.pop("n_steps", n_steps)
        theirs.pop("gamma", None)
    if "n_steps" not in given:
        model.n_steps = n_steps
    if kind is not None and "replay_buffer_class" not in given:
        model.replay_buffer_class = kind
    prioritization = options.get("prioritization")
    if theirs.get("prioritization", prioritization) != prioritization:
        options = {}  # those of another prioritization
    if "prioritization" in lost:
        options.pop("prioritization_kwargs", None)  # only the lost class knows them
    model.replay_buffer_kwargs = {**options, **theirs}
    return lost


def _readable(stored: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options that can be read, and what is wrong with the others."""
    options: dict[str, Any] = {}
    lost: dict[str, str] = {}
    for name, value in stored.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                options |= json_to_data(json.dumps({name: value}))  # it warns of some errors
            except Exception as error:  # whatever the import of a module of the user's raises
                lost[name] = f"{type(error).__name__}: {error}"
        if name not in options:
            lost.setdefault(name, str(caught[-1].message) if caught else "")
    return options, lost
