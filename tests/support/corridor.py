"""A deterministic environment, and a PERDQN that notes its batches."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_per import PERDQN


class Corridor(gym.Env):
    """Ten steps to the left or right from the middle; all episodes start alike."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-10, 10, (2,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.time = 0
        return self.observation(), {}

    def observation(self):
        return np.array([self.place, self.time], dtype=np.float32)

    def step(self, action):
        self.place += 2 * int(action) - 1
        self.time += 1
        return self.observation(), self.place / 10, self.time == 10, False, {}


class DictCorridor(Corridor):
    observation_space = spaces.Dict({"both": Corridor.observation_space})

    def observation(self):
        return {"both": super().observation()}


class NotingPERDQN(PERDQN):
    """Notes (slots, weights, loss) of every gradient step, of all models together."""

    notes: ClassVar[list] = []

    def weighted_loss(self, batch):
        loss, td_errors = super().weighted_loss(batch)
        self.notes.append((batch.slots.tolist(), batch.weights.tolist(), loss.item()))
        return loss, td_errors


def make(env=None, kind=NotingPERDQN, **options):
    fixed = {"learning_starts": 25, "buffer_size": 150, "batch_size": 8, "train_freq": 1}
    fixed |= {"target_update_interval": 30, "exploration_fraction": 0.9, "seed": 0, "device": "cpu"}
    env = env or Corridor()
    has_dict = isinstance(env.observation_space, spaces.Dict)
    policy = "MultiInputPolicy" if has_dict else "MlpPolicy"
    network = {"policy_kwargs": {"net_arch": [8]}}
    return kind(policy, env, **{**fixed, **network, **options})
