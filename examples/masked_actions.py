"""
PERDQN and Rainbow with invalid actions: they are never taken, and no target assumes one.

As for sb3-contrib's MaskablePPO, the environment has a method ``action_masks``, which says for each
action whether it is valid now. A wrapper puts the mask into the observation, so that the replay
buffer stores the masks of the next observations, which the targets need.
"""

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.dqn.policies import MultiInputPolicy, QNetwork

from sb3_per import PERDQN, Rainbow
from sb3_per.algorithms.networks import MultiInputRainbowPolicy, RainbowNetwork


class MaskInObservation(gym.ObservationWrapper):
    """Observations become dicts of the observation and the mask."""

    def __init__(self, env):
        super().__init__(env)
        mask = gym.spaces.MultiBinary(int(env.action_space.n))
        self.observation_space = gym.spaces.Dict(observation=env.observation_space, mask=mask)

    def observation(self, observation):
        return {"observation": observation, "mask": self.get_wrapper_attr("action_masks")()}


def masked(q_values, observations):
    return q_values.masked_fill(observations["mask"] == 0, -1e8)


class MaskedNetwork(QNetwork):
    def forward(self, obs):
        return masked(super().forward(obs), obs)


class MaskedPolicy(MultiInputPolicy):
    def make_q_net(self):
        return MaskedNetwork(**self._update_features_extractor(self.net_args)).to(self.device)


class MaskedRainbowNetwork(RainbowNetwork):
    def q_values(self, logits, obs):
        return masked(super().q_values(logits, obs), obs)


class MaskedRainbowPolicy(MultiInputRainbowPolicy):
    network_class = MaskedRainbowNetwork


class ValidExploration:
    """Random actions are valid, before learning starts and by epsilon."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        epsilon = 1 if self.num_timesteps < self.learning_starts else self.exploration_rate
        random = self.action_space.np_random
        if deterministic or random.random() >= epsilon:
            return self.policy.predict(observation, state, episode_start, deterministic)
        masks = observation["mask"]
        return (masks + random.random(masks.shape)).argmax(axis=-1), state

    def collect_rollouts(self, *args, learning_starts=0, **kwargs):
        # SB3 would take random actions itself until learning starts: any action.
        return super().collect_rollouts(*args, learning_starts=0, **kwargs)


class MaskedPERDQN(ValidExploration, PERDQN):
    pass


class MaskedRainbow(ValidExploration, Rainbow):
    pass


class Picking(gym.Env):
    """Pick each of six items once; the sooner, the more it pays, in proportion to its value."""

    values = np.array([0.3, 0.9, 0.1, 0.6, 0.2, 0.5])
    action_space = gym.spaces.Discrete(6)
    observation_space = gym.spaces.MultiBinary(6)

    def action_masks(self):
        return self.left.copy()

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left = np.ones(6, np.int8)
        return self.left.copy(), {}

    def step(self, action):
        if not self.left[action]:
            raise ValueError(f"item {action} has been picked")
        reward = self.values[action] * self.left.sum() / 6
        self.left[action] = 0
        return self.left.copy(), reward, not self.left.any(), False, {}


def main(total_timesteps: int = 3_000) -> dict[str, float]:
    """Return the mean returns."""
    options = {"learning_rate": 1e-3, "learning_starts": 200, "train_freq": 1}
    options |= {"target_update_interval": 100}
    support = {"v_min": -2.0, "v_max": 2.0}
    variants = (MaskedPERDQN, MaskedPolicy, {}), (MaskedRainbow, MaskedRainbowPolicy, support)
    returns = {}
    for algorithm, policy, network in variants:
        env = make_vec_env(Picking, wrapper_class=MaskInObservation, n_envs=2)
        model = algorithm(policy, env, policy_kwargs=network, seed=0, **options)
        model.learn(total_timesteps)
        name = algorithm.__name__
        returns[name], _ = evaluate_policy(model, env, n_eval_episodes=1)
        print(f"{name}: mean return {returns[name]:.2f} (random order: 1.52, best: 1.97)")
    return returns


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster for small networks
    main()
