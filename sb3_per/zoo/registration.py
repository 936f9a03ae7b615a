"""RL-Zoo learns of PERDQN: its algorithm table, its Optuna tables, the names in its YAML files."""

import importlib.util
import pathlib
from typing import Any

import gymnasium as gym
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_per.algorithms.dqn import PERDQN
from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.envs.registration import register as register_envs
from sb3_per.rules import require
from sb3_per.zoo.search_space import convert_per_dqn, sample_per_dqn

ALGORITHMS: dict[str, type[OffPolicyAlgorithm]] = {"per_dqn": PERDQN}
_BUFFERS = (PrioritizedReplayBuffer, PrioritizedDictReplayBuffer)


def register() -> None:
    """
    Enter ``per_dqn`` into RL-Zoo's tables, and BlindCliffwalk and MinAtar's environments, if it is
    installed, into gymnasium's. A second call changes nothing. RL-Zoo looks for hyperparameters in
    its own folder: give it ``config_file("per_dqn")``.

    :raises ValueError: if RL-Zoo knows another algorithm by one of our names; nothing has changed
        then.
    """
    # Here rather than above: RL-Zoo patches gymnasium when it is imported, which no one who only
    # looks at this module has asked for.
    from rl_zoo3 import exp_manager, hyperparams_opt, utils

    for name, algorithm in ALGORITHMS.items():
        known = utils.ALGOS.get(name, algorithm)
        require(
            issubclass(known, algorithm), f"the name {name!r} must be free in RL-Zoo's ALGOS", known
        )
    # RL-Zoo's other modules import this very dict, so they see the new key.
    utils.ALGOS.update(ALGORITHMS)
    hyperparams_opt.HYPERPARAMS_SAMPLER["per_dqn"] = sample_per_dqn
    hyperparams_opt.HYPERPARAMS_CONVERTER["per_dqn"] = convert_per_dqn
    for buffer in _BUFFERS:
        # The module in which RL-Zoo evaluates the text of `replay_buffer_class`.
        setattr(exp_manager, buffer.__name__, buffer)
    register_envs()
    _register_minatar()


def load_without_buffers() -> None:
    """
    Let RL-Zoo load ``per_dqn`` with a buffer of one transition, as it does for its own algorithms
    where agents are only watched: images may need more memory than there is.
    """
    from rl_zoo3 import utils

    utils.ALGOS["per_dqn"] = _Watched


class _Watched(PERDQN):
    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> PERDQN:  # type: ignore[override]  # what it is given
        return PERDQN.load(*args, **{"buffer_size": 1, **kwargs})


def _register_minatar() -> None:
    # RL-Zoo's --gym-packages cannot do it: MinAtar registers when called, not when imported.
    if importlib.util.find_spec("minatar") is None or "MinAtar/Breakout-v1" in gym.registry:
        return
    from minatar.gym import register_envs

    register_envs()


def config_folder() -> pathlib.Path:
    """:return: Where our YAML files are: beside this module, installed or in a checkout."""
    return pathlib.Path(__file__).parent / "configs"


def config_file(algorithm: str) -> pathlib.Path:
    """:return: The default configuration of one of ``ALGORITHMS``."""
    return config_folder() / f"{algorithm}.yml"
