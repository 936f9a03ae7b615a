"""What Stable-Baselines3's own tests ask of DQN, asked of both DQN and PERDQN."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.callbacks import (
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import (
    BitFlippingEnv,
    FakeImageEnv,
    IdentityEnv,
    SimpleMultiObsEnv,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
from stable_baselines3.dqn.policies import DQNPolicy

from sb3_per import PERDQN

BOTH = pytest.mark.parametrize("kind", [DQN, PERDQN])
SMALL = {"buffer_size": 300, "learning_starts": 30, "train_freq": 2, "seed": 0, "device": "cpu"}


def make(kind, env="CartPole-v1", policy="MlpPolicy", **options):
    network = {"policy_kwargs": {"net_arch": [16]}}
    return kind(policy, env, **{**SMALL, **network, **options})


def weights(model):
    return [tensor.detach().clone() for tensor in model.policy.state_dict().values()]


def same(left, right):
    return all(th.equal(one, other) for one, other in zip(left, right, strict=True))


# Saving and loading


@BOTH
def test_what_is_loaded_predicts_the_same_and_learns_on(kind, tmp_path):
    model = make(kind).learn(100)
    model.save(tmp_path / "model")
    observations = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)

    loaded = kind.load(tmp_path / "model", env=gym.make("CartPole-v1"))

    assert same(weights(loaded), weights(model))
    left, right = (one.predict(observations, deterministic=True)[0] for one in (loaded, model))
    assert (left == right).all()
    states = [one.policy.optimizer.state_dict()["state"] for one in (loaded, model)]
    assert str(states[0]) == str(states[1])
    loaded.learn(100, reset_num_timesteps=False)
    assert loaded.num_timesteps == 200


@BOTH
def test_arguments_may_change_on_loading_but_not_the_network(kind, tmp_path):
    make(kind).learn(60).save(tmp_path / "model")

    loaded = kind.load(
        tmp_path / "model",
        env=gym.make("CartPole-v1"),
        learning_rate=0.5,
        gamma=0.7,
        exploration_final_eps=0.3,
        custom_objects={"batch_size": 7},
    )

    assert (loaded.learning_rate, loaded.gamma, loaded.batch_size) == (0.5, 0.7, 7)
    assert loaded.learn(60).policy.optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(ValueError, match="policy kwargs do not equal"):
        kind.load(tmp_path / "model", policy_kwargs={"net_arch": [3]})


@BOTH
def test_lists_of_what_to_save_are_followed(kind, tmp_path):
    model = make(kind)
    model.note = "mine"
    model.save(tmp_path / "without", exclude=["note", "learning_starts"])
    model.save(tmp_path / "with", include=["_custom_logger"])

    without, included = (kind.load(tmp_path / name) for name in ("without", "with"))

    assert not hasattr(without, "note")
    assert without.learning_starts == kind("MlpPolicy", "CartPole-v1").learning_starts
    assert (included.note, included._custom_logger) == ("mine", False)


@BOTH
def test_saving_leaves_out_the_buffer_and_the_environment(kind, tmp_path):
    model = make(kind).learn(60)
    model.save(tmp_path / "model")

    loaded = kind.load(tmp_path / "model")

    assert loaded.env is None
    assert loaded.replay_buffer.size() == 0


@BOTH
def test_parameters_are_taken_and_given_as_dicts(kind):
    one, other = make(kind, seed=0), make(kind, seed=1)
    assert set(one.get_parameters()) == {"policy", "policy.optimizer"}

    other.set_parameters(one.get_parameters())

    assert same(weights(other), weights(one))
    with pytest.raises(ValueError, match="do not match"):
        other.set_parameters({"policy": one.get_parameters()["policy"]})
    other.set_parameters({"policy": one.get_parameters()["policy"]}, exact_match=False)


@BOTH
def test_replay_buffers_are_saved_and_loaded(kind, tmp_path):
    model = make(kind).learn(60)
    model.save_replay_buffer(tmp_path / "buffer")
    rows = model.replay_buffer.observations[:60].copy()
    other = make(kind)

    other.load_replay_buffer(tmp_path / "buffer")

    assert (other.replay_buffer.observations[:60] == rows).all()
    assert type(other.replay_buffer) is type(model.replay_buffer)
    other.learn(60)


# Policies and optimisers


class Linear(BaseFeaturesExtractor):
    def __init__(self, space, features_dim=5):
        super().__init__(space, features_dim)
        self.linear = th.nn.Linear(space.shape[0], features_dim)

    def forward(self, observations):
        return self.linear(observations)


class OwnPolicy(DQNPolicy):
    pass


@BOTH
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer_class": th.optim.RMSprop, "optimizer_kwargs": {"eps": 1e-3}},
        {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {"momentum": 0.9}},
        {"features_extractor_class": Linear, "features_extractor_kwargs": {"features_dim": 3}},
        {"activation_fn": th.nn.ELU, "net_arch": []},
    ],
    ids=lambda options: next(iter(options)),
)
def test_networks_and_optimisers_of_ones_own_learn_and_are_saved(kind, options, tmp_path):
    model = make(kind, policy=OwnPolicy, policy_kwargs=options)
    before = weights(model)
    model.learn(100).save(tmp_path / "model")

    loaded = kind.load(tmp_path / "model")

    assert type(loaded.policy) is OwnPolicy
    assert type(loaded.policy.optimizer) is options.get("optimizer_class", th.optim.Adam)
    assert same(weights(loaded), weights(model))
    assert not same(before, weights(model))


@BOTH
def test_the_step_size_follows_its_schedule(kind):
    model = make(kind, learning_rate=lambda remaining: 0.25 * remaining).learn(100)

    rate = model.policy.optimizer.param_groups[0]["lr"]
    assert rate == pytest.approx(0.25 * 0.0, abs=0.25 * 3 / 100)


# Spaces and wrappers

ENVIRONMENTS = {
    "image": (lambda: FakeImageEnv(36, 36, n_channels=1, discrete=True), "CnnPolicy"),
    "channel first": (
        lambda: FakeImageEnv(36, 36, n_channels=1, discrete=True, channel_first=True),
        "CnnPolicy",
    ),
    "dict": (lambda: SimpleMultiObsEnv(random_start=False), "MultiInputPolicy"),
    "discrete": (lambda: IdentityEnv(4), "MlpPolicy"),
}


@BOTH
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_kind_of_observation_is_learned_from_saved_and_predicted(kind, name, tmp_path):
    env_kind, policy = ENVIRONMENTS[name]
    env = make_vec_env(env_kind, n_envs=2)
    model = make(kind, env, policy, policy_kwargs={}).learn(60)
    model.save(tmp_path / "model")

    loaded = kind.load(tmp_path / "model", env=make_vec_env(env_kind, n_envs=2))

    observations = model.get_env().reset()
    left, right = (one.predict(observations, deterministic=True)[0] for one in (model, loaded))
    assert left.shape == (2,)
    assert (left == right).all()
    loaded.learn(40)


@BOTH
def test_continuous_actions_are_refused(kind):
    with pytest.raises(AssertionError, match="only supports"):
        make(kind, "Pendulum-v1")


@BOTH
def test_observations_are_stored_as_they_are_and_normalized_on_sampling(kind):
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=2))
    model = make(kind, env).learn(200)

    stored = model.replay_buffer.observations[:50].reshape(-1, 4)
    batch = model.replay_buffer.sample(64, env=env)

    normalized = {tuple(row) for row in env.normalize_obs(stored).tolist()}
    raw = {tuple(row) for row in stored.tolist()}
    drawn = {tuple(row) for row in batch.observations.tolist()}
    assert len(drawn & normalized) > 20
    assert not drawn & raw
    assert set(model.replay_buffer.rewards[:50].flatten()) == {1.0}


@BOTH
def test_what_is_learned_from_is_normalized(kind, monkeypatch):
    env = VecNormalize(make_vec_env("CartPole-v1"))
    model = make(kind, env)
    sample, given = model.replay_buffer.sample, []

    def note(*args, **kwargs):
        given.append(kwargs["env"])
        return sample(*args, **kwargs)

    monkeypatch.setattr(model.replay_buffer, "sample", note)
    model.learn(60)

    assert len(given) == model._n_updates
    assert all(one is env for one in given)


@BOTH
def test_stacked_frames_are_learned_from(kind):
    env = VecFrameStack(make_vec_env("CartPole-v1", n_envs=2), 3)

    model = make(kind, env).learn(60)

    assert model.replay_buffer.observations.shape[-1] == 12


def test_hindsight_replay_is_refused_with_a_way_out():
    env = BitFlippingEnv(n_bits=3)
    make(DQN, env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer)

    with pytest.raises(ValueError, match=r"hindsight replay use DQN.* got HerReplay"):
        make(PERDQN, env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer)


# Training


@BOTH
def test_two_runs_of_one_seed_are_the_same_and_return_the_same(kind):
    runs = []
    for _ in range(2):
        model = make(kind, IdentityEnv(3), learning_rate=1e-2).learn(200)
        runs.append((weights(model), evaluate_policy(model, model.get_env(), n_eval_episodes=3)))

    assert same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


@BOTH
def test_a_task_without_memory_is_solved(kind):
    options = {"learning_rate": 1e-2, "gamma": 0.5, "target_update_interval": 50}
    options |= {"exploration_fraction": 0.3, "train_freq": 1, "batch_size": 64}
    model = make(kind, IdentityEnv(2), buffer_size=1000, **options)

    mean, _ = evaluate_policy(model.learn(700), model.get_env(), n_eval_episodes=5)

    assert mean > 90


@BOTH
@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_target_network_moves_at_its_interval_by_its_share(kind, tau):
    model = make(kind, tau=tau, target_update_interval=40, learning_starts=9, train_freq=1)
    target = model.q_net_target
    first = copy.deepcopy(target.state_dict())

    model.learn(39)
    assert same(first.values(), target.state_dict().values())
    assert not same(first.values(), model.q_net.state_dict().values())
    online = {}

    def note(locals_, globals_):
        online.update(copy.deepcopy(model.q_net.state_dict()))
        return True

    model.learn(1, callback=note, reset_num_timesteps=False)

    for key, value in target.state_dict().items():
        th.testing.assert_close(value, (1 - tau) * first[key] + tau * online[key])


@BOTH
def test_more_environments_than_the_targets_interval_are_warned_of(kind):
    env = make_vec_env("CartPole-v1", n_envs=4)

    with pytest.warns(
        UserWarning, match=r"greater than the target network update interval \(4 > 2"
    ):
        make(kind, env, target_update_interval=2)


@BOTH
def test_episodes_as_the_unit_of_training_need_a_single_environment(kind):
    make(kind, train_freq=(1, "episode")).learn(60)
    env = make_vec_env("CartPole-v1", n_envs=2)

    with pytest.raises(AssertionError, match="only one env"):
        make(kind, env, train_freq=(1, "episode")).learn(60)
    with pytest.raises(ValueError, match="unit of the `train_freq`"):
        make(kind, train_freq=(1, "minute"))


class Stochastic(BaseFeaturesExtractor):
    """Batch norm, whose statistics move in training only, and dropout, which draws then only."""

    def __init__(self, space):
        super().__init__(space, features_dim=16)
        self.norm = th.nn.BatchNorm1d(space.shape[0])
        self.layers = th.nn.Sequential(th.nn.Linear(space.shape[0], 16), th.nn.Dropout(0.5))

    def forward(self, observations):
        return self.layers(self.norm(observations))


MODES = pytest.mark.parametrize(
    ("kind", "options"), [(DQN, {}), (PERDQN, {}), (PERDQN, {"double_q": True})]
)


@MODES
def test_batch_norm_counts_each_batch_once_and_the_target_follows_online(kind, options):
    extractor = {"features_extractor_class": Stochastic}
    model = make(kind, policy_kwargs=extractor, target_update_interval=10, **options)

    model.learn(90)
    online = model.q_net.features_extractor.norm
    target = model.q_net_target.features_extractor.norm

    assert online.num_batches_tracked.item() == model._n_updates == 30
    assert target.num_batches_tracked.item() == 0
    assert not th.equal(online.running_mean, th.zeros(4))
    assert not th.equal(target.running_mean, th.zeros(4))


@MODES
def test_acting_is_not_random_where_training_is(kind, options):
    model = make(kind, policy_kwargs={"features_extractor_class": Stochastic}, **options)
    model.learn(60)
    observations = th.ones((64, 4))

    model.predict(observations.numpy(), deterministic=True)
    assert not model.q_net.training
    model.policy.set_training_mode(False)
    assert th.equal(model.q_net(observations), model.q_net(observations))
    model.policy.set_training_mode(True)
    assert not th.equal(model.q_net(observations), model.q_net(observations))
    assert not model.q_net_target.training


def test_double_q_learning_chooses_as_the_policy_acts_and_trains_on_in_training_mode():
    extractor = {"features_extractor_class": Stochastic}
    model = make(PERDQN, policy_kwargs=extractor, double_q=True).learn(100)
    batch = model.replay_buffer.sample(128)
    model.policy.set_training_mode(True)
    statistics = model.q_net.features_extractor.norm.running_mean.clone()

    targets = [model._targets(batch) for _ in range(2)]

    assert th.equal(*targets)
    assert model.q_net.training
    assert th.equal(model.q_net.features_extractor.norm.running_mean, statistics)
    model.policy.set_training_mode(False)
    chosen = model.q_net(batch.next_observations).argmax(dim=1, keepdim=True)
    values = model.q_net_target(batch.next_observations).gather(1, chosen)
    th.testing.assert_close(targets[0], batch.rewards + (1 - batch.dones) * 0.99 * values)


# Callbacks, loggers, acting


@BOTH
def test_sb3s_callbacks_are_called_in_time(kind, tmp_path):
    counted = []
    callbacks = [
        EvalCallback(
            make_vec_env("CartPole-v1"), eval_freq=50, best_model_save_path=str(tmp_path), verbose=0
        ),
        CheckpointCallback(40, str(tmp_path), save_replay_buffer=True),
        EveryNTimesteps(30, ConvertCallback(lambda *_: counted.append(1) or True)),
        StopTrainingOnMaxEpisodes(12),
    ]

    model = make(kind).learn(5000, callback=callbacks)

    assert model._episode_num <= 12
    assert model.num_timesteps < 5000
    assert len(counted) == model.num_timesteps // 30
    assert {"best_model.zip", "rl_model_40_steps.zip"} <= {p.name for p in tmp_path.iterdir()}
    assert (tmp_path / "rl_model_replay_buffer_40_steps.pkl").exists()


@BOTH
def test_a_callback_that_says_no_stops_the_training(kind):
    model = make(kind).learn(200, callback=lambda locals_, _: locals_["self"].num_timesteps < 77)

    assert model.num_timesteps == 77


@BOTH
def test_a_logger_of_ones_own_gets_everything(kind, tmp_path):
    model = make(kind)
    model.set_logger(configure(str(tmp_path), ["csv", "json"]))

    model.learn(200, log_interval=1)
    model.logger.close()

    columns = (tmp_path / "progress.csv").read_text().splitlines()[0].split(",")
    wanted = {"rollout/ep_rew_mean", "rollout/exploration_rate", "train/loss", "time/fps"}
    assert wanted <= set(columns)
    assert (tmp_path / "progress.json").exists()


@BOTH
def test_exploration_falls_linearly_and_then_stays(kind):
    model = make(kind, exploration_fraction=0.5, exploration_final_eps=0.1)
    rates = {}

    def note(locals_, _):
        rates[model.num_timesteps] = model.exploration_rate
        return True

    model.learn(200, callback=note)

    assert rates[51] == pytest.approx(0.55)
    assert rates[150] == pytest.approx(0.1)


@BOTH
def test_predictions_have_the_shapes_of_what_they_are_asked(kind):
    model = make(kind)
    one = model.observation_space.sample()

    for deterministic in (True, False):
        action, state = model.predict(one, deterministic=deterministic)
        actions, _ = model.predict(np.stack([one] * 5), deterministic=deterministic)
        assert (np.shape(action), actions.shape, state) == ((), (5,), None)
        assert model.action_space.contains(int(action))
    with pytest.raises(ValueError, match="Unexpected observation shape"):
        model.predict(np.ones(3))


@BOTH
def test_acting_at_random_is_a_matter_of_the_exploration_rate(kind):
    model = make(kind)
    one = model.observation_space.sample()
    best = int(model.predict(one, deterministic=True)[0])

    model.exploration_rate = 1.0
    explored = {int(model.predict(one)[0]) for _ in range(50)}
    model.exploration_rate = 0.0
    exploited = {int(model.predict(one)[0]) for _ in range(50)}

    assert (explored, exploited) == ({0, 1}, {best})


@BOTH
def test_other_environments_have_to_fit(kind):
    model = make(kind)

    with pytest.raises(ValueError, match="spaces do not match"):
        model.set_env(gym.make("Acrobot-v1"))
    with pytest.raises(AssertionError, match="number of environments"):
        model.set_env(make_vec_env("CartPole-v1", n_envs=2))
    model.set_env(gym.make("CartPole-v1"))
    assert isinstance(model.observation_space, spaces.Box)
    model.learn(60)


@BOTH
def test_a_model_can_be_made_without_an_environment_only_to_be_loaded(kind, tmp_path):
    make(kind).save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model")

    with pytest.raises(AssertionError, match="set the environment"):
        loaded.learn(10)
    loaded.set_env(gym.make("CartPole-v1"))
    loaded.learn(60)
