"""Flip bits until all are one, with hindsight replay: reached states become goals."""

import argparse

import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN, PrioritizedHerReplayBuffer


def main(total_timesteps: int = 6000, n_bits: int = 10, seed: int = 0) -> float:
    env = make_vec_env(BitFlippingEnv, n_envs=2, seed=seed, env_kwargs={"n_bits": n_bits})
    model = PERDQN(
        "MultiInputPolicy",
        env,
        learning_rate=2e-3,
        learning_starts=4 * n_bits,  # an episode of each environment has to end first
        train_freq=1,
        gradient_steps=2,
        exploration_final_eps=0.02,
        target_update_interval=100,
        replay_buffer_class=PrioritizedHerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        seed=seed,
        device="cpu",
    )
    model.learn(total_timesteps)
    # An episode's return is minus the number of steps that did not reach the goal.
    returns, _ = evaluate_policy(model, env, n_eval_episodes=50, return_episode_rewards=True)
    solved = sum(episode_return > -n_bits for episode_return in returns) / len(returns)
    print(f"all {n_bits} bits set in {solved:.0%} of {len(returns)} episodes")
    return solved


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster for small networks
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-bits", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
