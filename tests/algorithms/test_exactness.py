"""Losses, gradients and TD errors of the seven algorithms, against their bases and by hand."""

import copy
import inspect
import math
import types

import numpy as np
import pytest
import torch as th
from models import (
    ALL,
    CRITICS,
    PAIRS,
    SQUARED,
    UNIFORM,
    all_equal,
    gradients_of_one_step,
    is_discrete,
    logged,
    make,
    parameters,
    ready,
    share_a_weighted_batch,
)
from stable_baselines3 import SAC
from torch.nn import functional as F

from sb3_per import PAPER, PERDQN, PERSAC, PrioritizedReplayBuffer, save_buffer
from sb3_per.algorithms.critics import PrioritizedCriticAlgorithm

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")  # by SB3's algorithms


@ALL
@pytest.mark.parametrize("n_steps", [1, 3])
def test_run_without_prioritization_equals_the_base(kind, n_steps):
    if kind is PERDQN:  # it computes its loss itself
        plain_adam = {"policy_kwargs": {"optimizer_kwargs": {"fused": False}}}
        tolerances = {"rtol": 1e-5, "atol": 1e-6}
    else:  # bit by bit
        plain_adam, tolerances = {}, {"rtol": 0, "atol": 0}
    ours = make(kind, options=UNIFORM, n_steps=n_steps, **plain_adam).learn(60)
    # The base's buffer samples uniformly, and the same slots as ours.
    same = {"replay_buffer_class": PrioritizedReplayBuffer, **plain_adam}
    of_base = {**UNIFORM, "n_steps": n_steps, "gamma": 0.9}
    theirs = make(PAIRS[kind], options=of_base, **same).learn(60)

    assert ours._n_updates == theirs._n_updates > 30
    th.testing.assert_close(parameters(ours), parameters(theirs), **tolerances)
    names = {"train/loss", "train/critic_loss", "train/actor_loss", "train/ent_coef"}
    names &= logged(theirs).keys()
    assert names
    for name in names:
        assert logged(ours)[name] == pytest.approx(logged(theirs)[name], rel=1e-5)


def weighted_loss(weights, found, threshold=1e6, scale=1.0):
    """
    Return a squared error up to the threshold, then its tangent; weighted, then averaged.

    :param found: A list that gets the absolute TD errors of each critic, (B, 1).
    """

    def loss(current, target):
        errors = (current - target).abs()
        found.append(errors.detach())
        losses = th.where(errors <= threshold, errors**2, threshold * (2 * errors - threshold))
        return (weights * scale * losses).mean()

    return loss


def weighted_quantile_loss(weights, found):
    """Return the loss of each sample by itself, as in the papers; nothing is sb3-contrib's."""

    def loss(current, target, sum_over_quantiles):
        quantiles, targets = current.reshape(len(current), -1, current.shape[-1]), target
        targets = targets.reshape(len(target), 1, 1, -1)  # (B, 1, 1, m)
        errors = targets - quantiles[..., None]  # (B, n_critics, n, m)
        found.append(errors.detach().mean(dim=(2, 3)).abs())
        n = quantiles.shape[-1]
        levels = ((th.arange(n) + 0.5) / n).reshape(1, 1, n, 1)
        huber = th.where(errors.abs() <= 1, errors**2 / 2, errors.abs() - 0.5)
        losses = (levels - (errors < 0).float()).abs() * huber
        losses = losses.sum(dim=2) if sum_over_quantiles else losses
        return (weights.flatten() * losses.reshape(len(current), -1).mean(dim=1)).mean()

    return loss


def replace_loss(kind, loss, monkeypatch):
    """Make the base's ``train`` compute another loss."""
    module = inspect.getmodule(PAIRS[kind].train)
    if kind in CRITICS and kind not in SQUARED:
        monkeypatch.setattr(module, "quantile_huber_loss", loss)
    else:
        monkeypatch.setattr(module, "F", types.SimpleNamespace(mse_loss=loss, smooth_l1_loss=loss))


def explicit_loss(kind, weights, found, threshold):
    if kind is PERDQN:
        return weighted_loss(weights, found, threshold or 1.0, scale=0.5)
    if kind in SQUARED:
        return weighted_loss(weights, found, threshold or 1e6)
    return weighted_quantile_loss(weights, found)


CASES = [(kind, PAPER, None) for kind in PAIRS]
CASES += [
    (kind, {"prioritization": "lap", "prioritization_kwargs": {"threshold": 0.5}}, 0.5)
    for kind in [PERDQN, *SQUARED]
]


@pytest.mark.parametrize(("kind", "options", "threshold"), CASES)
def test_gradients_and_td_errors_are_those_of_an_explicit_loss(
    kind, options, threshold, monkeypatch
):
    ours, theirs = ready(make(kind, options=options)), ready(make(PAIRS[kind]))
    batch = share_a_weighted_batch(ours, theirs, monkeypatch)
    updates, errors = [], []
    monkeypatch.setattr(ours.replay_buffer, "update_priorities", lambda *a: updates.append(a))
    found = gradients_of_one_step(ours, monkeypatch)
    replace_loss(kind, explicit_loss(kind, batch.weights, errors, threshold), monkeypatch)

    explicit = gradients_of_one_step(theirs, monkeypatch)

    assert len(found) == len(explicit) > 3
    th.testing.assert_close(found, explicit, rtol=1e-5, atol=1e-6)
    if threshold is not None:  # both parts of the Huber loss were needed
        assert 0 < logged(ours)["train/linear_loss_share"] < 1
    [(slots, td_errors)] = updates
    assert slots is batch.slots
    expected = th.cat(errors, dim=1).mean(dim=1)  # over the critics
    np.testing.assert_allclose(np.abs(td_errors).ravel(), expected, rtol=1e-4, atol=1e-5)


@ALL
def test_model_is_saved_in_the_middle_of_a_step(kind, tmp_path, monkeypatch):
    """A signal handler may do so."""
    model, copies = ready(make(kind)), []
    buffer, update = model.replay_buffer, model.replay_buffer.update_priorities

    def save(*args):
        model.save(tmp_path / "model")
        save_buffer(buffer, tmp_path / "buffer")
        copies.append(copy.deepcopy(buffer))
        update(*args)

    monkeypatch.setattr(buffer, "update_priorities", save)
    model.train(2, 8)

    assert kind.load(tmp_path / "model").replay_buffer.alpha == buffer.alpha
    assert all("sample" not in vars(one) and len(one) == len(buffer) for one in copies)
    assert "sample" not in vars(buffer)


@ALL
def test_logged_loss_is_unweighted(kind, monkeypatch):
    ours, theirs = ready(make(kind, options=PAPER)), ready(make(PAIRS[kind]))
    share_a_weighted_batch(ours, theirs, monkeypatch)

    for model in (ours, theirs):
        th.manual_seed(7)
        model.train(1, 16)

    name = "train/loss" if is_discrete(kind) else "train/critic_loss"
    assert logged(ours)[name] == pytest.approx(logged(theirs)[name], rel=1e-5)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("threshold", [1.0, 3.0, None])
def test_loss_and_td_errors_of_dqn_by_hand(double_q, threshold, monkeypatch):
    lap = {"prioritization": "lap", "prioritization_kwargs": {"threshold": threshold}}
    model = ready(make(double_q=double_q, gamma=0.5, options=lap if threshold == 3.0 else {}))
    if threshold is None:  # a loss that never turns linear
        monkeypatch.setattr(type(model), "huber_threshold", None)
        threshold = math.inf
    batch = model.replay_buffer.sample(3)
    online_next = th.tensor([[0.0, 9.0, 1.0], [5.0, 4.0, 0.0], [0.0, 0.0, 1.0]])
    target_next = th.tensor([[4.0, 2.0, 8.0], [1.0, 6.0, 3.0], [7.0, 7.0, 7.0]])
    online_now = th.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    batch = batch._replace(
        actions=th.tensor([[2], [0], [1]]),
        rewards=th.tensor([[1.0], [-1.0], [8.5]]),
        dones=th.tensor([[0.0], [0.0], [1.0]]),
        weights=th.tensor([[1.0], [0.5], [0.25]]),
    )
    networks = {id(batch.observations): online_now, id(batch.next_observations): online_next}
    monkeypatch.setattr(model, "q_net", lambda observations: networks[id(observations)])
    monkeypatch.setattr(model, "q_net_target", lambda observations: target_next)

    loss, td_errors = model.weighted_loss(batch)

    # DQN bootstraps from 8 and 6; Double Q-learning from the target's value of actions 1 and 0.
    targets = [1 + 0.5 * 2, -1 + 0.5 * 1, 8.5] if double_q else [1 + 0.5 * 8, -1 + 0.5 * 6, 8.5]
    errors = [targets[0] - 3, targets[1] - 4, targets[2] - 8]
    linear = [threshold * (abs(error) - threshold / 2) for error in errors]
    huber = [e * e / 2 if abs(e) <= threshold else linear[i] for i, e in enumerate(errors)]
    assert td_errors.flatten().tolist() == errors
    assert loss.item() == pytest.approx((huber[0] + 0.5 * huber[1] + 0.25 * huber[2]) / 3)


@ALL
def test_td_error_that_is_not_finite_leaves_the_network_intact(kind):
    model = ready(make(kind))
    model.replay_buffer.rewards[:] = np.nan
    before = [parameter.clone() for parameter in model.policy.parameters()]

    with pytest.raises(ValueError, match="finite"):
        model.train(1, 16)

    assert all_equal(before, model.policy.parameters())


@ALL
def test_batch_size_of_train_is_the_bases(kind, monkeypatch):
    sizes = []

    def noting(sample):
        return lambda size, env=None: sizes.append(size) or sample(size, env)

    for model in (ready(make(kind)), ready(make(PAIRS[kind]))):
        monkeypatch.setattr(model.replay_buffer, "sample", noting(model.replay_buffer.sample))
        model.train(gradient_steps=1)
        model.train(gradient_steps=1, batch_size=7)

    assert sizes[:2] == sizes[2:]
    assert sizes[1] == 7


# SB3's `train` changes


@pytest.mark.parametrize("n_losses", [0, 1, 3])
def test_another_number_of_losses_is_refused(n_losses):
    class Changed(SAC):
        def train(self, gradient_steps, batch_size=64):
            self.replay_buffer.sample(batch_size)
            for _ in range(n_losses):
                F.mse_loss(th.ones(batch_size, 1, requires_grad=True), th.ones(batch_size, 1))

    class Prioritized(PrioritizedCriticAlgorithm, Changed):
        pass

    with pytest.raises(RuntimeError, match=f"{n_losses} times .* instead of 2"):
        ready(make(Prioritized)).train(1, 16)


def test_batches_of_a_method_that_train_calls_are_weighted(monkeypatch):
    class Divided(SAC):
        def train(self, gradient_steps, batch_size=64):
            self.replay_buffer.sample(batch_size)  # not for the critics
            batch = self.draw(batch_size)
            for values in self.critic(batch.observations, batch.actions):
                F.mse_loss(values, batch.rewards)
            self.drawn = batch.slots

        def draw(self, batch_size):
            assert self.replay_buffer.size() > 0
            return self.replay_buffer.sample(batch_size)

    class Prioritized(PrioritizedCriticAlgorithm, Divided):
        pass

    model, updated = ready(make(Prioritized)), []
    monkeypatch.setattr(
        model.replay_buffer, "update_priorities", lambda slots, _: updated.append(slots)
    )
    model.train(1, 16)

    assert np.array_equal(updated, [model.drawn])


def test_train_without_the_loss_is_refused():
    class Changed(SAC):
        train = types.FunctionType(SAC.train.__code__, {})  # of a module without the name F

    class Prioritized(PrioritizedCriticAlgorithm, Changed):
        pass

    with pytest.raises(RuntimeError, match=r"train must compute F\.mse_loss itself"):
        ready(make(Prioritized)).train(1, 16)


def test_module_of_sb3_stays_as_it_is():
    module = inspect.getmodule(SAC.train)
    before = dict(vars(module))

    ready(make(PERSAC)).train(1, 16)

    assert vars(module) == before
    assert module.F is F
