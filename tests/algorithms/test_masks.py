"""Invalid actions, as in ``examples/masked_actions.py``: never taken, and in no target."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.dqn.policies import QNetwork

from examples.masked_actions import (
    MaskedPERDQN,
    MaskedPolicy,
    MaskedRainbow,
    MaskedRainbowPolicy,
    MaskInObservation,
    Picking,
)
from sb3_per.algorithms.networks import RainbowNetwork

VARIANTS = [
    (MaskedPERDQN, MaskedPolicy, {}),
    (MaskedRainbow, MaskedRainbowPolicy, {"noisy": False}),
    (MaskedRainbow, MaskedRainbowPolicy, {"noisy": False, "n_atoms": 1}),
    (MaskedRainbow, MaskedRainbowPolicy, {}),
]
QUIET = VARIANTS[:3]  # without noise


class Tempting(Picking):
    """An item that has been picked already pays most."""

    n_forbidden = 0

    def step(self, action):
        if self.left[action]:
            return super().step(action)
        self.n_forbidden += 1
        return self.left.copy(), 100.0, False, False, {}


def trained(algorithm, policy, network, **options):
    env = make_vec_env(Tempting, wrapper_class=MaskInObservation, n_envs=2)
    sizes = {"learning_starts": 60, "batch_size": 8, "buffer_size": 400, "n_steps": 1, "gamma": 0.5}
    options = {**sizes, "exploration_fraction": 0.9, "train_freq": 1, "seed": 0, **options}
    network = {"net_arch": [8], **network}
    return algorithm(policy, env, policy_kwargs=network, device="cpu", **options).learn(200)


@pytest.mark.parametrize(("algorithm", "policy", "network"), VARIANTS)
def test_forbidden_actions_are_never_taken(algorithm, policy, network):
    model = trained(algorithm, policy, network)

    assert [env.unwrapped.n_forbidden for env in model.get_env().envs] == [0, 0]
    stored = model.replay_buffer.observations["mask"][:100]
    for masks in (stored[:, 0], stored[0, 0]):
        observation = {"observation": masks.copy(), "mask": masks}
        for deterministic in (True, False):
            model.exploration_rate = 0.5
            actions, _ = model.predict(observation, deterministic=deterministic)
            assert np.take_along_axis(masks, np.expand_dims(actions, -1), -1).all()


def unmasked(network, observations):
    """The Q-values of all actions, forbidden ones too, as SB3 and Rainbow compute them."""
    with th.no_grad():
        if isinstance(network, RainbowNetwork):
            logits = network.logits(observations)
            return RainbowNetwork.q_values(network, logits, observations)
        return QNetwork.forward(network, observations)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize(("algorithm", "policy", "network"), QUIET)
def test_targets_assume_the_best_valid_action(algorithm, policy, network, double_q):
    model = trained(algorithm, policy, network, double_q=double_q)
    with th.no_grad():  # else both networks choose the same actions
        for parameter in model.q_net_target.parameters():
            parameter.add_(th.randn_like(parameter) / 2)
    batch = model.replay_buffer.sample(64)
    values, online = (
        unmasked(network, batch.next_observations) for network in (model.q_net_target, model.q_net)
    )
    assert (batch.next_observations["mask"].gather(1, values.argmax(1, keepdim=True)) == 0).any()

    targets = model.td_targets(batch)

    if targets.shape[1] > 1:
        targets = targets @ model.q_net.support
    for row, mask in enumerate(batch.next_observations["mask"]):
        expected = batch.rewards[row].item()
        if not batch.dones[row]:
            chooser = online if double_q else values
            action = max(np.flatnonzero(mask), key=chooser[row].tolist().__getitem__)
            expected += model.gamma * values[row, action].item()
        assert targets[row].item() == pytest.approx(expected, abs=1e-5)
