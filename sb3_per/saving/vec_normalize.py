"""The statistics of a ``VecNormalize``: read and restored."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.rules import require
from sb3_per.saving.structure import ANYTHING, OBJECT, check_structure, number, refusing

_STRUCTURE = {"observations": OBJECT, "returns": OBJECT}
_MEANS = {"mean": ANYTHING, "var": ANYTHING, "count": number(0, 1e300)}


def normalization_of(env: VecNormalize | None) -> dict[str, Any] | None:
    """Return the statistics as JSON; None without a ``VecNormalize``."""
    if env is None:
        return None
    return {
        "observations": {key: _to_lists(one) for key, one in _observation_means(env).items()},
        "returns": _to_lists(env.ret_rms),
    }


def restore_normalization(env: VecNormalize | None, stored: dict[str, Any] | None) -> None:
    """
    Let a ``VecNormalize`` continue from statistics of ``normalization_of``.

    :raises ValueError: before anything has changed, if only the saved or only the present run has a
        ``VecNormalize``, or if it normalizes other observations.
    """
    rule = "the environment must be wrapped in VecNormalize if and only if it was when saved"
    require((env is None) == (stored is None), rule, env)
    if env is None or stored is None:
        return
    check_structure(stored, _STRUCTURE, "stored normalization")
    # None stands for the returns, since a Dict may have any text for a key.
    means: dict[Any, RunningMeanStd] = {None: env.ret_rms, **_observation_means(env)}
    of_keys: dict[Any, Any] = {None: stored["returns"], **stored["observations"]}
    observations = [*stored["observations"]]
    rule = f"VecNormalize must normalize the same observations as when saved: {observations}"
    require(means.keys() == of_keys.keys(), rule, [*means][1:])
    read = {key: _from_lists(one, of_keys[key]) for key, one in means.items()}
    for key, one in means.items():
        one.mean, one.var, one.count = read[key]


def _observation_means(env: VecNormalize) -> dict[str, RunningMeanStd]:
    """Return running means by the keys of a Dict, or under an empty key without a Dict."""
    if not env.norm_obs:
        return {}
    return env.obs_rms if isinstance(env.obs_rms, dict) else {"": env.obs_rms}


def _to_lists(one: RunningMeanStd) -> dict[str, Any]:
    return {
        "mean": np.asarray(one.mean).tolist(),
        "var": np.asarray(one.var).tolist(),
        "count": one.count,
    }


def _from_lists(one: RunningMeanStd, stored: Any) -> tuple[NDArray[Any], NDArray[Any], float]:
    check_structure(stored, _MEANS, "stored means")
    with refusing("stored means must be numbers"):
        mean, var = (np.array(stored[name], dtype=np.float64) for name in ("mean", "var"))
    fits = mean.shape == var.shape == np.shape(one.mean)
    require(fits, f"stored means must have the shape {np.shape(one.mean)}", mean.shape)
    is_finite = np.isfinite(mean).all() and np.isfinite(var).all() and (var >= 0).all()
    require(bool(is_finite), "stored means and variances must be finite", stored)
    return mean, var, stored["count"]
