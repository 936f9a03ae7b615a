"""Subclasses of the algorithms and of the buffer, and buffers that are deleted and loaded."""

import numpy as np
import pytest
import torch as th
from stable_baselines3 import SAC

from sb3_per import PERDQN, PERSAC, PrioritizedReplayBuffer, load_buffer, save_buffer
from sb3_per.algorithms.critics import PrioritizedCriticAlgorithm


def make(kind, env, **options):
    small = {"buffer_size": 500, "learning_starts": 20, "policy_kwargs": {"net_arch": [8]}}
    return kind("MlpPolicy", env, seed=0, device="cpu", **{**small, **options})


class AlphaFirst(PERDQN):
    def __init__(self, *args, **kwargs):
        options = {"alpha": kwargs.pop("alpha")}
        super().__init__(*args, replay_buffer_kwargs=options, **kwargs)


class NamedSAC(SAC):
    def __init__(self, *args, name="", **kwargs):
        super().__init__(*args, **kwargs)
        self.name = name


class NamedPERSAC(PERSAC, NamedSAC):
    pass


class PERNamedSAC(PrioritizedCriticAlgorithm, NamedSAC):
    pass


def test_algorithm_subclass_may_take_an_option_of_the_buffer():
    assert make(AlphaFirst, "CartPole-v1", alpha=0.3).replay_buffer.alpha == 0.3
    with pytest.raises(ValueError, match="no argument 'beta'"):
        make(AlphaFirst, "CartPole-v1", alpha=0.3, beta=0.5)


@pytest.mark.parametrize("kind", [NamedPERSAC, PERNamedSAC])
def test_algorithm_subclass_calls_the_constructors_of_all_its_bases(kind):
    assert make(kind, "Pendulum-v1", name="mine").name == "mine"


class WithoutWeights(PrioritizedReplayBuffer):
    def sample(self, *args, **kwargs):
        batch = super().sample(*args, **kwargs)
        return batch._replace(weights=batch.weights * 0)


class EverySecondBatch(PrioritizedReplayBuffer):
    returned = ()

    def sample(self, *args, **kwargs):
        batch = super().sample(*args, **kwargs)
        self.returned = batch.slots
        super().sample(*args, **kwargs)
        return batch

    def update_priorities(self, slots, td_errors):
        assert (slots == self.returned).all()
        super().update_priorities(slots, td_errors)


@pytest.mark.parametrize(("kind", "env"), [(PERDQN, "CartPole-v1"), (PERSAC, "Pendulum-v1")])
def test_algorithm_learns_with_the_weights_of_an_overridden_sample(kind, env):
    model = make(kind, env, replay_buffer_class=WithoutWeights).learn(20)
    critic = model.q_net if kind is PERDQN else model.critic
    before = [each.clone() for each in critic.parameters()]

    model.learn(30, reset_num_timesteps=False)

    assert model._n_updates > 0
    assert all(map(th.equal, before, critic.parameters()))


@pytest.mark.parametrize(("kind", "env"), [(PERDQN, "CartPole-v1"), (PERSAC, "Pendulum-v1")])
def test_algorithm_updates_the_slots_of_an_overridden_sample(kind, env):
    model = make(kind, env, replay_buffer_class=EverySecondBatch).learn(40)

    assert len(set(model.replay_buffer.probabilities(np.arange(40)))) > 2


def test_deleted_buffer_is_replaced_by_a_stored_one(tmp_path):
    model = make(PERDQN, "CartPole-v1").learn(60)
    save_buffer(model.replay_buffer, tmp_path / "buffer.npz")
    del model.replay_buffer  # to save memory

    model.use_replay_buffer(load_buffer(tmp_path / "buffer.npz"))

    assert model.learn(60, reset_num_timesteps=False).replay_buffer.size() == 120


def test_buffer_is_loaded_as_it_was_stored(tmp_path):
    model = make(PERDQN, "CartPole-v1").learn(150)
    stored = {name: array.copy() for name, array in model.replay_buffer.storage().items()}
    model.save_replay_buffer(tmp_path / "buffer")

    model.replay_buffer = None
    model.load_replay_buffer(tmp_path / "buffer")

    loaded = model.replay_buffer.storage()
    assert all(np.array_equal(loaded[name], stored[name]) for name in stored)
