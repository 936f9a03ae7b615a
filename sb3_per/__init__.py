"""Prioritized experience replay for Stable-Baselines3."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_per.algorithms.crossq import PERCrossQ
    from sb3_per.algorithms.dqn import PERDQN
    from sb3_per.algorithms.qrdqn import PERQRDQN
    from sb3_per.algorithms.rainbow import Rainbow
    from sb3_per.algorithms.sac import PERSAC
    from sb3_per.algorithms.td3 import PERDDPG, PERTD3
    from sb3_per.algorithms.tqc import PERTQC
    from sb3_per.buffers import (
        PrioritizedDictReplayBuffer,
        PrioritizedHerReplayBuffer,
        PrioritizedReplayBuffer,
        PrioritizedReplayBufferSamples,
    )
    from sb3_per.buffers.sources import collect
    from sb3_per.options import PAPER
    from sb3_per.saving.buffers import load_buffer, save_buffer
    from sb3_per.saving.checkpoints import (
        CheckpointCallback,
        latest_checkpoint,
        load_checkpoint,
        save_checkpoint,
    )

__version__ = "0.3.0.dev0"

__all__ = [
    "PAPER",
    "PERDDPG",
    "PERDQN",
    "PERSAC",
    "PERTD3",
    "CheckpointCallback",
    "PrioritizedDictReplayBuffer",
    "PrioritizedHerReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "Rainbow",
    "__version__",
    "collect",
    "latest_checkpoint",
    "load_buffer",
    "load_checkpoint",
    "save_buffer",
    "save_checkpoint",
]
if importlib.util.find_spec("sb3_contrib") is not None:  # else `import *` and `help` would fail
    __all__ += ["PERQRDQN", "PERTQC", "PERCrossQ"]

# The module of each public name, imported when the name is first used.
_MODULES = {
    "PERCrossQ": "algorithms.crossq",
    "PERDDPG": "algorithms.td3",
    "PERDQN": "algorithms.dqn",
    "PERQRDQN": "algorithms.qrdqn",
    "PERSAC": "algorithms.sac",
    "PERTD3": "algorithms.td3",
    "PERTQC": "algorithms.tqc",
    "Rainbow": "algorithms.rainbow",
    "PAPER": "options",
    "collect": "buffers.sources",
    "CheckpointCallback": "saving.checkpoints",
    "PrioritizedDictReplayBuffer": "buffers",
    "PrioritizedHerReplayBuffer": "buffers",
    "PrioritizedReplayBuffer": "buffers",
    "PrioritizedReplayBufferSamples": "buffers",
    "latest_checkpoint": "saving.checkpoints",
    "load_buffer": "saving.buffers",
    "load_checkpoint": "saving.checkpoints",
    "save_buffer": "saving.buffers",
    "save_checkpoint": "saving.checkpoints",
}


def __getattr__(name: str) -> Any:
    # Modules are imported only when a name is used: gymnasium before 1.0 imports `sb3_per.envs` in
    # the middle of its own import. Torch would take seconds there, and SB3 needs all of gymnasium.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"sb3_per.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "sb3_contrib":
            raise
        from sb3_per._utils import install

        message = f"sb3_per.{name} needs sb3-contrib: {install('contrib')}"
        raise ImportError(message, name=error.name) from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
