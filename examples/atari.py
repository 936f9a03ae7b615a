"""Learn an Atari game from 100,000 steps; an interrupted run continues: pip install ".[atari]"."""

import ale_py
import gymnasium as gym
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack

from sb3_per import CheckpointCallback, Rainbow, latest_checkpoint, load_checkpoint

# Data-Efficient Rainbow (van Hasselt et al. 2019, https://arxiv.org/abs/1906.05243), with half of
# each batch uniform.
SETTINGS = {
    "buffer_size": 100_000,
    "learning_starts": 1_600,
    "n_steps": 20,
    "train_freq": 1,
    "target_update_interval": 2_000,
    "policy_kwargs": {
        "features_extractor_kwargs": {"layers": [[32, 5, 5], [64, 5, 5]]},
        "net_arch": [256],
        "noisy_sigma": 0.1,
        "optimizer_kwargs": {"eps": 1.5e-4},
    },
    "replay_buffer_kwargs": {"uniform_share": 0.5},
}


def make_game(game: str, seed: int) -> VecEnv:
    return VecFrameStack(make_atari_env(f"{game}NoFrameskip-v4", seed=seed), n_stack=4)


def main(game: str = "Krull", total_timesteps: int = 100_000, n_games: int = 20) -> Rainbow:
    gym.register_envs(ale_py)
    env, folder = make_game(game, seed=0), f"runs/{game}"
    path = latest_checkpoint(folder)
    if path is None:
        model = Rainbow("CnnPolicy", env, seed=0, **SETTINGS)
    else:
        model = load_checkpoint(path, env)
    n_left = total_timesteps - model.num_timesteps
    callback = CheckpointCallback(10_000, folder, keep=2)
    model.learn(n_left, callback=callback, reset_num_timesteps=False, progress_bar=True)
    mean, _ = evaluate_policy(model, make_game(game, seed=1), n_eval_episodes=n_games)
    print(f"{game}: mean return of {n_games} games {mean:.1f}")
    return model


if __name__ == "__main__":
    main()
