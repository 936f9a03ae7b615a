"""Learn from Dict observations, in four environments at once, with three-step returns."""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN


class Corridor(gym.Env):
    """Walk to the goal, to the left or to the right of the middle; 20 steps at most."""

    observation_space = Dict(position=Box(-1, 1, (1,), np.float32), goal=Discrete(2))
    action_space = Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.n_steps, self.goal = 0, 0, int(self.np_random.integers(2))
        return self.look(), {}

    def step(self, action):
        self.position, self.n_steps = self.position + 2 * int(action) - 1, self.n_steps + 1
        reward = float(self.position == 10 * self.goal - 5)
        return self.look(), reward, abs(self.position) == 5, self.n_steps == 20, {}

    def look(self):
        return {"position": np.array([self.position / 5], np.float32), "goal": self.goal}


def main(total_timesteps: int = 12_000) -> None:
    env, options = make_vec_env(Corridor, n_envs=4), {"target_update_interval": 500, "n_steps": 3}
    model = PERDQN("MultiInputPolicy", env, 1e-3, seed=0, **options)
    mean, _ = evaluate_policy(model.learn(total_timesteps), make_vec_env(Corridor), 50)
    print(f"goal reached in {mean:.0%} of 50 episodes")


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster for small networks
    main()
