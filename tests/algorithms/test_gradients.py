import copy

import pytest
import torch as th
from stable_baselines3.dqn.policies import DQNPolicy

from sb3_per import PERDQN
from sb3_per.algorithms import gradients


def network_and_optimizer(kind=th.optim.Adam, **options):
    network = th.nn.Sequential(th.nn.Linear(3, 5), th.nn.ReLU(), th.nn.Linear(5, 2))
    return network, kind(network.parameters(), lr=1e-3, **options)


def with_gradients(network, scale):
    network(th.ones(4, 3)).sum().mul(scale).backward()
    return network


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, float("inf"), float("nan")])
def test_clipping_leaves_what_torch_would_leave(scale):
    ours, optimizer = network_and_optimizer()
    with_gradients(ours, scale)
    theirs = copy.deepcopy(ours)
    for parameter, twin in zip(ours.parameters(), theirs.parameters(), strict=True):
        twin.grad = parameter.grad.clone()

    gradients.clip(optimizer, 1.0)
    th.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)

    for parameter, twin in zip(ours.parameters(), theirs.parameters(), strict=True):
        th.testing.assert_close(parameter.grad, twin.grad, equal_nan=True, rtol=0, atol=0)


def test_clipping_passes_over_parameters_without_a_gradient():
    network, optimizer = network_and_optimizer()
    network[0].requires_grad_(False)
    with_gradients(network, 1e3)

    gradients.clip(optimizer, 1.0)

    assert th.linalg.vector_norm(th.cat([p.grad.ravel() for p in network[2].parameters()])) <= 1.0


def test_cleared_gradients_are_gone():
    network, optimizer = network_and_optimizer()
    with_gradients(network, 1.0)

    gradients.clear(optimizer)

    assert all(parameter.grad is None for parameter in network.parameters())


def adam_of(model):
    return model.policy.optimizer.param_groups[0]


@pytest.mark.parametrize("kind", [th.optim.Adam, th.optim.AdamW])
def test_adam_is_fused_and_policy_kwargs_say_so(kind, tmp_path):
    given = {"optimizer_class": kind, "optimizer_kwargs": {"eps": 1e-5}}
    model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=50, policy_kwargs=given).learn(100)
    model.save(tmp_path / "model.zip")
    loaded = PERDQN.load(tmp_path / "model.zip", env=model.get_env()).learn(100)

    for each in (model, loaded):
        assert (adam_of(each)["fused"], adam_of(each)["eps"]) == (True, 1e-5)
        assert each.policy_kwargs["optimizer_kwargs"] == {"fused": True, "eps": 1e-5}
    assert given == {"optimizer_class": kind, "optimizer_kwargs": {"eps": 1e-5}}


@pytest.mark.parametrize("chosen", [{"fused": False}, {"foreach": True}, {"differentiable": True}])
def test_whoever_chose_how_adam_steps_keeps_it(chosen, tmp_path):
    model = PERDQN("MlpPolicy", "CartPole-v1", policy_kwargs={"optimizer_kwargs": chosen})
    model.save(tmp_path / "model")

    for each in (model, PERDQN.load(tmp_path / "model", env=model.get_env())):
        assert not adam_of(each)["fused"]
        assert each.policy_kwargs["optimizer_kwargs"] == chosen


class AdamOfMyOwn(th.optim.Adam):
    """A subclass may step in another way."""


class PolicyOfMyOwn(DQNPolicy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, optimizer_class=th.optim.RMSprop, **kwargs)


@pytest.mark.parametrize("kind", [AdamOfMyOwn, th.optim.SGD, th.optim.RMSprop])
def test_other_optimizers_are_left_alone(kind):
    model = PERDQN("MlpPolicy", "CartPole-v1", policy_kwargs={"optimizer_class": kind})

    assert not adam_of(model).get("fused")
    assert model.policy_kwargs == {"optimizer_class": kind}
    assert PERDQN(PolicyOfMyOwn, "CartPole-v1").policy_kwargs == {}
