import copy

import pytest
import torch as th

from sb3_per import gradients


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
