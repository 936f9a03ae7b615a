"""Demonstrations: kept, sampled as often as stated, and weighted exactly."""

import gymnasium as gym
import numpy as np
import pytest
from corridor import Corridor
from models import Point, make
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERDQN, PERSAC, PrioritizedReplayBuffer, load_checkpoint, save_checkpoint

MARK = 7.0  # which only demonstrations show


class Costly(Point):
    """Each step costs 1."""

    def __init__(self):
        super().__init__(discrete=True)

    def step(self, action):
        *others, info = super().step(action)
        return *others, {**info, "cost": 1.0}


def shown(n, space=None, ends=(), actions=None):
    """Step t of a demonstration earns 100 + t."""
    space = space or Point(True).observation_space
    observations = np.full((n, *space.shape), MARK, space.dtype)
    return {
        "observations": observations,
        "actions": np.arange(n) % 3 if actions is None else actions,
        "rewards": 100.0 + np.arange(n),
        "next_observations": observations,
        "terminations": np.isin(np.arange(n), ends),
        "truncations": np.zeros(n, dtype=bool),
    }


def is_shown(batch):
    return (batch.observations[:, 0] == MARK).numpy()


@pytest.mark.parametrize("kind", [PERDQN, PERSAC])
@pytest.mark.parametrize(("share", "n"), [(0.25, 2), (0.5, 4), (0.0, 0), (1.0, 8)])
def test_batch_has_a_fixed_number_of_demonstrations(kind, share, n, monkeypatch):
    model = make(kind, Point(kind is PERDQN))
    actions = None if kind is PERDQN else np.zeros((30, 2), np.float32)
    model.add_demonstrations(shown(30, actions=actions), share=share)
    model.learn(300)  # the agent's transitions are overwritten; demonstrations are not

    batches = [model._replay.sample(8) for _ in range(5)]

    assert [is_shown(batch).sum() for batch in batches] == [n] * 5
    assert len(model.demonstrations) == 30
    for batch in batches:
        assert ((batch.slots >= model.replay_buffer.n_slots) == is_shown(batch)).all()


def test_later_call_adds_demonstrations(tmp_path):
    model = make()
    np.savez(tmp_path / "shown.npz", **shown(30))
    with np.load(tmp_path / "shown.npz") as arrays:
        for source in (shown(20), arrays):
            model.add_demonstrations(source, share=0.25)

    assert len(model.demonstrations) == 50
    assert model.demonstrations.rewards[:, 0].tolist() == [*range(100, 120), *range(100, 130)]


class Doubled(PrioritizedReplayBuffer):
    def add(self, obs, next_obs, action, reward, done, infos):
        super().add(obs, next_obs, action, 2 * reward, done, infos)


def test_add_of_the_user_changes_demonstrations_once():
    model, other = (make(replay_buffer_class=Doubled) for _ in range(2))

    model.add_demonstrations(shown(2))
    model.add_demonstrations(shown(1))
    other.add_demonstrations(model.demonstrations)

    for buffer in (model.demonstrations, other.demonstrations):
        assert buffer.rewards[:, 0].tolist() == [200, 202, 200]


def test_infos_of_demonstrations_come_back():
    model = make(env=Costly(), options={"info_keys": ["cost"]}).learn(60)
    model.add_demonstrations({**shown(20), "infos": {"cost": 1000.0 + np.arange(20)}})
    model.add_demonstrations(model.demonstrations)

    batch = model._replay.sample(64)

    of_demonstrations = batch.slots - model.replay_buffer.n_slots >= 0
    costs = batch.infos["cost"][:, 0].numpy()
    assert (costs[of_demonstrations] == batch.rewards[of_demonstrations, 0].numpy() + 900).all()
    assert (costs[~of_demonstrations] == 1.0).all()


def test_demonstrations_follow_the_buffer(monkeypatch):
    model = make(options={"beta": 0.2}).learn(60)
    model.add_demonstrations(shown(20), share=1.0)
    model.replay_buffer.n_steps, model.replay_buffer.gamma, model.replay_buffer.beta = 2, 0.5, 1.0

    batch = model._replay.sample(8)

    slots = batch.slots - model.replay_buffer.n_slots
    expected = 100.0 + slots + 0.5 * (101 + slots) * (slots < 19)
    np.testing.assert_allclose(batch.rewards[:, 0], expected)
    assert model.demonstrations.beta == 1.0


def test_td_errors_reach_the_buffer_of_their_transition():
    model = make(options={"prioritization": "rank"}).learn(60)
    model.add_demonstrations(shown(20))
    n_slots = model.replay_buffer.n_slots

    model._replay.update_priorities(np.array([3, n_slots + 5]), np.array([50.0, 60.0]))

    assert model.replay_buffer.prioritization.slots_at(np.array([0])) == [3]
    assert model.demonstrations.prioritization.slots_at(np.array([0])) == [5]


def test_weights_are_those_of_each_part():
    model = make(options={"alpha": 1.0, "beta": 1.0, "weight_normalization": "none"}).learn(60)
    model.add_demonstrations(shown(20))
    model._replay.update_priorities(model.replay_buffer.n_slots + np.arange(20), np.arange(20.0))

    batch = model._replay.sample(8)

    for buffer, part in ((model.replay_buffer, slice(4)), (model.demonstrations, slice(4, 8))):
        slots = batch.slots[part] - (part.start is not None) * model.replay_buffer.n_slots
        expected = 1 / (buffer.n_sampleable * buffer.probabilities(slots))
        np.testing.assert_allclose(batch.weights[part, 0], expected, rtol=1e-5)


def test_all_are_demonstrations_until_the_agent_plays():
    model = make()
    model.add_demonstrations(shown(20))
    model._setup_learn(100)

    model.train(3, 8)

    assert is_shown(model._replay.sample(8)).all()


def test_returns_end_with_each_source():
    model = make(n_steps=3)
    model.add_demonstrations(shown(4, ends=[1]), shown(3))

    rewards = model.demonstrations._get_samples(np.arange(7)).rewards.flatten()

    gamma = 0.9
    expected = [100 + gamma * 101, 101, 102 + gamma * 103, 103]
    expected += [100 + gamma * 101 + gamma**2 * 102, 101 + gamma * 102, 102]
    np.testing.assert_allclose(rewards, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["actions", "rewards", "terminations", "truncations"])
def test_demonstrations_of_unequal_lengths_are_refused(name):
    model = make()
    source = shown(20)

    with pytest.raises(ValueError, match=f"arrays of one length, got .*'{name}': 19"):
        model.add_demonstrations({**source, name: source[name][:19]})

    assert model.demonstrations is None


@pytest.mark.parametrize("n_envs", [1, 3])
def test_buffers_are_sources(n_envs):
    expert = make(env=make_vec_env(lambda: Point(True), n_envs=n_envs)).learn(90)
    spaces = expert.observation_space, expert.action_space
    sb3s = ReplayBuffer(150, *spaces, "cpu", n_envs=n_envs)
    rows = expert.replay_buffer.size()
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        getattr(sb3s, name)[:rows] = getattr(expert.replay_buffer, name)[:rows]
    sb3s.pos = rows
    for source in (expert.replay_buffer, sb3s):
        model = make(env=make_vec_env(lambda: Point(True), n_envs=2))
        model.add_demonstrations(source)
        for name in ("observations", "next_observations", "rewards", "actions"):
            theirs = getattr(source, name)[:rows].swapaxes(0, 1)
            ours = getattr(model.demonstrations, name)
            assert np.array_equal(ours.reshape(theirs.shape), theirs)
        assert model.learn(60).num_timesteps == 60


@pytest.mark.filterwarnings("ignore::UserWarning")  # it wants an author and a permalink
def test_minari_dataset_is_a_source(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env, shape = gym.make("Pendulum-v1"), (6, 3)
    parts = {"terminations": np.zeros(5, bool), "truncations": np.zeros(5, bool)}
    parts |= {"actions": np.ones((5, 1), np.float32), "rewards": np.arange(5.0)}
    episodes = [
        EpisodeBuffer(observations=np.full(shape, x, np.float32), **parts) for x in (0.1, 0.2)
    ]
    dataset = minari.create_dataset_from_buffers("pendulum/test-v0", episodes, env)
    model = make(PERSAC, gym.make("Pendulum-v1"))

    model.add_demonstrations(dataset)

    stored = model.demonstrations
    assert np.allclose(stored.observations[:10, 0, 0], [0.1] * 5 + [0.2] * 5)
    assert stored.rewards[:10, 0].tolist() == [*range(5)] * 2
    assert (stored.actions[:10] == 0.5).all()  # scaled from [-2, 2]
    assert np.flatnonzero(stored.timeouts).tolist() == [4, 9]


def test_demonstrations_are_stored_in_checkpoints_not_in_models(tmp_path):
    model = make(env=Corridor())
    space = Corridor().observation_space
    model.add_demonstrations(shown(20, space, actions=np.arange(20) % 2), share=0.75)
    model.learn(60)
    model.save(tmp_path / "model")
    save_checkpoint(model, tmp_path / "run.ckpt")

    assert PERDQN.load(tmp_path / "model").demonstrations is None
    loaded = load_checkpoint(tmp_path / "run.ckpt", Corridor(), "cpu")
    assert loaded.demonstration_share == 0.75
    batches = [one._replay.sample(8) for one in (model, loaded)]
    assert np.array_equal(batches[0].slots, batches[1].slots)
