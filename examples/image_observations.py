"""Learn from images: a bright column of pixels shows which of four actions earns a reward."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN


class BrightColumn(gym.Env):
    """Synthetic 36x36 frames; the action has to name the quarter that holds the bright column."""

    observation_space, action_space = Box(0, 255, (36, 36, 1), np.uint8), Discrete(4)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.column, self.n_steps = self.np_random.integers(36), 0
        return self.draw(), {}

    def step(self, action):
        reward = float(action == self.column // 9)
        self.column, self.n_steps = self.np_random.integers(36), self.n_steps + 1
        return self.draw(), reward, False, self.n_steps == 20, {}

    def draw(self):
        frame = self.np_random.integers(0, 100, (36, 36, 1), dtype=np.uint8)
        frame[:, self.column] = 255
        return frame


def main(total_timesteps: int = 2500) -> None:
    model = PERDQN("CnnPolicy", BrightColumn(), 1e-3, buffer_size=4000, gamma=0.0, seed=0)
    mean, _ = evaluate_policy(model.learn(total_timesteps), make_vec_env(BrightColumn))
    print(f"{mean:.1f} of 20 frames read correctly (by chance: 5)")


if __name__ == "__main__":
    main()
