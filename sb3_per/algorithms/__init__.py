"""Algorithms of Stable-Baselines3 that learn from prioritized replay buffers."""

from importlib.util import find_spec

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.rainbow import Rainbow
from sb3_per.algorithms.sac import PERSAC
from sb3_per.algorithms.td3 import PERDDPG, PERTD3

__all__ = ["PERDDPG", "PERDQN", "PERSAC", "PERTD3", "Rainbow"]

# By RL-Zoo's names.
ALGORITHMS: dict[str, type[PrioritizedAlgorithm]] = {
    "per_dqn": PERDQN,
    "per_sac": PERSAC,
    "per_td3": PERTD3,
    "per_ddpg": PERDDPG,
    "rainbow": Rainbow,
}
if find_spec("sb3_contrib"):
    from sb3_per.algorithms.crossq import PERCrossQ
    from sb3_per.algorithms.qrdqn import PERQRDQN
    from sb3_per.algorithms.tqc import PERTQC

    __all__ += ["PERQRDQN", "PERTQC", "PERCrossQ"]
    ALGORITHMS |= {"per_qrdqn": PERQRDQN, "per_tqc": PERTQC, "per_crossq": PERCrossQ}
