"""
Saved models: SB3's fields hold what SB3 can read, and an extra field holds our options.

So SB3 loads a model where this package is not installed. An option that JSON cannot hold (a
function for beta, a class of the user's own) is pickled alone, within our options: SB3 does not
unpickle it, and if it cannot be read, no other option is lost. Rainbow's policy, which SB3 lacks,
is stored by its name.
"""

import io
import json
import pathlib
import pickle
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import (
    data_to_json,
    json_to_data,
    load_from_pkl,
    open_path,
)
from stable_baselines3.her import HerReplayBuffer

from sb3_per.algorithms.environments import WITHOUT_PRIORITIES, resolve_buffer_class
from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.options import OPTION_NAMES

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm

Place = str | pathlib.Path | io.BufferedIOBase
# The field of our options. SB3 sets it as an attribute of a loaded model, and saves it again.
STORED = "prioritized_replay"
# The fields of SB3 that are read here before SB3 reads all of them.
_FIELDS = ("policy_class", "replay_buffer_class", "replay_buffer_kwargs", "n_steps")
# The options that SB3's buffers take, too; all except the first are HerReplayBuffer's.
_OF_SB3 = (
    "handle_timeout_termination",
    "n_sampled_goal",
    "goal_selection_strategy",
    "copy_info_dict",
)


def copy_to_save(model: "PrioritizedAlgorithm") -> Any:
    """Return a copy of a model for SB3's ``save``, with our options apart from SB3's fields."""
    saved: Any = object.__new__(type(model))  # not `copy`, which would call __getstate__
    vars(saved).update(vars(model))
    kind, options = model.replay_buffer_class, dict(model.replay_buffer_kwargs)
    buffer = getattr(model, "replay_buffer", None)  # None if it was deleted
    if buffer is not None:  # perhaps not the one that the model had at first
        kind = type(buffer)
        options = options_of(buffer, options) | {"beta": options["beta"]}
        saved.optimize_memory_usage = buffer.optimize_memory_usage
        if buffer.buffer_size != max(model.buffer_size // model.n_envs, 1):
            saved.buffer_size = buffer.n_slots
    has_goals = issubclass(kind, HerReplayBuffer)  # type: ignore[arg-type]  # it is set by now
    saved.replay_buffer_class = HerReplayBuffer if has_goals else None
    names = _OF_SB3 if has_goals else _OF_SB3[:1]
    saved.replay_buffer_kwargs = {name: options[name] for name in names if name in options}
    if kind is not resolve_buffer_class(saved.replay_buffer_class, model.observation_space):
        options["replay_buffer_class"] = kind
    if isinstance(model.observation_space, spaces.Dict):
        options["n_steps"], saved.n_steps = model.n_steps, 1  # SB3 has no n-step returns there
    for name, policy in model.policy_aliases.items():
        if policy is model.policy_class and policy.__module__.startswith("sb3_per."):
            kinds = [k for k in type(model).__mro__ if k.__module__.startswith("sb3_per.")]
            # `DQN.load` refuses this name: it could not train the policy.
            saved.policy_class = f"{name} of sb3_per.{kinds[0].__name__}"
    setattr(saved, STORED, json.loads(data_to_json(options)))
    return saved


def options_of(buffer: PrioritizedReplayBuffer, given: dict[str, Any]) -> dict[str, Any]:
    """Return all options of a buffer; of a subclass of the user's, only those that were given."""
    options = buffer.arguments()
    ours = PrioritizedReplayBuffer, PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer
    if type(buffer) in ours:
        return options
    # Its constructor may not take the others.
    return {name: options.get(name, value) for name, value in given.items()}


def arguments_to_load(
    algorithm: type["PrioritizedAlgorithm"], path: Place, given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """
    Return the arguments with which SB3's ``load`` makes a model that has its stored options.

    :param given: The user's arguments, which come first, ``custom_objects`` among them.
    :return: The arguments; and by the names of the options that could not be read, the reason.
    :raises ValueError: for a model whose policy is another algorithm's.
    """
    stored, fields = _read(path, given["custom_objects"])
    if not fields.keys() >= {"replay_buffer_class", "replay_buffer_kwargs"}:
        return given, {}  # it is not of an off-policy algorithm, which SB3's `load` shows
    options, lost = _readable(stored)
    arguments = dict(given)
    if isinstance(policy := fields.get("policy_class"), str):
        replaced = {"policy_class": _policy_of(algorithm, policy)}
        arguments["custom_objects"] = {**(given["custom_objects"] or {}), **replaced}
    kind, n_steps = fields["replay_buffer_class"], options.pop("n_steps", fields.get("n_steps", 1))
    theirs = dict(fields["replay_buffer_kwargs"] or {})
    theirs |= given.get("replay_buffer_kwargs") or {}
    if kind is NStepReplayBuffer:
        # Its options may name n_steps, which SB3's algorithm then has as 1; gamma is the same.
        n_steps = theirs.get("n_steps", n_steps)
        theirs = {name: v for name, v in theirs.items() if name not in ("n_steps", "gamma")}
    kind = options.pop("replay_buffer_class", None if kind in WITHOUT_PRIORITIES else kind)
    prioritization = options.get("prioritization")
    if theirs.get("prioritization", prioritization) != prioritization:
        # The others are those of another prioritization.
        options = {name: v for name, v in options.items() if name not in OPTION_NAMES}
    if "prioritization" in lost:
        options.pop("prioritization_kwargs", None)  # only the lost class knows them
    arguments["replay_buffer_kwargs"] = {**options, **theirs}
    arguments.setdefault("replay_buffer_class", kind)
    arguments.setdefault("n_steps", n_steps)
    return arguments, lost


def _policy_of(algorithm: type["PrioritizedAlgorithm"], stored: str) -> type[BasePolicy]:
    """Return the policy of a name that ``copy_to_save`` has given to it."""
    name, _, owner = stored.partition(" of sb3_per.")
    if owner not in [kind.__name__ for kind in algorithm.__mro__]:
        hint = f"load a model of {owner} with {owner}"
        raise ValueError(f"{algorithm.__name__} has other policies than {owner} ({hint})")
    return algorithm.policy_aliases[name]


def _read(
    path: Place, custom_objects: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return our stored options, and some fields of SB3; none if SB3 cannot read the file."""
    file = open_path(path, "r", suffix="zip")
    try:
        with zipfile.ZipFile(file) as archive:
            data = json.loads(archive.read("data"))
    except (zipfile.BadZipFile, KeyError):
        return {}, {}  # SB3 says what is wrong
    finally:
        if file is not path:
            file.close()
    fields = {name: data[name] for name in _FIELDS if name in data}
    return data.get(STORED, {}), json_to_data(json.dumps(fields), custom_objects)


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


def require_matching_policy(model: OffPolicyAlgorithm) -> None:
    """Raise ValueError if a policy, such as that of a saved model, is another algorithm's."""
    policy, needed = model.policy_class, model.policy_aliases["MlpPolicy"]
    libraries = ("stable_baselines3.", "sb3_contrib.", "sb3_per.")
    kinds = [kind for kind in policy.__mro__ if kind.__module__.startswith(libraries)]
    kinds = [kind for kind in kinds if kind.__name__.endswith("Policy") and kind is not BasePolicy]
    # A policy of ours is also one of the algorithm that ours extends, which cannot train it.
    ours = [kind for kind in kinds if kind.__module__.startswith("sb3_per.")]
    is_foreign = bool(ours) and ours[-1] not in needed.__mro__
    if not kinds or (issubclass(policy, needed) and not is_foreign):
        return  # a policy of the user's own need not derive from any
    # PPO and A2C have their policies in `common`.
    of_algorithms = [kind.__name__ for kind in kinds if ".common." not in kind.__module__]
    hint = ""
    if of_algorithms:
        name = (ours[-1].__name__ if is_foreign else of_algorithms[-1]).removesuffix("Policy")
        loaders = name if is_foreign else f"{name} or PER{name}"
        hint = f" of {name} (load a model of {name} with {loaders})"
    raise ValueError(
        f"{type(model).__name__} needs a {needed.__name__}, got {policy.__name__}{hint}"
    )


def read_pickled_buffer(file: io.BufferedIOBase) -> ReplayBuffer:
    """
    Return the buffer that SB3's ``save_replay_buffer`` has pickled.

    :raises ValueError: for a damaged file, and for something else than a buffer.
    """
    name = getattr(file, "name", file)
    rule = f"{name} must be a whole file of save_replay_buffer, or the pickle of a buffer of SB3"
    try:
        buffer = load_from_pkl(file)
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{rule}: {error}") from error
    if not isinstance(buffer, ReplayBuffer):
        raise ValueError(f"{rule}, got {type(buffer).__name__}")
    return buffer
