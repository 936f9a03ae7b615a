"""Our environments in gymnasium's registry. This module imports nothing until it is called."""

BLIND_CLIFFWALK = "sb3_per/BlindCliffwalk-v0"
POINT_REACH = "sb3_per/PointReach-v0"
BIT_FLIPPING = "sb3_per/BitFlipping-v0"

ENTRY_POINTS = {
    BLIND_CLIFFWALK: "sb3_per.envs:BlindCliffwalk",
    POINT_REACH: "sb3_per.envs.point_reach:PointReach",
    # SB3 has no id for its own.
    BIT_FLIPPING: "stable_baselines3.common.envs:BitFlippingEnv",
}


def register() -> None:
    """
    Enter our environments, and SB3's BitFlippingEnv, into gymnasium's registry.

    A second call changes nothing. Gymnasium before 1.0 calls this in the middle of its own import
    (its plugin entry point). Later versions have no plugins: there, importing ``sb3_per.envs`` does
    it, which ``gym.make("sb3_per.envs:sb3_per/BlindCliffwalk-v0")`` does by itself.
    """
    # From the module that is complete by then; and an environment's own is loaded by `make`.
    from gymnasium.envs.registration import register, registry

    for name, entry_point in ENTRY_POINTS.items():
        if name not in registry:
            register(name, entry_point=entry_point)
