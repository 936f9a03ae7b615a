"""Gradients are clipped as torch clips them."""

import copy

import pytest
import torch as th

from sb3_per.algorithms.dqn import clip_gradients


def network_with_gradients(scale, *, seed=0):
    th.manual_seed(seed)
    network = th.nn.Sequential(th.nn.Linear(7, 33), th.nn.ReLU(), th.nn.Linear(33, 3))
    for parameter in network.parameters():
        parameter.grad = scale * th.randn_like(parameter)
    return network


def gradients_of(network):
    return [each.grad for each in network.parameters()]


@pytest.mark.parametrize("scale", [0.0, 1e-6, 0.3, 0.55, 3.0, 1e9, 1e30])
@pytest.mark.parametrize("value_of_one", [0.1, float("inf"), float("nan")])
def test_gradients_are_clipped_as_by_torch(scale, value_of_one):
    ours = network_with_gradients(scale)
    ours[0].bias.grad[5] = value_of_one
    torchs = copy.deepcopy(ours)
    for own, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        other.grad = own.grad.clone()

    clip_gradients([*ours.parameters()], 10)
    th.nn.utils.clip_grad_norm_(torchs.parameters(), 10)

    for own, other in zip(gradients_of(ours), gradients_of(torchs), strict=True):
        th.testing.assert_close(own, other, rtol=1e-6, atol=0, equal_nan=True)


def test_parameters_without_a_gradient_are_left_out():
    network = network_with_gradients(100.0)
    first, *others = network.parameters()
    first.grad = None

    clip_gradients([first, *others], 10)
    clip_gradients([first], 10)

    assert first.grad is None
    norm = th.linalg.vector_norm(th.cat([each.grad.flatten() for each in others]))
    assert norm.item() == pytest.approx(10)
