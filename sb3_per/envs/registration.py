"""BlindCliffwalk-v0 in gymnasium's registry. This module imports nothing until it is called."""

BLIND_CLIFFWALK = "sb3_per/BlindCliffwalk-v0"


def register() -> None:
    """
    Enter our environment into gymnasium's registry. A second call changes nothing.

    Gymnasium before 1.0 calls this in the middle of its own import (its plugin entry point). Later
    versions have no plugins: there, importing ``sb3_per.envs`` does it, which
    ``gym.make("sb3_per.envs:sb3_per/BlindCliffwalk-v0")`` does by itself.
    """
    # From the module that is complete by then; and the environment's own is loaded by `make`.
    from gymnasium.envs.registration import register, registry

    if BLIND_CLIFFWALK not in registry:
        register(BLIND_CLIFFWALK, entry_point="sb3_per.envs:BlindCliffwalk")
