import pytest
import torch as th
from stable_baselines3.dqn.policies import DQNPolicy

from sb3_per import PERDQN


def adam_of(model):
    return model.policy.optimizer.param_groups[0]


@pytest.mark.parametrize("kind", [th.optim.Adam, th.optim.AdamW])
def test_adam_is_fused_and_policy_kwargs_stay_as_given(kind, tmp_path):
    given = {"optimizer_class": kind, "optimizer_kwargs": {"eps": 1e-5}}
    model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=50, policy_kwargs=given).learn(100)
    model.save(tmp_path / "model.zip")
    # SB3 refuses to load a model with other policy_kwargs than those that it was saved with.
    loaded = PERDQN.load(tmp_path / "model.zip", env=model.get_env(), policy_kwargs=given)
    loaded.learn(100)

    for each in (model, loaded):
        assert (adam_of(each)["fused"], adam_of(each)["eps"]) == (True, 1e-5)
        assert each.policy_kwargs == given
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


class PolicyThatPassesOn(DQNPolicy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_adam_is_fused_in_a_policy_that_passes_its_arguments_on():
    assert adam_of(PERDQN(PolicyThatPassesOn, "CartPole-v1"))["fused"]


@pytest.mark.parametrize("kind", [AdamOfMyOwn, th.optim.SGD, th.optim.RMSprop])
def test_other_optimizers_are_left_alone(kind):
    model = PERDQN("MlpPolicy", "CartPole-v1", policy_kwargs={"optimizer_class": kind})

    assert not adam_of(model).get("fused")
    assert model.policy_kwargs == {"optimizer_class": kind}
    assert PERDQN(PolicyOfMyOwn, "CartPole-v1").policy_kwargs == {}
