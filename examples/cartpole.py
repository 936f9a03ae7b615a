"""Train PERDQN on CartPole-v1; evaluate the last policy and the best one of training."""

import argparse
from pathlib import Path

import torch
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PAPER, PERDQN

# Chosen on seeds 100 and up (docs/results/first-run.md), and as in sb3_per/configs/per_dqn.yml.
SETTINGS = {
    "learning_rate": lambda left: 3e-3 * left,
    "batch_size": 128,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "train_freq": 8,
    "gradient_steps": 4,
    "target_update_interval": 128,
    "n_steps": 5,
    "exploration_fraction": 0.2,
    "exploration_final_eps": 0.04,
    "double_q": True,
}
REPLAY = {**PAPER, "beta": 0.4, "weight_normalization": "mean"}
VARIANTS = {"proportional": (0.99, {}), "rank": (0.995, {"prioritization": "rank", "alpha": 0.7})}
BEST = Path("runs/cartpole")


def main(seed: int = 0, variant: str = "proportional", steps: int = 50_000) -> tuple[float, float]:
    gamma, buffer = VARIANTS[variant]
    options = {"gamma": gamma, "replay_buffer_kwargs": {**REPLAY, **buffer}}
    model = PERDQN("MlpPolicy", "CartPole-v1", seed=seed, device="cpu", **SETTINGS, **options)
    eval_env, test_env = (make_vec_env("CartPole-v1", 100, seed + 10_000 * n) for n in (1, 2))
    schedule = {"n_eval_episodes": 100, "eval_freq": min(2500, steps // 2), "verbose": 0}
    callback = EvalCallback(eval_env, best_model_save_path=str(BEST), **schedule)
    model.learn(steps, callback=callback, progress_bar=True)
    best_model = PERDQN.load(BEST / "best_model", device="cpu")
    last, best = (evaluate_policy(policy, test_env, 100)[0] for policy in (model, best_model))
    print(f"{variant}, seed {seed}: mean return {last:.1f}, best policy {best:.1f} (100 episodes)")
    print(f"The best policy is {BEST / 'best_model.zip'}.")
    return last, best


def watch() -> None:
    """Show the best policy in a window, which needs pygame: gymnasium[classic-control]."""
    env = make_vec_env("CartPole-v1", env_kwargs={"render_mode": "human"})
    model = PERDQN.load(BEST / "best_model")
    evaluate_policy(model, env, n_eval_episodes=3, render=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster for small networks
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variant", choices=VARIANTS, default="proportional")
    parser.add_argument("--watch", action="store_true", help="show the best policy")
    arguments = vars(parser.parse_args())
    watch() if arguments.pop("watch") else main(**arguments)
