"""Train PERDQN on CartPole-v1 and evaluate it: the run behind the README's numbers."""

import argparse

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN

# RL-Zoo's values for DQN, but for the step size: 1e-3 falling to 0 instead of 2.3e-3 throughout, so
# that the last policy is more often a good one and none has to be picked on the way.
HYPERPARAMETERS = {
    "learning_rate": lambda progress_remaining: 1e-3 * progress_remaining,
    **{"batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000},
    **{"train_freq": 256, "gradient_steps": 128, "target_update_interval": 10},
    **{"exploration_fraction": 0.16, "exploration_final_eps": 0.04},
    **{"policy_kwargs": {"net_arch": [256, 256]}, "device": "cpu"},
}
# Alpha and the first beta are those of the paper's table 3.
RANK = {"replay_buffer_kwargs": {"prioritization": "rank", "alpha": 0.7}, "beta_initial": 0.5}
VARIANTS = {"proportional": {}, "rank": RANK}


def main(seed: int = 0, variant: str = "proportional", total_timesteps: int = 50_000) -> float:
    options = HYPERPARAMETERS | VARIANTS[variant]
    model = PERDQN("MlpPolicy", "CartPole-v1", seed=seed, **options)
    model.learn(total_timesteps, progress_bar=True)
    fresh = make_vec_env("CartPole-v1", seed=10_000 + seed)
    mean, std = evaluate_policy(model, fresh, n_eval_episodes=100)
    print(f"{variant}, seed {seed}: mean return {mean:.1f} +- {std:.1f} over 100 episodes")
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variant", choices=VARIANTS, default="proportional")
    main(**vars(parser.parse_args()))
