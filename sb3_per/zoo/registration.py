"""Registration in RL-Zoo: our algorithms, their searches, and the names that YAML files use."""

import importlib.util
import pathlib
from typing import Any

import gymnasium as gym
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.sac import PERSAC
from sb3_per.algorithms.td3 import PERDDPG, PERTD3
from sb3_per.buffers import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
)
from sb3_per.envs.registration import register as register_envs
from sb3_per.extras import install
from sb3_per.rules import require
from sb3_per.zoo.search_space import converter_of, sampler_of

ALGORITHMS: dict[str, type[OffPolicyAlgorithm]] = {
    "per_dqn": PERDQN,
    "per_sac": PERSAC,
    "per_td3": PERTD3,
    "per_ddpg": PERDDPG,
}
if importlib.util.find_spec("sb3_contrib") is not None:  # RL-Zoo brings it
    from sb3_per.algorithms.crossq import PERCrossQ
    from sb3_per.algorithms.qrdqn import PERQRDQN
    from sb3_per.algorithms.tqc import PERTQC

    ALGORITHMS |= {"per_qrdqn": PERQRDQN, "per_tqc": PERTQC, "per_crossq": PERCrossQ}
# RL-Zoo's names of the algorithms that ours are based on.
BASES = {name: name.removeprefix("per_") for name in ALGORITHMS}
MINATAR_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
_BUFFERS = (PrioritizedReplayBuffer, PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer)


def register() -> None:
    """
    Enter our algorithms into RL-Zoo's tables, and our environments into gymnasium's registry.

    MinAtar's environments are registered, too, if MinAtar is installed. A second call undoes
    ``load_without_buffers`` and changes nothing else. RL-Zoo would look for hyperparameters in a
    file named after the algorithm, so pass it ``config_file("per_dqn")``.

    :raises ValueError: if RL-Zoo knows another algorithm by one of our names, and not a subclass of
        ours; nothing has changed then.
    """
    # Imported here, not above: RL-Zoo patches gymnasium when it is imported, and importing this
    # module must not do that.
    from rl_zoo3 import exp_manager, hyperparams_opt, utils

    for name, algorithm in ALGORITHMS.items():
        known = utils.ALGOS.get(name, algorithm)
        require(
            issubclass(known, algorithm), f"the name {name!r} must be free in RL-Zoo's ALGOS", known
        )
    # RL-Zoo's other modules import this very dict, so they see the new keys.
    utils.ALGOS.update(ALGORITHMS)
    for name, base in BASES.items():
        hyperparams_opt.HYPERPARAMS_SAMPLER[name] = sampler_of(base)  # type: ignore[assignment]  # mypy wants the names of its arguments
        hyperparams_opt.HYPERPARAMS_CONVERTER[name] = converter_of(base)  # type: ignore[assignment]  # the same
    for buffer in _BUFFERS:
        # The module in which RL-Zoo evaluates the text of `replay_buffer_class`.
        setattr(exp_manager, buffer.__name__, buffer)
    register_envs()
    _register_minatar()


def load_without_buffers() -> None:
    """
    Let RL-Zoo load our algorithms with a buffer of one transition, for commands that do not train.

    RL-Zoo does the same for its own algorithms: a buffer of images may need more memory than there
    is.
    """
    from rl_zoo3 import utils

    utils.ALGOS.update({name: _watched(algorithm) for name, algorithm in ALGORITHMS.items()})


def _watched(algorithm: type[OffPolicyAlgorithm]) -> type[OffPolicyAlgorithm]:
    def load(cls: type[OffPolicyAlgorithm], *args: Any, **kwargs: Any) -> OffPolicyAlgorithm:
        return algorithm.load(*args, **{"buffer_size": 1, **kwargs})

    return type(algorithm.__name__, (algorithm,), {"load": classmethod(load)})


def _register_minatar() -> None:
    """
    Register MinAtar's environments as its own ``register_envs`` does, without importing MinAtar.

    MinAtar imports seaborn, which would take a second of CPU time in each command and each run.
    """
    # RL-Zoo's --gym-packages cannot do it: MinAtar registers when called, not when imported.
    if importlib.util.find_spec("minatar") is None or "MinAtar/Breakout-v1" in gym.registry:
        return
    for game in MINATAR_GAMES:
        name = game.title().replace("_", "")
        for version, is_minimal in (("v0", False), ("v1", True)):
            gym.register(
                f"MinAtar/{name}-{version}",
                entry_point="minatar.gym:BaseEnv",
                kwargs={"game": game, "use_minimal_action_set": is_minimal},
            )


def config_folder() -> pathlib.Path:
    """Return the folder of our YAML files, whether the package is installed or a checkout."""
    return pathlib.Path(__file__).parent / "configs"


def config_file(algorithm: str) -> pathlib.Path:
    """Return the default YAML file of one of ``ALGORITHMS``: ours, or RL-Zoo's file of its base."""
    own = config_folder() / f"{algorithm}.yml"
    if own.exists():
        return own
    spec = importlib.util.find_spec("rl_zoo3")  # not imported, since that patches gymnasium
    if spec is None or spec.origin is None:
        raise ImportError(f"the YAML file of {algorithm} comes with RL-Zoo: {install('zoo')}")
    return pathlib.Path(spec.origin).parent / "hyperparams" / f"{BASES[algorithm]}.yml"
