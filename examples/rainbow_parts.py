"""Train Rainbow, and Rainbow without one of its parts at a time, on CartPole: three minutes."""

import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import Rainbow

SETTINGS = {
    "learning_rate": 1e-3,
    "batch_size": 64,
    "n_steps": 5,
    "gradient_steps": 2,
    "target_update_interval": 128,
    "learning_starts": 500,
}
NETWORK = {"net_arch": [128], "v_min": -10, "v_max": 110}
# What each variant changes: options of the policy, and others.
VARIANTS = {
    "Rainbow": ({}, {}),
    "without priorities": ({}, {"replay_buffer_kwargs": {"alpha": 0.0, "beta": 0.0}}),
    "without noisy layers": ({"noisy": False}, {}),
    "without distributions": ({"n_atoms": 1}, {}),
    "without dueling": ({"dueling": False}, {}),
    "with one-step returns": ({}, {"n_steps": 1}),
    "without Double Q-learning": ({}, {"double_q": False}),
}


def main(total_timesteps: int = 10_000) -> dict[str, float]:
    """Return the mean return of each variant."""
    torch.set_num_threads(1)
    returns = {}
    for name, (parts, options) in VARIANTS.items():
        policy_kwargs = {**NETWORK, **parts}
        arguments = {**SETTINGS, **options, "policy_kwargs": policy_kwargs, "seed": 0}
        model = Rainbow("MlpPolicy", "CartPole-v1", **arguments).learn(total_timesteps)
        returns[name], _ = evaluate_policy(model, make_vec_env("CartPole-v1", seed=1), 20)
        print(f"{name}: {returns[name]:.0f}")
    print("One seed shows that it runs, not which is better.")
    return returns


if __name__ == "__main__":
    main()
