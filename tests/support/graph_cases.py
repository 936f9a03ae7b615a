"""What the tests of CUDA graphs share: with a GPU, and with a recorder that needs none."""

import copy

import numpy as np
import torch as th
from gymnasium import spaces
from models import Point, make, parameters
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from sb3_per import PERDQN, Rainbow
from sb3_per.options import LAP

VECTOR, IMAGE = spaces.Box(-9, 9, (3,), np.float32), spaces.Box(0, 255, (1, 36, 36), np.uint8)
DICT = spaces.Dict({"vector": VECTOR, "bits": spaces.MultiBinary(5), "image": IMAGE})


def vector_env(n_envs=1, space=VECTOR, kind=Point):
    return DummyVecEnv([lambda: kind(True, space)] * n_envs)


def normalized():
    return VecNormalize(vector_env(2))


class Normed(FlattenExtractor):
    """A network with running statistics and dropout."""

    def __init__(self, space):
        super().__init__(space)
        self.layers = th.nn.Sequential(th.nn.BatchNorm1d(self.features_dim), th.nn.Dropout(0.2))

    def forward(self, observations):
        return self.layers(super().forward(observations))


class CountsActions(FlattenExtractor):
    """A network that normalizes by what it has seen while it acts."""

    def __init__(self, space):
        super().__init__(space)
        self.register_buffer("mean", th.zeros(self.features_dim))
        self.register_buffer("n", th.zeros(()))

    def forward(self, observations):
        features = super().forward(observations)
        if not self.training:
            self.n.add_(1)
            self.mean.add_((features.mean(dim=0) - self.mean) / self.n)
        return features - self.mean


class ReadsNumbers(FlattenExtractor):
    """A network that waits for the GPU."""

    def forward(self, observations):
        features = super().forward(observations)
        return features * (2.0 if features.sum().item() > 0 else 1.0)


def state_of(model):
    """Return all that training changes, and what was logged."""
    moments = model.policy.optimizer.state.values()
    buffer = model.replay_buffer
    return [
        *parameters(model),
        *(value.clone() for state in moments for value in state.values()),
        th.from_numpy(buffer.probabilities(np.arange(buffer.n_slots))),
        th.get_rng_state(),
        *([th.cuda.get_rng_state()] if th.cuda.is_initialized() else []),
        th.tensor([v for k, v in model.logger.name_to_value.items() if k.startswith("train")]),
    ]


def both(kind=PERDQN, env=vector_env, parts=(150, 60), between=lambda model: None, **arguments):
    """Return the states of a model with recorded steps, and of one with eager steps."""
    states = []
    for cuda_graphs in (True, False):
        model = make(kind, env(), cuda_graphs=cuda_graphs, **copy.deepcopy(arguments))
        model.learn(parts[0])
        between(model)
        model.learn(parts[1], reset_num_timesteps=False)
        states.append(state_of(model))
    return states


CASES = {
    "schedule": {"learning_rate": lambda left: float(np.float32(3e-3 * left))},
    "target updates": {"target_update_interval": 10},
    "soft updates": {"target_update_interval": 1, "tau": 0.05},
    "n-step, double": {"n_steps": 3, "double_q": True},
    "clipped": {"max_grad_norm": 1e-3},
    "not clipped": {"max_grad_norm": 1e9},
    "two envs": {"env": lambda: vector_env(2)},
    "several steps": {"gradient_steps": 3, "train_freq": 4},
    "VecNormalize": {"env": normalized},
    "Dict": {"env": lambda: vector_env(space=DICT), "policy": "MultiInputPolicy"},
    "images": {"env": lambda: vector_env(space=IMAGE), "policy": "CnnPolicy", "n_steps": 2},
    "frames": {
        "env": lambda: VecFrameStack(vector_env(space=IMAGE), 4, channels_order="first"),
        "policy": "CnnPolicy",
    },
    "LAP": {"options": LAP},
    "beta rises": {"options": {"beta": (0.4, 1.0), "alpha": 0.6}},
    "AdamW": {
        "policy_kwargs": {
            "optimizer_class": th.optim.AdamW,
            "optimizer_kwargs": {"weight_decay": 0.1, "amsgrad": True},
        }
    },
    "batch norm": {"policy_kwargs": {"features_extractor_class": Normed}, "double_q": True},
    "statistics of actions": {"policy_kwargs": {"features_extractor_class": CountsActions}},
    "Rainbow": {"kind": Rainbow},
    "Rainbow, no parts": {
        "kind": Rainbow,
        "policy_kwargs": {"noisy": False, "dueling": False, "n_atoms": 1},
    },
    "Rainbow, noise alone": {"kind": Rainbow, "policy_kwargs": {"dueling": False, "n_atoms": 1}},
}


def with_new_memory(model):
    for parameter in model.policy.parameters():
        parameter.data = parameter.data.clone()  # as `to` does


def with_other_options(model):
    model.policy.optimizer.param_groups[0].update(eps=1e-2, betas=(0.5, 0.9))


def with_new_optimizer(model):
    model.policy.optimizer = th.optim.Adam(model.policy.q_net.parameters(), fused=True)


def with_frozen_layer(model):
    next(model.policy.q_net.parameters()).requires_grad = False


def with_other_numbers(model):
    model.gamma, model.max_grad_norm, model.double_q = 0.5, 0.01, True


def with_fresh_moments(model):
    model.policy.optimizer.state.clear()


CHANGES = {
    "batch size": lambda model: setattr(model, "batch_size", 16),
    "new memory": with_new_memory,
    "other options": with_other_options,
    "new optimizer": with_new_optimizer,
    "frozen layer": with_frozen_layer,
    "other numbers": with_other_numbers,
    "fresh moments": with_fresh_moments,
}


def own_loss(model, factor=2):
    class Own(type(model)):
        def weighted_loss(self, batch):
            loss, td_errors = super().weighted_loss(batch)
            return factor * loss, td_errors

    model.__class__ = Own
