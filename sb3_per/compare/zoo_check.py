"""Whether RL-Zoo and gymnasium know what a suite names, before hours are spent on it."""

import difflib
import inspect
from typing import Any

import gymnasium as gym

from sb3_per.compare.section import SuiteError
from sb3_per.compare.suite import Suite

# Keys of RL-Zoo's own, which it takes out before an algorithm sees the rest.
_KEYS_OF_RL_ZOO = {"callback", "env_wrapper", "frame_stack", "monitor_kwargs", "n_envs"} | {
    "normalize",
    "vec_env_wrapper",
}


def check_with_zoo(suite: Suite, file: str) -> None:
    """
    :param file: Named in errors.
    :raises SuiteError: for an environment, an algorithm or a hyperparameter that is not known.
    """
    from rl_zoo3 import ALGOS

    for name in suite.environments:
        _check_name(f"{file}: environments.{name}", name, list(gym.registry))
    for name, variant in suite.variants.items():
        place = f"{file}: variants.{name}"
        _check_name(f"{place}.algorithm", variant.algorithm, list(ALGOS))
        known = _KEYS_OF_RL_ZOO | set(inspect.signature(ALGOS[variant.algorithm]).parameters)
        for key in variant.overrides:
            _check_name(f"{place}.overrides.{key}", key, sorted(known))


def _check_name(place: str, name: Any, known: list[str]) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else " (is its package installed?)"
        raise SuiteError(f"{place} is not known to RL-Zoo or gymnasium: {name!r}{hint}")
