"""A goal environment whose episodes all start alike."""

import gymnasium as gym
import numpy as np
from builders import BOX, TWO_ACTIONS
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

GOAL_SPACE = spaces.Dict({"observation": BOX, "achieved_goal": BOX, "desired_goal": BOX})


class Line(gym.Env):
    """Walk to a goal on a line in nine steps."""

    observation_space = GOAL_SPACE

    def __init__(self, discrete=True):
        self.action_space = TWO_ACTIONS if discrete else spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.place = 0, np.zeros(2, np.float32)
        return self.observe(), {}

    def observe(self):
        goal = np.array([3, 0], np.float32)
        return {
            "observation": self.place.copy(),
            "achieved_goal": self.place.copy(),
            "desired_goal": goal,
        }

    def step(self, action):
        self.time += 1
        self.place[0] += float(np.asarray(action).flatten()[0])
        seen = self.observe()
        reward = self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {})
        return seen, float(reward), False, self.time == 9, {}

    def compute_reward(self, achieved, desired, infos):
        return -(np.abs(achieved - desired).sum(axis=-1) > 0.5).astype(np.float32)


def goal_envs(n_envs):
    return DummyVecEnv([Line] * n_envs)
