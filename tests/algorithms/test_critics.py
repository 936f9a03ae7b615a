"""SAC, TD3, DDPG, QR-DQN, TQC and CrossQ with priorities: SB3's own steps, with a weighted loss."""

import copy
import inspect
import subprocess
import sys
import types

import numpy as np
import pytest
import torch as th
from critics import (
    ACTORS,
    ALL,
    EACH,
    KINDS,
    ON_OUR_BUFFER,
    SQUARED,
    UNIFORM,
    Point,
    Still,
    given_one_weighted_batch,
    gradients_of_one_step,
    is_discrete,
    make,
    parameters,
    ready,
)
from gymnasium import spaces
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import CheckpointCallback as SB3CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.sac.policies import SACPolicy
from torch.nn import functional as F

import sb3_per
from sb3_per import (
    PERSAC,
    PERTD3,
    PERTQC,
    CheckpointCallback,
    PERCrossQ,
    PrioritizedHerReplayBuffer,
    load_checkpoint,
    save_checkpoint,
)
from sb3_per.algorithms import critic_loss

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")


# Exactness


@ALL
@pytest.mark.parametrize("options", [{}, {"n_steps": 3}], ids=str)
def test_without_prioritization_a_whole_run_is_the_bases(kind, base, options):
    """On the same samples, bit by bit."""
    kwargs = {**ON_OUR_BUFFER["replay_buffer_kwargs"], "gamma": 0.9, **options}

    ours = make(kind, **UNIFORM, **options).learn(60)
    theirs = make(base, **{**ON_OUR_BUFFER, "replay_buffer_kwargs": kwargs}).learn(60)

    assert ours._n_updates == theirs._n_updates > 30
    assert all(map(th.equal, parameters(ours), parameters(theirs)))
    logged = [model.logger.name_to_value for model in (ours, theirs)]
    for name in ("train/loss", "train/critic_loss", "train/actor_loss", "train/ent_coef"):
        assert logged[0].get(name) == logged[1].get(name)


def weighted_mean_squared_error(weights):
    return lambda current, target: (weights * (current - target) ** 2).mean()


def weighted_quantile_loss(weights):
    """Of each sample by itself, as the papers have it; nothing of it is sb3-contrib's."""

    def loss(current, target, sum_over_quantiles):
        quantiles, targets = current.reshape(len(current), -1, current.shape[-1]), target
        targets = targets.reshape(len(target), 1, 1, -1)  # (B, 1, 1, m)
        errors = targets - quantiles[..., None]  # (B, n_critics, n, m)
        n = quantiles.shape[-1]
        levels = ((th.arange(n) + 0.5) / n).reshape(1, 1, n, 1)
        huber = th.where(errors.abs() <= 1, errors**2 / 2, errors.abs() - 0.5)
        losses = (levels - (errors < 0).float()).abs() * huber
        losses = losses.sum(dim=2) if sum_over_quantiles else losses
        return (weights.flatten() * losses.reshape(len(current), -1).mean(dim=1)).mean()

    return loss


@ALL
def test_the_critics_gradient_is_that_of_an_explicitly_weighted_loss(kind, base, monkeypatch):
    ours = ready(make(kind))
    theirs = ready(make(base))
    batch = given_one_weighted_batch(ours, theirs, monkeypatch)
    module = inspect.getmodule(base.train)
    own = gradients_of_one_step(ours, monkeypatch)
    if kind.loss_name == "F.mse_loss":
        loss = weighted_mean_squared_error(batch.weights)
        monkeypatch.setattr(module, "F", types.SimpleNamespace(mse_loss=loss))
    else:
        monkeypatch.setattr(module, "quantile_huber_loss", weighted_quantile_loss(batch.weights))

    explicit = gradients_of_one_step(theirs, monkeypatch)

    assert len(own) == len(explicit) > 3
    for one, other in zip(own, explicit, strict=True):
        th.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def next_values(model, batch):
    """Targets' values of the next observations, (B, 1) or quantiles (B, m), by hand."""
    if is_discrete(type(model)):
        quantiles = model.quantile_net_target(batch.next_observations)  # (B, n, n_actions)
        best = quantiles.mean(dim=1).argmax(dim=1)
        return quantiles[th.arange(len(best)), :, best]
    if isinstance(model, TD3):
        actions = model.actor_target(batch.next_observations)
        return th.stack(model.critic_target(batch.next_observations, actions)).amin(dim=0)
    model.actor.action_log_prob(batch.observations)  # SB3 draws for the actor first
    actions, log_prob = model.actor.action_log_prob(batch.next_observations)
    values = model.critic_target(batch.next_observations, actions)
    if isinstance(values, tuple):
        values = th.stack(values).amin(dim=0)
    else:
        n_kept = values[0].numel() - model.top_quantiles_to_drop_per_net * len(values[0])
        values = values.flatten(start_dim=1).sort(dim=1).values[:, :n_kept]
    return values - th.exp(model.log_ent_coef) * log_prob.reshape(-1, 1)


def current_values(model, batch):
    """The mean value of the sampled actions by each critic, (B, n_critics)."""
    if is_discrete(type(model)):
        quantiles = model.quantile_net(batch.observations)
        return quantiles[th.arange(len(batch.actions)), :, batch.actions.flatten()].mean(1)[:, None]
    values = model.critic(batch.observations, batch.actions)
    return th.cat(values, dim=1) if isinstance(values, tuple) else values.mean(dim=2)


def joint_values(model, batch):
    """
    CrossQ's current values, (B, n_critics), and next values, (B, 1), by hand.

    It has no target network, and batch normalization needs both in one batch.
    """
    model.policy.set_training_mode(True)
    model.actor.set_bn_training_mode(False)
    actions, log_prob = model.actor.action_log_prob(batch.next_observations)
    observations = th.cat([batch.observations, batch.next_observations])
    values = th.cat(model.critic(observations, th.cat([batch.actions, actions])), dim=1)
    lowest = values[len(actions) :].amin(dim=1, keepdim=True)
    entropy = th.exp(model.log_ent_coef) * log_prob.reshape(-1, 1)
    return values[: len(actions)], lowest - entropy


@EACH
def test_td_errors_are_those_worked_out_by_hand(kind, monkeypatch):
    options = {"target_noise_clip": 0.0} if kind is PERTD3 else {}
    model = ready(make(kind, **options))
    batch = model.replay_buffer.sample(16)
    updates = []
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *args, **kwargs: batch)
    monkeypatch.setattr(
        model.replay_buffer, "update_priorities", lambda *args: updates.append(args)
    )
    with th.no_grad():
        th.manual_seed(7)
        if kind is PERCrossQ:
            current, following = joint_values(model, batch)
        else:
            current, following = current_values(model, batch), next_values(model, batch)
        targets = batch.rewards + 0.9 * (1 - batch.dones) * following
        errors = targets.mean(dim=1, keepdim=True) - current

    th.manual_seed(7)
    model.train(1, 16)

    (slots, given), *more = updates
    assert more == []
    assert slots is batch.slots
    th.testing.assert_close(th.as_tensor(given), errors.abs().mean(dim=1), rtol=1e-4, atol=1e-5)


@EACH
def test_each_gradient_step_updates_the_sampled_priorities(kind):
    model = ready(make(kind))

    model.train(5, 16)

    probabilities = model.replay_buffer.prioritization.probabilities(np.arange(60))
    assert len({*probabilities}) > 20
    logged = model.logger.name_to_value
    assert {"train/beta", "train/priority_max", "train/td_error", "train/weight_mean"} <= {*logged}
    assert np.isfinite(list(logged.values())).all()


@EACH
def test_td_errors_that_are_not_finite_stop_the_training_before_the_critic_is_spoiled(kind):
    model = ready(make(kind))
    model.replay_buffer.rewards[:] = np.nan
    buffer, before = model.replay_buffer, [p.clone() for p in model.policy.parameters()]

    with pytest.raises(ValueError, match="TD error must be finite in float32, got nan for slot"):
        model.train(1, 16)

    assert all(map(th.equal, before, model.policy.parameters()))
    assert model.replay_buffer is buffer


# SB3's train changes


@ALL
def test_a_train_without_the_loss_is_refused_when_the_model_is_made(kind, base):
    class Changed(base):
        def train(self, gradient_steps, batch_size=64):
            return None

    class Prioritized(kind.__bases__[0], Changed):
        pass

    options = {"beta_initial": 0.4, "beta_final": 1.0, "beta_fraction": 1.0}
    options |= {"loss": "mse"} if kind in SQUARED else {}
    rule = (
        rf"Changed.train .* does not use {kind.loss_name}, .* 2\.8\.0 and 2\.9\.2 are known to work"
    )
    with pytest.raises(RuntimeError, match=rule):
        make(Prioritized, **options)


@pytest.mark.parametrize(("n_losses", "n_calls"), [(1, 2), (3, 2)])
def test_a_loss_that_is_computed_another_number_of_times_is_refused(n_losses, n_calls, monkeypatch):
    model = ready(make(PERSAC))
    monkeypatch.setattr(PERSAC, "_n_losses", lambda self: n_losses)
    buffer = model.replay_buffer

    with pytest.raises(
        RuntimeError, match=rf"{n_calls} times .* instead of {n_losses} .* known to"
    ):
        model.train(1, 16)

    assert model.replay_buffer is buffer


def test_sb3s_own_module_is_left_alone():
    module = inspect.getmodule(SAC.train)
    before = dict(vars(module))

    ready(make(PERSAC)).train(1, 16)

    assert vars(module) == before
    assert module.F is F


def test_a_function_with_another_global_keeps_everything_else():
    def twice(x, *, y=3):
        return sum(F.relu(each) + F.mse_loss(each, each) for each in (x, x)) + y

    changed = critic_loss.with_global(twice, "F.mse_loss", lambda *_: 10)

    assert changed(th.tensor(1.0)) == 2 * (1 + 10) + 3
    assert twice(th.tensor(1.0)) == 2 + 3
    assert {"F", "mse_loss", "relu"} <= critic_loss.names_in(twice.__code__)


# Arguments


@ALL
def test_it_takes_every_argument_of_the_base_in_its_order_and_then_its_own(kind, base):
    theirs, ours = (inspect.signature(each).parameters for each in (base, kind))

    loss = ["loss"] if kind in SQUARED else []
    assert [*ours] == [*theirs, "beta_initial", "beta_final", "beta_fraction", *loss]
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind), name


@ALL
def test_every_argument_reaches_the_base(kind, base):
    env = make_vec_env(lambda: Point(is_discrete(kind)))
    names = [*inspect.signature(base).parameters][2:-1]
    checked_by_sb3 = {"seed": 3, "verbose": 0, "device": "meta", "batch_size": 5, "use_sde": False}
    checked_by_sb3 |= {"stats_window_size": 7, "policy_kwargs": {}}
    values = {name: checked_by_sb3.get(name, object()) for name in names}

    theirs, ours = (
        vars(each("MlpPolicy", env, **values, _init_setup_model=False)) for each in (base, kind)
    )

    assert {name: ours[name] for name in theirs} == theirs


@EACH
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"beta_initial": 2.0}, "beta_initial must lie in .* got 2.0"),
        ({"lerning_rate": 1e-3}, "has no argument 'lerning_rate': did you mean 'learning_rate'"),
        ({"alpha": 0.5}, r"has no argument 'alpha': pass replay_buffer_kwargs=dict\(alpha"),
        ({"replay_buffer_kwargs": {"aplha": 0.5}}, "did you mean 'alpha'"),
    ],
)
def test_bad_arguments_are_refused(kind, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(kind, **options)


@EACH
def test_a_buffer_without_priorities_is_refused(kind):
    with pytest.raises(ValueError, match=r"replay_buffer_class must be PrioritizedReplayBuffer"):
        make(kind, replay_buffer_class=ReplayBuffer)


@EACH
def test_actions_of_another_kind_are_refused_before_anything_is_built(kind, monkeypatch):
    monkeypatch.setattr(kind, "_setup_model", None)
    rule = "does not support these actions: PERDQN and PERQRDQN need Discrete, all others need Box"

    with pytest.raises(ValueError, match=f"{kind.__name__} {rule}, got (Box|Discrete)"):
        make(kind, Point(discrete=not is_discrete(kind)))


@EACH
def test_hindsight_needs_goals(kind):
    rule = "needs Dict observations with achieved_goal and desired_goal .*leave replay_buffer_class"

    with pytest.raises(ValueError, match=rf"{rule} out"):
        make(kind, replay_buffer_class=PrioritizedHerReplayBuffer)


def test_a_critic_that_does_not_say_how_many_values_it_returns_is_refused():
    class Critic(ContinuousCritic):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            del self.n_critics

    class Policy(SACPolicy):
        def make_critic(self, features_extractor=None):
            kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
            return Critic(**kwargs)

    with pytest.raises(ValueError, match=r"must have n_critics, .*got 'Critic without it'"):
        make(PERSAC, policy=Policy)


# What the base can do


@EACH
def test_it_learns_with_critics_of_half_precision(kind):
    model = make(kind)
    critic = model.quantile_net if is_discrete(kind) else model.critic
    whole = critic.forward

    def forward(*args):
        with th.autocast("cpu", dtype=th.bfloat16):
            return whole(*args)

    critic.forward = forward
    before = parameters(model)

    model.learn(60)

    assert not all(map(th.equal, before, parameters(model)))


@EACH
@pytest.mark.parametrize("n_envs", [1, 3])
def test_it_learns_in_several_environments_with_normalization_and_goes_on_after_loading(
    kind, n_envs, tmp_path
):
    def env():
        return VecNormalize(make_vec_env(lambda: Point(is_discrete(kind)), n_envs=n_envs))

    model = make(kind, env(), gradient_steps=-1).learn(60)
    before = parameters(model)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")

    loaded = kind.load(tmp_path / "model", env=env())
    loaded.load_replay_buffer(tmp_path / "buffer")

    assert all(map(th.equal, before, parameters(loaded)))
    loaded.learn(60, reset_num_timesteps=False)
    assert not all(map(th.equal, before, parameters(loaded)))
    assert loaded.num_timesteps >= 120


DICT = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(4)})
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)


@pytest.mark.parametrize("kind", [k for k in KINDS if k is not PERCrossQ], ids=lambda k: k.__name__)
@pytest.mark.parametrize(("space", "policy"), [(DICT, "MultiInputPolicy"), (IMAGE, "CnnPolicy")])
def test_it_learns_from_dicts_and_images(kind, space, policy):
    model = make(kind, Point(is_discrete(kind), space), policy, n_steps=2).learn(30)

    assert model._n_updates > 0


@pytest.mark.parametrize("kind", ACTORS, ids=lambda kind: kind.__name__)
def test_actors_keep_their_options(kind):
    noise = NormalActionNoise(np.zeros(2), np.ones(2) / 9)
    shared = {"share_features_extractor": True} if kind is not PERCrossQ else {}
    options = {"action_noise": noise, "train_freq": (1, "episode"), "policy_kwargs": shared}
    options["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    if "use_sde" in inspect.signature(kind).parameters:
        options["use_sde"] = True

    model = make(kind, optimize_memory_usage=True, **options).learn(60)

    assert model._n_updates > 0


def state_of(model):
    entropy = getattr(model, "log_ent_coef", None)
    tensors = parameters(model) + ([] if entropy is None else [entropy])
    return [tensor.tolist() for tensor in tensors], model._n_updates, model.num_timesteps


@EACH
def test_a_run_resumed_from_a_checkpoint_is_the_run_that_was_never_interrupted(kind, tmp_path):
    def env():
        return make_vec_env(lambda: Still(is_discrete(kind)))

    model = make(kind, env()).learn(45)
    save_checkpoint(model, tmp_path / "model.ckpt")
    model.learn(27, reset_num_timesteps=False)
    resumed = load_checkpoint(tmp_path / "model.ckpt", env(), "cpu", algorithm=kind)
    resumed.learn(27, reset_num_timesteps=False)

    assert state_of(resumed) == state_of(model)


@pytest.mark.parametrize("kind", [PERSAC, PERTQC], ids=lambda kind: kind.__name__)
def test_a_run_with_gsde_resumes_from_a_checkpoint_of_the_callback(kind, tmp_path):
    """SB3 samples the noise of a rollout before it tells callbacks that the rollout begins."""

    def env():
        return make_vec_env(lambda: Still(is_discrete(kind)))

    options = {"use_sde": True, "train_freq": (1, "episode"), "gradient_steps": 2}
    model = make(kind, env(), **options)
    model.learn(90, callback=CheckpointCallback(45, tmp_path, keep=3))
    resumed = load_checkpoint(tmp_path / "checkpoint_45_steps.ckpt", env(), "cpu", algorithm=kind)
    resumed.learn(45, reset_num_timesteps=False)

    assert state_of(resumed) == state_of(model)


def test_a_model_that_is_saved_in_a_rollout_forgets_its_noise(tmp_path):
    """A loaded model must not store random states of another process in its own checkpoint."""
    model = make(PERSAC, use_sde=True)

    model.learn(20, callback=SB3CheckpointCallback(10, tmp_path))

    loaded = PERSAC.load(tmp_path / "rl_model_10_steps", env=model.get_env())
    assert loaded.torch_states_before_rollout is None
    assert model.torch_states_before_rollout is None


@ALL
def test_train_by_hand_has_the_bases_batch_size(kind, base, monkeypatch):
    sizes = []

    def noting(sample):
        return lambda size, env=None: sizes.append(size) or sample(size, env)

    for model in (ready(make(kind)), ready(make(base))):
        monkeypatch.setattr(model.replay_buffer, "sample", noting(model.replay_buffer.sample))
        model.train(gradient_steps=1)
        model.train(gradient_steps=1, batch_size=7)

    assert sizes[:2] == sizes[2:]
    assert sizes[1] == 7


@EACH
def test_another_optimizer_may_be_chosen(kind):
    options = {"optimizer_class": th.optim.RMSprop, "optimizer_kwargs": {"alpha": 0.9}}

    model = make(kind, policy_kwargs=options).learn(30)

    critic = model.policy if is_discrete(kind) else model.critic
    assert type(critic.optimizer) is th.optim.RMSprop
    assert model._n_updates > 0


def test_what_stands_in_for_the_buffer_can_be_copied():
    """Another thread may copy the model while it trains."""
    buffer = ready(make(PERTD3)).replay_buffer
    replay = critic_loss.WeightedReplay(buffer, F.mse_loss, PERTD3.td_errors, 2)

    assert copy.copy(replay).n_slots == buffer.n_slots


def test_a_checkpoint_of_another_algorithm_is_refused_by_name(tmp_path):
    class Mine(PERSAC):
        pass

    save_checkpoint(make(Mine), tmp_path / "model.ckpt")

    for algorithm in ({}, {"algorithm": PERTD3}):
        with pytest.raises(ValueError, match="algorithm must be PERSAC, which the checkpoint was"):
            load_checkpoint(tmp_path / "model.ckpt", Point(), **algorithm)
    assert type(load_checkpoint(tmp_path / "model.ckpt", Point(), algorithm=Mine)) is Mine
    load_checkpoint(tmp_path / "model.ckpt", Point(), algorithm=PERSAC)


def test_contrib_that_is_missing_is_named_with_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    monkeypatch.delitem(sys.modules, "sb3_per.algorithms.tqc", raising=False)
    monkeypatch.delitem(vars(sb3_per), "PERTQC", raising=False)

    with pytest.raises(ImportError, match=r"PERTQC needs .*: pip install .sb3-per\[contrib\]."):
        _ = sb3_per.PERTQC


def test_a_bare_install_exports_what_it_has():
    code = (
        "import sys; sys.modules['sb3_contrib'] = None; import sb3_per; from sb3_per import *;"
        "print('PERTQC' in dir(sb3_per), PERSAC.__name__)"
    )

    said = subprocess.run([sys.executable, "-c", code], check=True, text=True, stdout=-1).stdout

    assert said == "False PERSAC\n"
