"""Values of ``infos`` in batches, files and checkpoints, and what cannot be stored."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from builders import BOX, TWO_ACTIONS
from goal_line import GOAL_SPACE, goal_envs
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per import (
    PERDQN,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    load_buffer,
    load_checkpoint,
    save_buffer,
    save_checkpoint,
)

KEYS = ["cost", "mask", "count", "lives"]


def info(step, env):
    mask = np.array([step % 2, env, 1], dtype=bool)
    return {"cost": step + env / 10, "mask": mask, "count": step, "lives": np.int8(env), "": None}


def make(n_rows=10, n_envs=1, **options):
    size = n_rows * n_envs
    options = {"info_keys": KEYS, **options}
    return PrioritizedReplayBuffer(size, BOX, TWO_ACTIONS, "cpu", n_envs, **options)


def add(buffer, infos):
    observations, zeros = np.zeros((buffer.n_envs, 2)), np.zeros(buffer.n_envs)
    buffer.add(observations, observations, zeros, zeros, zeros, infos)


def filled(n_rows=14, n_envs=1, **options):
    buffer = make(n_envs=n_envs, **options)
    for step in range(n_rows):
        add(buffer, [info(step, env) for env in range(n_envs)])
    return buffer


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_batch_has_the_infos_of_its_transitions(n_envs, n_steps):
    buffer = filled(n_envs=n_envs, n_steps=n_steps)  # the ring of 10 rows holds steps 4 to 13

    batch = buffer.sample(40)

    rows, envs = np.divmod(batch.slots, n_envs)
    steps = np.where(rows < 4, rows + 10, rows)
    expected = [info(step, env) for step, env in zip(steps, envs, strict=True)]
    for key, dtype in zip(KEYS, (th.float32, th.bool, th.int64, th.int8), strict=True):
        values = np.array([each[key] for each in expected])
        assert batch.infos[key].dtype == dtype
        assert batch.infos[key].shape == (40, 3 if key == "mask" else 1)
        np.testing.assert_allclose(batch.infos[key].numpy().squeeze(), values, rtol=1e-6)


def test_a_float_takes_whole_numbers_after_it():
    buffer = make(info_keys=["cost"])
    for cost in (0.5, 1, True):
        add(buffer, [{"cost": cost}])

    assert buffer.info_arrays["cost"][:3, 0].tolist() == [0.5, 1, 1]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (
            {"mask": np.ones(2, bool)},
            r"infos\['mask'\] .* bool of shape \(3,\), got bool of \(2,\)",
        ),
        ({"cost": [1.0]}, r"infos\['cost'\] must be numbers like the first"),
        ({"count": 0.5}, r"infos\['count'\] .* int64 of shape \(\), got float64"),
        ({"lives": 300}, r"infos\['lives'\] .* int8 of shape \(\), got int64"),  # it would wrap
        ({"cost": "a"}, r"infos\['cost'\] must be numbers"),
        ({"cost": None}, r"infos\['cost'\] must be numbers"),
    ],
)
def test_other_values_than_the_first_are_refused_and_change_nothing(changes, rule):
    buffer = filled(3, n_envs=2)

    with pytest.raises(ValueError, match=rule):
        add(buffer, [info(3, 0), {**info(3, 1), **changes}])

    assert len(buffer) == buffer.n_sampleable == 6
    assert not buffer.info_arrays["cost"][3].any()
    add(buffer, [info(3, 0), info(3, 1)])
    assert len(buffer) == 8


def test_a_missing_key_is_named_with_its_environment():
    with pytest.raises(
        ValueError, match=r"must have \['cost'\], got \['mask'\] from environment 1"
    ):
        add(make(n_envs=2, info_keys=["cost"]), [{"cost": 1.0}, {"mask": 1}])
    with pytest.raises(ValueError, match="info_keys must be a list of keys, got 'cost'"):
        make(info_keys="cost")


def test_stored_infos_continue(tmp_path):
    buffer = filled(n_envs=2)
    save_buffer(buffer, tmp_path / "buffer.npz")

    for again in (load_buffer(tmp_path / "buffer.npz", "cpu"), pickle.loads(pickle.dumps(buffer))):
        expected, found = pickle.loads(pickle.dumps(buffer)).sample(8), again.sample(8)
        assert all(th.equal(expected.infos[key], found.infos[key]) for key in KEYS)
        add(again, [info(14, 0), info(14, 1)])
        with pytest.raises(ValueError, match="like the first"):
            add(again, [info(15, 0), {**info(15, 1), "mask": 1}])


class Costs(gym.Wrapper):
    """The info of a step holds the new observation and a cost."""

    def step(self, action):
        observation, *rest, info = self.env.step(action)
        first = observation["observation"] if isinstance(observation, dict) else observation
        return observation, *rest, {**info, "seen": first.copy(), "cost": float(action)}


def test_a_model_stores_infos_and_a_checkpoint_keeps_them(tmp_path):
    env = Costs(gym.make("CartPole-v1"))
    options = {"info_keys": ["seen", "cost"]}
    settings = {"buffer_size": 60, "learning_starts": 20, "device": "cpu"}
    model = PERDQN("MlpPolicy", env, replay_buffer_kwargs=options, **settings).learn(90)

    batch = model.replay_buffer.sample(16)
    assert th.equal(batch.infos["seen"], batch.next_observations)
    assert th.equal(batch.infos["cost"], batch.actions.float())
    save_checkpoint(model, tmp_path / "model.ckpt")
    again = load_checkpoint(tmp_path / "model.ckpt", env, "cpu").replay_buffer
    assert np.array_equal(again.info_arrays["seen"], model.replay_buffer.info_arrays["seen"])


def test_infos_with_hindsight_replay():
    envs = goal_envs(1)
    envs.envs = [Costs(envs.envs[0])]
    options = {"info_keys": ["seen"], "n_sampled_goal": 4}
    buffer = PrioritizedHerReplayBuffer(50, GOAL_SPACE, TWO_ACTIONS, envs, "cpu", **options)
    seen = envs.reset()
    for step in range(40):
        following, rewards, dones, infos = envs.step([step % 2])
        last = {key: value.copy() for key, value in following.items()}
        if dones[0]:
            last = {key: value[None] for key, value in infos[0]["terminal_observation"].items()}
        buffer.add(seen, last, np.array([step % 2]), rewards, dones, infos)
        seen = following

    batch = buffer.sample(20)

    assert th.equal(batch.infos["seen"], batch.next_observations["observation"])


def test_sb3_buffers_have_no_infos():
    source = ReplayBuffer(5, BOX, TWO_ACTIONS, "cpu")
    add(source, [{}])

    with pytest.raises(ValueError, match="SB3's buffers have no infos"):
        make().extend_from(source)
