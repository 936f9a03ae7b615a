"""What SB3's own tests ask of spaces, wrappers and training, asked of DQN and PERDQN."""

import copy

import pytest
import torch as th
from expectations import BOTH, make, same, weights
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import (
    BitFlippingEnv,
    FakeImageEnv,
    IdentityEnv,
    SimpleMultiObsEnv,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_per import PERDQN, PrioritizedHerReplayBuffer

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
    with pytest.raises(AssertionError, match=r"only supports|does not support these actions"):
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


@BOTH
def test_hindsight_replay_is_asked_for_by_sb3s_class(kind):
    env = BitFlippingEnv(n_bits=3)

    model = make(kind, env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer)

    expected = HerReplayBuffer if kind is DQN else PrioritizedHerReplayBuffer
    assert type(model.replay_buffer) is expected
    model.learn(60)


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
