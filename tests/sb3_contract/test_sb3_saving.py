"""What SB3's own tests ask of saving, loading, policies and optimisers, of DQN and PERDQN."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from expectations import BOTH, make, same, weights
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.dqn.policies import DQNPolicy

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
