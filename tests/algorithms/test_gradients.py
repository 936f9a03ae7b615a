import copy

import pytest
import torch as th

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


@pytest.mark.parametrize("kind", [th.optim.Adam, th.optim.AdamW])
def test_a_fused_step_goes_where_the_plain_one_goes(kind):
    network, fused = network_and_optimizer(kind)
    twin = copy.deepcopy(network)
    plain = kind(twin.parameters(), lr=1e-3)
    gradients.fuse(fused)

    for _ in range(5):
        for one, optimizer in ((network, fused), (twin, plain)):
            optimizer.zero_grad()
            with_gradients(one, 1.0)
            optimizer.step()

    assert fused.param_groups[0]["fused"] is True
    for parameter, other in zip(network.parameters(), twin.parameters(), strict=True):
        th.testing.assert_close(parameter, other)


@pytest.mark.parametrize("chosen", [{"fused": False}, {"foreach": True}, {"differentiable": True}])
def test_whoever_chose_how_adam_steps_keeps_it(chosen):
    _, optimizer = network_and_optimizer(**chosen)
    before = copy.deepcopy(optimizer.param_groups[0] | {"params": None})

    gradients.fuse(optimizer)

    assert optimizer.param_groups[0] | {"params": None} == before


class AdamOfMyOwn(th.optim.Adam):
    """A subclass may step in another way."""


@pytest.mark.parametrize("kind", [AdamOfMyOwn, th.optim.SGD, th.optim.RMSprop])
def test_other_optimizers_are_left_alone(kind):
    _, optimizer = network_and_optimizer(kind)
    before = optimizer.param_groups[0].get("fused")

    gradients.fuse(optimizer)

    assert optimizer.param_groups[0].get("fused") == before


def test_moments_of_a_plain_adam_are_handed_to_the_fused_one():
    """Which wants its count of steps in float32, beside the parameter: on a GPU another place."""
    parameters = [th.nn.Parameter(th.ones(3)) for _ in range(2)]
    optimizer = th.optim.Adam([{"params": [parameter]} for parameter in parameters])
    for parameter in parameters:
        parameter.grad = th.ones(3)
    optimizer.step()
    for state in optimizer.state.values():
        state["step"] = state["step"].double()

    gradients.fuse(optimizer)

    assert [group["fused"] for group in optimizer.param_groups] == [True, True]
    for parameter in parameters:
        state = optimizer.state[parameter]
        assert state["step"].dtype == th.float32
        assert state["step"] == 1
        assert th.equal(state["exp_avg"], th.full((3,), 0.1))


def test_perdqn_steps_fused_before_and_after_a_save(tmp_path):
    model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=50).learn(100)
    model.save(tmp_path / "model.zip")

    loaded = PERDQN.load(tmp_path / "model.zip", env=model.get_env()).learn(100)

    for each in (model, loaded):
        assert each.policy.optimizer.param_groups[0]["fused"] is True


def test_perdqn_keeps_the_optimizer_options_of_its_user(tmp_path):
    kwargs = {"optimizer_kwargs": {"fused": False}}

    model = PERDQN("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs)
    model.save(tmp_path / "model")

    for each in (model, PERDQN.load(tmp_path / "model", env=model.get_env())):
        assert each.policy.optimizer.param_groups[0]["fused"] is False
