"""Whether RL-Zoo and gymnasium know what a suite names, before hours are spent on it."""

import contextlib
import dataclasses
import difflib
import inspect
import io
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym

from sb3_per.buffers.prioritized import OPTION_NAMES
from sb3_per.experiments.compare import experiment, results
from sb3_per.experiments.compare.section import SuiteError
from sb3_per.experiments.compare.suite import Cell, Environment, Suite, cells, gym_id

# Keys of RL-Zoo's own, which it takes out before an algorithm sees the rest.
_KEYS_OF_RL_ZOO = {"callback", "env_wrapper", "frame_stack", "monitor_kwargs", "n_envs"} | {
    "normalize",
    "vec_env_wrapper",
}


_ATARI = '"sb3-per[atari]"'
# What has to be installed for environments with such names.
_BROUGHT_BY = {
    "MinAtar/": "minatar",
    "MiniGrid-": "minigrid",
    "ALE/": _ATARI,
    "NoFrameskip-": _ATARI,
}


def check_with_zoo(suite: Suite, file: str) -> None:
    """
    :param file: Named in errors.
    :raises SuiteError: for an environment, an algorithm, a hyperparameter or an option of the
        prioritized buffer that is not known, for an environment that cannot be made, and for a
        variant of which no model can be built in one.
    """
    from rl_zoo3 import ALGOS

    for name, variant in suite.variants.items():
        place = f"{file}: variants.{name}"
        _check_name(f"{place}.algorithm", variant.algorithm, list(ALGOS))
        _check_hyperparameters(f"{place}.overrides", variant.overrides, variant.algorithm)
        for environment, declared in suite.environments.items():
            place = f"{file}: environments.{environment}.hyperparameters"
            _check_hyperparameters(place, declared.hyperparameters, variant.algorithm)
    for name in suite.variants:
        _check_defaults(suite, name, f"{file}: variants.{name}.overrides")
    for name, declared in suite.environments.items():
        _check_environment(name, declared, file)
    for cell in cells(dataclasses.replace(suite, seeds=1)):
        try:
            _build(cell)
        except Exception as error:
            place = f"{file}: variants.{cell.variant} cannot be built in {cell.environment}"
            raise SuiteError(f"{place}: {type(error).__name__}: {error}") from error


def _check_environment(name: str, declared: Environment, file: str) -> None:
    """:raises SuiteError: if gymnasium cannot make it."""
    try:
        experiment.import_for(name)
    except Exception as error:
        raise SuiteError(f"{file}: environments.{name} cannot be imported: {error}") from error
    _check_name(f"{file}: environments.{name}", gym_id(name), list(gym.registry))
    try:
        gym.make(gym_id(name), **declared.env_kwargs).close()
    except Exception as error:
        place = f"{file}: environments.{name}.env_kwargs"
        made_with = f"{declared.env_kwargs}: {error}"
        raise SuiteError(f"{place} must be what gym.make accepts, got {made_with}") from error


def _build(cell: Cell) -> None:
    """Make a cell's environments and model as its worker will, and put all of it away."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        results.cell_folder(folder, cell).mkdir(parents=True)
        manager = experiment.manager(cell, folder, "cpu")
        create = manager.create_envs
        with contextlib.ExitStack() as made:
            manager.create_envs = lambda *args, **kwargs: made.enter_context(
                contextlib.closing(create(*args, **kwargs))
            )
            manager.setup_experiment()


def _check_hyperparameters(place: str, values: dict[str, Any], algorithm: str) -> None:
    from rl_zoo3 import ALGOS

    known = _KEYS_OF_RL_ZOO | set(inspect.signature(ALGOS[algorithm]).parameters)
    for key in values:
        _check_name(f"{place}.{key}", key, sorted(known))
    options = values.get("replay_buffer_kwargs", {})
    if algorithm == "per_dqn" and isinstance(options, dict):
        for key in options:
            place_of_key = f"{place}.replay_buffer_kwargs.{key}"
            _check_name(place_of_key, key, [*OPTION_NAMES, "handle_timeout_termination"])


def _check_defaults(suite: Suite, name: str, place: str) -> None:
    """:raises SuiteError: if a variant differs from the baseline in what nobody has named."""
    variant, baseline = suite.variants[name].algorithm, suite.variants[suite.baseline].algorithm
    own, other = _defaults(variant), _defaults(baseline)
    differ = {key for key in own.keys() & other.keys() if own[key] != other[key]}
    for environment, declared in suite.environments.items():
        unnamed = differ - declared.hyperparameters.keys() - suite.variants[name].overrides.keys()
        if unnamed:
            values = ", ".join(f"{key} {own[key]}, not {other[key]}" for key in sorted(unnamed))
            raise SuiteError(
                f"{place} must name what {variant} and {baseline} have other defaults of, or "
                f"environments.{environment}.hyperparameters must: {values}"
            )


def _defaults(algorithm: str) -> dict[str, Any]:
    from rl_zoo3 import ALGOS

    parameters = inspect.signature(ALGOS[algorithm]).parameters
    return {key: each.default for key, each in parameters.items()}


def _check_name(place: str, name: Any, known: list[str]) -> None:
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else " (is its package installed?)"
    for part, package in _BROUGHT_BY.items():
        if part in name and not any(part in each for each in known):
            hint = f"; pip install {package}"
    raise SuiteError(f"{place} is not known to RL-Zoo or gymnasium: {name!r}{hint}")
