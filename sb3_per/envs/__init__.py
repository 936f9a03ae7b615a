"""
Our environments in gymnasium's registry: BlindCliffwalk (Schaul et al. 2016) and tasks with goals.

Importing this package registers them, so ``gym.make("sb3_per.envs:sb3_per/BlindCliffwalk-v0")``
works. An environment's module is imported only when the environment is made or named.
"""

from typing import TYPE_CHECKING, Any

from sb3_per.envs.registration import BLIND_CLIFFWALK, register

if TYPE_CHECKING:
    from sb3_per.envs.blind_cliffwalk import NOISES, BlindCliffwalk

__all__ = ["BLIND_CLIFFWALK", "NOISES", "BlindCliffwalk", "register"]


def __getattr__(name: str) -> Any:
    # Gymnasium before 1.0 imports this package in the middle of its own import, when the modules of
    # the environments cannot be imported yet.
    if name not in ("NOISES", "BlindCliffwalk"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sb3_per.envs import blind_cliffwalk

    return getattr(blind_cliffwalk, name)


register()
