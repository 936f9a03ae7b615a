"""Algorithms of Stable-Baselines3 that learn from prioritized replay buffers."""

from __future__ import annotations

from importlib.util import find_spec

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.algorithms.continuous import PERDDPG, PERSAC, PERTD3
from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.rainbow import Rainbow

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
    from sb3_per.algorithms.contrib import PERQRDQN, PERTQC, PERCrossQ

    __all__ += ["PERQRDQN", "PERTQC", "PERCrossQ"]
    ALGORITHMS |= {"per_qrdqn": PERQRDQN, "per_tqc": PERTQC, "per_crossq": PERCrossQ}
