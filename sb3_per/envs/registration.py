"""Our environments in gymnasium's registry. Importing this module imports nothing else."""

BLIND_CLIFFWALK = "sb3_per/BlindCliffwalk-v0"
BLIND_CLIFFWALK_6 = "sb3_per/BlindCliffwalk6-v0"
POINT_REACH = "sb3_per/PointReach-v0"
BIT_FLIPPING = "sb3_per/BitFlipping-v0"

ENTRY_POINTS = {
    BLIND_CLIFFWALK: "sb3_per.envs:BlindCliffwalk",
    BLIND_CLIFFWALK_6: "sb3_per.envs:BlindCliffwalk",
    POINT_REACH: "sb3_per.envs.point_reach:PointReach",
    # SB3 does not register it.
    BIT_FLIPPING: "stable_baselines3.common.envs:BitFlippingEnv",
}
# RL-Zoo does not evaluate with the `env_kwargs` of a YAML file, so names stand for them.
KWARGS = {BLIND_CLIFFWALK_6: {"n": 6}}


def register() -> None:
    """
    Enter our environments, and SB3's BitFlippingEnv, into gymnasium's registry.

    A second call changes nothing. Gymnasium before 1.0 calls this function in the middle of its own
    import (a plugin entry point). Later versions have no plugins: importing ``sb3_per.envs`` calls
    it, and ``gym.make("sb3_per.envs:sb3_per/BlindCliffwalk-v0")`` imports ``sb3_per.envs``.
    """
    # Imported here, because only this module of gymnasium is complete in the middle of its import.
    from gymnasium.envs.registration import register, registry

    for name, entry_point in ENTRY_POINTS.items():
        if name not in registry:
            register(name, entry_point=entry_point, kwargs=KWARGS.get(name, {}))
