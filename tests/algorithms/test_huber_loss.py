"""The Huber loss of actor-critics, alone and with LAP."""

import inspect
import types

import numpy as np
import pytest
import torch as th
from critics import (
    PAIRS,
    SQUARED,
    Still,
    given_one_weighted_batch,
    gradients_of_one_step,
    make,
    parameters,
    ready,
)
from sb3_per.prioritization.lap import LossAdjusted
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERDQN, PERQRDQN, PERSAC, PERTD3, PERTQC, load_checkpoint, save_checkpoint

LAP = {"prioritization": "lap", "alpha": 0.4, "prioritization_kwargs": {"threshold": 0.5}}
NO_WEIGHTS = {"beta_initial": 0.0, "beta_final": 0.0}
EACH = pytest.mark.parametrize("kind", SQUARED, ids=lambda kind: kind.__name__)

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")


def explicit_huber_loss(weights, threshold):
    """The squared error up to the threshold; then its tangent. Weighted, then averaged."""

    def loss(current, target):
        errors = (current - target).abs()
        losses = th.where(errors <= threshold, errors**2, threshold * (2 * errors - threshold))
        return (weights * losses).mean()

    return loss


@EACH
@pytest.mark.filterwarnings("ignore:LAP needs no importance-sampling weights")
@pytest.mark.parametrize(
    ("buffer_options", "threshold"), [({}, 1.0), (LAP, 0.5)], ids=["alone", "lap"]
)
def test_the_critics_gradient_is_that_of_an_explicit_huber_loss(
    kind, buffer_options, threshold, monkeypatch
):
    base = dict(PAIRS)[kind]
    ours = ready(make(kind, loss="huber", replay_buffer_kwargs=buffer_options))
    theirs = ready(make(base))
    batch = given_one_weighted_batch(ours, theirs, monkeypatch)
    own = gradients_of_one_step(ours, monkeypatch)
    explicit_loss = explicit_huber_loss(batch.weights, threshold)
    monkeypatch.setattr(
        inspect.getmodule(base.train), "F", types.SimpleNamespace(mse_loss=explicit_loss)
    )

    explicit = gradients_of_one_step(theirs, monkeypatch)

    assert len(own) == len(explicit) > 3
    for one, other in zip(own, explicit, strict=True):
        th.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    share = ours.logger.name_to_value["train/linear_loss_share"]
    assert 0 < share < 1  # both parts of the loss were needed


@EACH
@pytest.mark.filterwarnings("ignore:LAP needs a Huber loss")
def test_below_its_threshold_the_huber_loss_is_the_bases(kind):
    far = {**LAP, "prioritization_kwargs": {"threshold": 1e6}}
    options = {"replay_buffer_kwargs": far, **NO_WEIGHTS}

    huber, squared = (make(kind, loss=loss, **options).learn(40) for loss in ("huber", "mse"))

    assert huber._n_updates > 10
    for one, other in zip(parameters(huber), parameters(squared), strict=True):
        th.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@EACH
def test_it_learns_with_lap(kind):
    model = make(kind, loss="huber", replay_buffer_kwargs=LAP, **NO_WEIGHTS).learn(40)

    priorities = model.replay_buffer.prioritization.probabilities(np.arange(40))
    assert len({*priorities}) > 5
    assert model.logger.name_to_value["train/weight_mean"] == 1.0


@EACH
def test_priorities_can_be_clipped_at_the_losss_threshold(kind):
    options = {"replay_buffer_kwargs": {"td_error_clip": "loss"}}

    assert make(kind, loss="huber", **options).replay_buffer.prioritization.td_error_clip == 1.0


@pytest.mark.parametrize("kind", [*SQUARED, PERQRDQN, PERTQC], ids=lambda kind: kind.__name__)
def test_priorities_cannot_be_clipped_where_the_loss_has_no_threshold(kind):
    with pytest.raises(ValueError, match=f"for this {kind.__name__}, got 'loss', which needs"):
        make(kind, replay_buffer_kwargs={"td_error_clip": "loss"})


@pytest.mark.parametrize("kind", [*SQUARED, PERDQN], ids=lambda kind: kind.__name__)
def test_lap_warns_of_a_loss_with_another_threshold(kind):
    env = "CartPole-v1" if kind is PERDQN else "Pendulum-v1"
    options = {"buffer_size": 100, "device": "cpu", "replay_buffer_kwargs": LAP, **NO_WEIGHTS}

    with pytest.warns(UserWarning, match=f"LAP needs .* threshold 0.5, .* {kind.__name__} has"):
        kind("MlpPolicy", env, **options)


@pytest.mark.parametrize("betas", [(0.4, 1.0), (0.0, 1.0), (0.2, 0.0)])
def test_lap_warns_of_weights(betas):
    options = dict(zip(NO_WEIGHTS, betas, strict=True))

    with pytest.warns(UserWarning, match=f"beta_final=0, got {betas[0]:g} and {betas[1]:g}"):
        make(PERTD3, loss="huber", replay_buffer_kwargs=LAP, **options)


def test_a_buffer_with_lap_warns_of_the_loss_of_the_model_that_takes_it_over():
    buffer = make(PERTD3, loss="huber", replay_buffer_kwargs=LAP, **NO_WEIGHTS).replay_buffer
    model = make(PERTD3, **NO_WEIGHTS)

    with pytest.warns(UserWarning, match=r"LAP needs .* threshold 0\.5") as caught:
        model.use_replay_buffer(buffer)

    assert [each.filename for each in caught] == [__file__]


@EACH
@pytest.mark.parametrize("threshold", [0.5, 2.0])
def test_lap_cannot_be_clipped_at_its_own_threshold(kind, threshold):
    lap = {**LAP, "prioritization_kwargs": {"threshold": threshold}, "td_error_clip": "loss"}

    with pytest.raises(ValueError, match="number above the threshold with prioritization='lap'"):
        make(kind, loss="huber", replay_buffer_kwargs=lap)


class OwnLossAdjusted(LossAdjusted):
    """A user's variant of LAP."""


@pytest.mark.parametrize("prioritization", ["lap", LossAdjusted, OwnLossAdjusted])
def test_lap_in_dqn_cannot_be_clipped_at_the_losss_threshold(prioritization):
    lap = {"prioritization": prioritization, "td_error_clip": "loss"}

    with pytest.raises(ValueError, match="number above the threshold with prioritization='lap'"):
        PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=lap)


@EACH
@pytest.mark.parametrize("loss", ["l2", None, True])
def test_another_loss_is_refused(kind, loss):
    with pytest.raises(ValueError, match=r"loss must be one of \('mse', 'huber'\), got"):
        make(kind, loss=loss)


@pytest.mark.parametrize("kind", [PERQRDQN, PERTQC], ids=lambda kind: kind.__name__)
def test_quantile_critics_say_that_they_have_a_huber_loss(kind):
    with pytest.raises(ValueError, match="has no argument 'loss': its loss is a Huber loss alrea"):
        make(kind, loss="huber")


def test_dqn_says_that_it_has_a_huber_loss():
    with pytest.raises(ValueError, match="PERDQN has no argument 'loss': its loss is a Huber"):
        PERDQN("MlpPolicy", "CartPole-v1", loss="huber")


@EACH
def test_the_loss_is_saved_and_loaded_and_can_be_changed_on_loading(kind, tmp_path):
    make(kind, loss="huber").save(tmp_path / "model")

    assert kind.load(tmp_path / "model").loss == "huber"
    assert kind.load(tmp_path / "model", loss="mse").loss == "mse"
    with pytest.raises(ValueError, match=r"loss must be one of .* got 'l2'"):
        kind.load(tmp_path / "model", loss="l2")


def test_a_checkpoint_with_lap_goes_on_with_the_same_loss(tmp_path):
    def env():
        return make_vec_env(Still)

    model = make(PERSAC, env(), loss="huber", replay_buffer_kwargs=LAP, **NO_WEIGHTS).learn(45)
    save_checkpoint(model, tmp_path / "model.ckpt")
    model.learn(27, reset_num_timesteps=False)
    resumed = load_checkpoint(tmp_path / "model.ckpt", env(), "cpu", algorithm=PERSAC)
    assert resumed.loss_threshold == 0.5

    resumed.learn(27, reset_num_timesteps=False)

    assert all(map(th.equal, parameters(resumed), parameters(model)))
