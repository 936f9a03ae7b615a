"""Check that RL-Zoo and gymnasium know all names of a suite, before hours are spent on it."""

import contextlib
import inspect
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from sb3_per.buffers.prioritized import OPTION_NAMES
from sb3_per.experiments.compare import experiment, run_folder
from sb3_per.experiments.compare.problems import Problem, fail, similar
from sb3_per.experiments.compare.suite import Cell, Suite, cells, gym_id
from sb3_per.extras import install
from sb3_per.rules import require, require_whole
from sb3_per.zoo import ALGORITHMS

# RL-Zoo's own keys, which it takes out before an algorithm sees the rest.
_KEYS_OF_RL_ZOO = (
    "callback",
    "env_wrapper",
    "frame_stack",
    "monitor_kwargs",
    "n_envs",
    "noise_std",
    "noise_type",
    "normalize",
    "vec_env_wrapper",
)
# Attributes of models that count something; some have a value with another meaning.
_COUNTS = ("batch_size", "n_epochs", "n_steps", "policy_delay", "target_update_interval")
_COUNTS_OR_SPECIAL = {
    "gradient_steps": -1,  # as many as steps were collected
    "sde_sample_freq": -1,  # only at the start of a rollout
    "top_quantiles_to_drop_per_net": 0,
}
_OPTIONS_OF_HER = ("n_sampled_goal", "goal_selection_strategy", "copy_info_dict")
_ATARI = install("atari").replace("\n", " ")  # a problem is one line
# What installs environments with such names.
_BROUGHT_BY = {
    "MinAtar/": "pip install minatar",
    "MiniGrid-": "pip install minigrid",
    "ALE/": _ATARI,
    "NoFrameskip-": _ATARI,
}


def check_with_zoo(suite: Suite, file: str) -> None:
    """
    Look up all names of a suite, then build each variant's model in each environment.

    :param file: The file that errors name.
    :raises SuiteError: for unknown environments, algorithms, hyperparameters and options of the
        prioritized buffer, for environments that cannot be made, for defaults that differ although
        no variant names them, and for models that cannot be built.
    """
    named = (_unknown_names, _unnamed_defaults, _unmade_environments)
    problems = [problem for find in named for problem in find(suite)]
    if not problems:
        problems = [*_unbuilt_models(suite)]
    if problems:
        fail(file, [*dict.fromkeys(problems)])


def _unknown_names(suite: Suite) -> Iterator[Problem]:
    from rl_zoo3 import ALGOS

    for name, variant in suite.variants.items():
        if variant.algorithm not in ALGOS:
            yield _unknown(("variants", name, "algorithm"), variant.algorithm, [*ALGOS])
            continue
        path: tuple[str, ...] = ("variants", name, "overrides")
        yield from _unknown_keys(path, variant.overrides, variant.algorithm)
        for environment, declared in suite.environments.items():
            path = ("environments", environment, "hyperparameters")
            yield from _unknown_keys(path, declared.hyperparameters, variant.algorithm)


def _unknown_keys(
    path: tuple[str, ...], values: Mapping[str, Any], algorithm: str
) -> Iterator[Problem]:
    known = sorted({*_KEYS_OF_RL_ZOO, *_defaults(algorithm)})
    yield from (_unknown((*path, key), key, known) for key in values if key not in known)
    options = values.get("replay_buffer_kwargs", {})
    if algorithm in ALGORITHMS and isinstance(options, dict):
        known = [*OPTION_NAMES, "n_stack", "handle_timeout_termination", *_OPTIONS_OF_HER]
        path = (*path, "replay_buffer_kwargs")
        yield from (_unknown((*path, key), key, known) for key in options if key not in known)


def _unnamed_defaults(suite: Suite) -> Iterator[Problem]:
    """Find variants that differ from the baseline in defaults that the suite does not name."""
    baseline = suite.variants[suite.baseline].algorithm
    for name, variant in suite.variants.items():
        own, other = _defaults(variant.algorithm), _defaults(baseline)
        differ = {key for key in own.keys() & other.keys() if own[key] != other[key]}
        for environment, declared in suite.environments.items():
            unnamed = differ - declared.hyperparameters.keys() - variant.overrides.keys()
            if unnamed:
                values = ", ".join(f"{key} {own[key]}, not {other[key]}" for key in sorted(unnamed))
                rule = (
                    f"must name the options whose defaults differ from {baseline}'s, or "
                    f"environments.{environment}.hyperparameters must: {values}"
                )
                yield Problem(("variants", name, "overrides"), rule)


def _defaults(algorithm: str) -> dict[str, Any]:
    """Return the arguments of an algorithm; none if there is no such algorithm."""
    from rl_zoo3 import ALGOS

    parameters = inspect.signature(ALGOS[algorithm]).parameters if algorithm in ALGOS else {}
    return {key: each.default for key, each in parameters.items()}


def _unmade_environments(suite: Suite) -> Iterator[Problem]:
    for name, declared in suite.environments.items():
        path = ("environments", name)
        try:
            experiment.import_for(name)
        except Exception as error:
            yield Problem(path, f"cannot be imported: {error}")
            continue
        if gym_id(name) not in gym.registry:
            yield _unknown(path, gym_id(name), [*gym.registry])
            continue
        try:
            gym.make(gym_id(name), **declared.env_kwargs).close()
        except Exception as error:
            rule = f"must be what gym.make accepts, got {declared.env_kwargs}: {error}"
            yield Problem((*path, "env_kwargs"), rule)


def _unbuilt_models(suite: Suite) -> Iterator[Problem]:
    for cell in cells(suite.model_copy(update={"seeds": 1})):
        try:
            _build(cell)
        except Exception as error:
            rule = f"cannot be built in {cell.environment}: {type(error).__name__}: {error}"
            yield Problem(("variants", cell.variant), rule)


def _build(cell: Cell) -> None:
    """
    Make a cell's environments and model as its worker will, and discard them.

    :raises ValueError: for numbers that do not count anything, and if training would end before it
        begins to learn.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        run_folder.cell_folder(folder, cell).mkdir(parents=True)
        manager = experiment.manager(cell, folder, "cpu")
        create = manager.create_envs
        with contextlib.ExitStack() as made:
            manager.create_envs = lambda *args, **kwargs: made.enter_context(
                contextlib.closing(create(*args, **kwargs))
            )
            model, _ = manager.setup_experiment()
        _check_counts(model)
        starts = getattr(model, "learning_starts", 0)
        steps = cell.settings["steps"]
        require(starts < steps, f"learning_starts must be below steps ({steps})", starts)


def _check_counts(model: Any) -> None:
    """Check what SB3 would only notice while it trains, or not at all."""
    counts = {name: getattr(model, name, 1) for name in _COUNTS}
    for name, special in _COUNTS_OR_SPECIAL.items():
        if getattr(model, name, special) != special:
            counts[name] = getattr(model, name)
    if isinstance(getattr(model, "train_freq", None), TrainFreq):
        counts["train_freq"], unit = model.train_freq
        rule = "train_freq must count steps, not episodes, with more than one environment (n_envs)"
        is_of_steps = unit == TrainFrequencyUnit.STEP or model.n_envs == 1
        require(is_of_steps, rule, counts["train_freq"])
    for name, value in counts.items():
        require_whole(name, value)


def _unknown(path: tuple[str, ...], name: str, known: Sequence[str]) -> Problem:
    hint = similar(name, known, otherwise=" (is its package installed?)")
    for part, command in _BROUGHT_BY.items():
        if part in name and not any(part in each for each in known):
            hint = f"; {command}"
    return Problem(path, f"is not known to RL-Zoo or gymnasium: {name!r}{hint}")
