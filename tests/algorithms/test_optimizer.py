"""PERDQN's fused Adam, and its clipping of gradients."""

import pytest
import torch as th
from models import make
from stable_baselines3 import DQN

from sb3_per import PERDQN
from sb3_per.algorithms.dqn import clip_gradients


def adam_of(model):
    return model.policy.optimizer.param_groups[0]


@pytest.mark.parametrize("kind", [th.optim.Adam, th.optim.AdamW])
def test_adam_is_fused(kind, tmp_path):
    given = {"optimizer_class": kind, "optimizer_kwargs": {"eps": 1e-5}, "net_arch": [16]}
    model = make(policy_kwargs=given).learn(40)
    model.save(tmp_path / "model.zip")
    # SB3 refuses to load a model with other policy_kwargs than those that it was saved with.
    loaded = PERDQN.load(tmp_path / "model.zip", env=model.get_env(), policy_kwargs=given)

    for trained in (model, loaded.learn(40)):
        assert (adam_of(trained)["fused"], adam_of(trained)["eps"]) == (True, 1e-5)
        assert trained.policy_kwargs == given


@pytest.mark.parametrize(
    "chosen",
    [
        {"optimizer_kwargs": {"fused": False}},
        {"optimizer_kwargs": {"foreach": True}},
        {"optimizer_kwargs": {"foreach": False}},
        {"optimizer_kwargs": {"differentiable": True}},
        {"optimizer_class": th.optim.SGD},
        {"optimizer_class": type("AdamOfMyOwn", (th.optim.Adam,), {})},
    ],
    ids=str,
)
def test_user_optimizer_settings_are_kept(chosen):
    model = make(policy_kwargs=chosen)

    assert not adam_of(model).get("fused")
    assert chosen.items() <= model.policy_kwargs.items()


def test_weights_of_another_layout_are_updated_by_plain_adam():
    """torch's fused Adam would take moments for those of other weights."""
    model = make().learn(60)
    weight = model.q_net.q_net[0].weight
    weight.data = weight.data.T.contiguous().T  # the same numbers
    assert adam_of(model)["fused"]

    for _ in range(2):  # not turned on again
        model.learn(60)
        assert not adam_of(model)["fused"]


def test_adam_continues_from_the_state_of_dqn(tmp_path):
    """The first step after the change is the plain Adam's, up to rounding."""
    model = make(DQN).learn(60)
    model.save(tmp_path / "model")
    loaded = PERDQN.load(tmp_path / "model", env=model.get_env())
    loaded._prepare_optimizer()
    assert adam_of(loaded)["fused"]
    for trained in (model, loaded):
        for parameter in trained.q_net.parameters():
            parameter.grad = th.ones_like(parameter)
        trained.policy.optimizer.step()

    for found, expected in zip(loaded.q_net.parameters(), model.q_net.parameters(), strict=True):
        th.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 0.3, 0.55, 3.0, 1e9, 1e30])
@pytest.mark.parametrize("value_of_one", [0.1, float("inf"), float("nan")])
def test_gradients_are_clipped_as_by_torch(scale, value_of_one):
    ours, torchs = ([th.nn.Parameter(th.ones(n)) for n in (231, 33, 99, 3)] for _ in range(2))
    th.manual_seed(0)
    for parameter, other in zip(ours[:3], torchs[:3], strict=True):  # the last has no gradient
        gradient = scale * th.randn_like(parameter)
        gradient[5] = value_of_one
        parameter.grad, other.grad = gradient, gradient.clone()

    clip_gradients(ours, 10)
    th.nn.utils.clip_grad_norm_(torchs, 10)

    for parameter, other in zip(ours[:3], torchs[:3], strict=True):
        th.testing.assert_close(parameter.grad, other.grad, rtol=1e-6, atol=0, equal_nan=True)
