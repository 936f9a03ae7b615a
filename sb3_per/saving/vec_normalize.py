"""Running means of a ``VecNormalize``: read, and put back."""

from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.rules import require


def normalization_of(env: VecNormalize | None) -> dict[str, Any] | None:
    """What fits into JSON; None without a ``VecNormalize``."""
    if env is None:
        return None
    return {
        "observations": {key: _to_lists(one) for key, one in _observation_means(env).items()},
        "returns": _to_lists(env.ret_rms),
    }


def restore_normalization(env: VecNormalize | None, stored: dict[str, Any] | None) -> None:
    """
    Let a ``VecNormalize`` go on from what ``normalization_of`` read.

    :raises ValueError: if there is one now and was none then, or the other way round, or if it
        normalizes other observations.
    """
    rule = "the environment must be wrapped in VecNormalize exactly if it was on saving"
    require((env is None) == (stored is None), rule, env)
    if env is None or stored is None:
        return
    means = _observation_means(env)
    rule = f"VecNormalize must normalize the observations that it did: {[*stored['observations']]}"
    require(means.keys() == stored["observations"].keys(), rule, [*means])
    for key, one in means.items():
        _from_lists(one, stored["observations"][key])
    _from_lists(env.ret_rms, stored["returns"])


def _observation_means(env: VecNormalize) -> dict[str, RunningMeanStd]:
    """By key of a Dict; under an empty one otherwise."""
    if not env.norm_obs:
        return {}
    return env.obs_rms if isinstance(env.obs_rms, dict) else {"": env.obs_rms}


def _to_lists(one: RunningMeanStd) -> dict[str, Any]:
    return {
        "mean": np.asarray(one.mean).tolist(),
        "var": np.asarray(one.var).tolist(),
        "count": one.count,
    }


def _from_lists(one: RunningMeanStd, stored: dict[str, Any]) -> None:
    one.mean, one.var = np.array(stored["mean"]), np.array(stored["var"])
    one.count = stored["count"]
