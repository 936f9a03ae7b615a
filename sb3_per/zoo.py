"""RL-Zoo: our algorithms in its tables, their searches, and the names that YAML files use."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from sb3_per._utils import install
from sb3_per.algorithms import ALGORITHMS
from sb3_per.algorithms.networks import ConvExtractor
from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

if TYPE_CHECKING:
    import optuna  # comes with RL-Zoo, which not everyone installs

Sampler = Callable[["optuna.Trial", int, int, dict[str, Any]], dict[str, Any]]
Converter = Callable[[dict[str, Any]], dict[str, Any]]

# RL-Zoo's names of the algorithms that ours are based on.
BASES = {name: name.removeprefix("per_") for name in ALGORITHMS} | {"rainbow": "dqn"}
FLOAT_AS_TEXT = r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"  # to PyYAML
# Classes whose names YAML files use.
_NAMED = (
    PrioritizedReplayBuffer,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    ConvExtractor,
)


def register() -> None:
    """
    Enter our algorithms into RL-Zoo's tables, and MinAtar's environments into gymnasium's registry.

    A second call changes nothing. RL-Zoo would look for hyperparameters in a file named after the
    algorithm, so pass it ``config_file("per_dqn")``.
    """
    # Imported here, not above: RL-Zoo patches gymnasium when it is imported, and importing this
    # module must not do that.
    from rl_zoo3 import exp_manager, hyperparams_opt, utils

    # RL-Zoo's other modules import this very dict, so they see the new keys.
    utils.ALGOS.update(ALGORITHMS)
    for name in BASES:
        hyperparams_opt.HYPERPARAMS_SAMPLER[name] = sampler_of(name)  # type: ignore[assignment]  # mypy wants the names of its arguments
        hyperparams_opt.HYPERPARAMS_CONVERTER[name] = converter_of(name)  # type: ignore[assignment]  # the same
    for named in _NAMED:
        # The module in which RL-Zoo evaluates the text of an argument.
        setattr(exp_manager, named.__name__, named)
    # RL-Zoo's --gym-packages cannot do it: MinAtar registers when called, not when imported.
    if importlib.util.find_spec("minatar") and "MinAtar/Breakout-v1" not in gym.registry:
        import minatar.gym

        minatar.gym.register_envs()


def config_folder() -> pathlib.Path:
    """Return the folder of our YAML files, whether the package is installed or a checkout."""
    return pathlib.Path(__file__).parent / "configs"


def config_file(algorithm: str) -> pathlib.Path:
    """Return the default YAML file of one of ``ALGORITHMS``: ours, or RL-Zoo's file of its base."""
    ours = config_folder() / f"{algorithm}.yml"
    return ours if ours.exists() else rl_zoo_file(BASES[algorithm])


def rl_zoo_file(algorithm: str) -> pathlib.Path:
    """Return RL-Zoo's YAML file of an algorithm; in a clone, it is next to the package."""
    spec = importlib.util.find_spec("rl_zoo3")  # not imported, since that patches gymnasium
    if spec is None or spec.origin is None:
        raise ImportError(f"the YAML file of {algorithm} comes with RL-Zoo: {install('zoo')}")
    inside = pathlib.Path(spec.origin).parent / "hyperparams"
    folder = inside if inside.is_dir() else inside.parents[1] / "hyperparams"
    return folder / f"{algorithm}.yml"


def refuse_number_as_text(name: str, value: Any) -> None:
    """Raise ValueError for text that was meant as a number: YAML wants 1.0e-3, not 1e-3."""
    if isinstance(value, str) and re.fullmatch(FLOAT_AS_TEXT, value):
        number = np.format_float_positional(float(value), trim="-")
        raise ValueError(f"{name}: {value} is text in YAML, write {number}")


# Options of the buffer that are searched, the last two by RL-Zoo for hindsight replay. The options
# that the YAML file fixes are stored with the trial as parameters with a single choice, since
# RL-Zoo reads a trial without looking at the YAML file's own `replay_buffer_kwargs`.
_SEARCHED = ("alpha", "uniform_share")
_SEARCHED_WITH_GOALS = ("n_sampled_goal", "goal_selection_strategy")
_FIXED = "replay_buffer_kwargs."
# RL-Zoo has no search for CrossQ: SAC's, without tau.
_SEARCHED_AS = {"crossq": "sac"}
# Searched for the base, and unused here: CrossQ has no target networks, Rainbow explores by noise.
_UNUSED = {"per_crossq": ("tau",), "rainbow": ("exploration_fraction", "exploration_final_eps")}


def sampler_of(algorithm: str) -> Sampler:
    """
    Return a function that suggests what RL-Zoo suggests for the base, and our own options.

    RL-Zoo calls it with the trial, the numbers of actions and environments, and
    ``additional_args``, whose ``her_kwargs`` are the YAML file's ``replay_buffer_kwargs``. Options
    that it names keep their values. It returns the arguments of our algorithm: the trial's
    parameters, converted by ``converter_of``, with the action noise of TD3 and DDPG as an object.

    :param algorithm: One of ``ALGORITHMS``.
    """
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_SAMPLER

    base = BASES[algorithm]
    sample_base = HYPERPARAMS_SAMPLER[_SEARCHED_AS.get(base, base)]
    convert = converter_of(algorithm)

    def sample(
        trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]
    ) -> dict[str, Any]:
        of_base = sample_base(trial, n_actions, n_envs, additional_args)
        _suggest_options(trial, algorithm, additional_args.get("her_kwargs", {}))
        sampled = convert(trial.params)
        # RL-Zoo makes noise from these two only when it reads a stored trial.
        if sampled.pop("noise_type", None) is not None:
            del sampled["noise_std"]
            # None instead of the noise of the YAML file.
            sampled["action_noise"] = of_base.get("action_noise")
        return sampled

    return sample


def converter_of(algorithm: str) -> Converter:
    """Return a function that makes arguments of our algorithm from the parameters of a trial."""
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER

    base = BASES[algorithm]
    convert_base = HYPERPARAMS_CONVERTER[_SEARCHED_AS.get(base, base)]

    def convert(sampled_params: dict[str, Any]) -> dict[str, Any]:
        of_buffer, others = {}, {}
        for name, value in sampled_params.items():
            if name.startswith(_FIXED):
                of_buffer[name.removeprefix(_FIXED)] = json.loads(value)
            elif name in (*_SEARCHED, *_SEARCHED_WITH_GOALS):
                of_buffer[name] = value
            else:
                others[name] = value
        if "beta_first" in others:
            first, rise = others.pop("beta_first"), others.pop("beta_rise")
            of_buffer["beta"] = [first, first + rise * (1 - first)]
        if others.get("noise_type", "") is None:  # else the noise of the YAML file would stay
            others |= {"noise_type": "normal", "noise_std": 0.0}
        converted = {**convert_base(others), "replay_buffer_kwargs": of_buffer}
        # RL-Zoo would replace those of the section, with its network for images (its issue #431).
        del converted["policy_kwargs"]
        for unused in _UNUSED.get(algorithm, ()):
            del converted[unused]
        return converted

    return convert


def _suggest_options(trial: optuna.Trial, algorithm: str, fixed: dict[str, Any]) -> None:
    if "alpha" not in fixed:
        trial.suggest_float("alpha", 0.0, 1.0)
    if "uniform_share" not in fixed:
        # A share above 0 needs replacement.
        shares = [0.0, 0.1, 0.5] if fixed.get("replacement", True) else [0.0]
        trial.suggest_categorical("uniform_share", shares)
    options = {**ALGORITHMS[algorithm].default_options, **fixed}
    if "beta" not in fixed and options["prioritization"] != "lap":  # which needs no weights
        trial.suggest_float("beta_first", 0.0, 1.0)
        trial.suggest_float("beta_rise", 0.0, 1.0)  # the part of the way to 1
    for name, value in fixed.items():
        if name not in trial.params:
            trial.suggest_categorical(_FIXED + name, [json.dumps(value)])
