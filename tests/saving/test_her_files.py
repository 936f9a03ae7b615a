"""Buffers for hindsight replay in ``save_buffer`` files and in checkpoints."""

import json

import numpy as np
import pytest
import torch as th
from builders import TWO_ACTIONS, fill
from crafted import Crafted
from goal_line import GOAL_SPACE, Line, goal_envs
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import (
    PERDQN,
    PERSAC,
    CheckpointCallback,
    PrioritizedHerReplayBuffer,
    load_buffer,
    load_checkpoint,
    save_buffer,
    save_checkpoint,
)


def make_buffer(n_rows, size=12, **options):
    """Episodes of other lengths in the two environments; more rows than fit, if asked for."""
    np.random.seed(0)  # noqa: NPY002  # where buffers take their seed from
    envs = goal_envs(2)
    buffer = PrioritizedHerReplayBuffer(
        2 * size, GOAL_SPACE, TWO_ACTIONS, envs, "cpu", n_envs=2, **options
    )
    done_at = [(step, env) for env in range(2) for step in range(3 + env, 40, 4 + env)]
    fill(buffer, n_rows, done_at=done_at)
    buffer.update_priorities(buffer.sample(8).slots, np.linspace(-2, 5, 8))
    buffer.sample(4)  # waits for its TD errors
    return buffer, done_at


def batches(buffer, done_at, first):
    """What is sampled next, while rows are added and episodes overwritten."""
    sampled = []
    for step in range(first, first + 9):
        batch = buffer.sample(6)
        buffer.update_priorities(batch.slots, np.arange(6.0) + step)
        goals = batch.observations["desired_goal"]
        sampled.append([batch.slots.tolist(), batch.weights.tolist(), goals.tolist()])
        sampled.append([batch.rewards.tolist(), batch.dones.tolist()])
        fill(buffer, 1, first=step, done_at=done_at)
    return sampled


@pytest.mark.parametrize("n_rows", [7, 19])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prioritization": "rank", "goal_selection_strategy": "episode", "n_sampled_goal": 2},
        {"uniform_share": 0.5, "goal_selection_strategy": "final"},
        {"new_priority": "max_stored", "handle_timeout_termination": False},
    ],
    ids=str,
)
def test_a_stored_buffer_continues_as_the_one_it_was_stored_from(n_rows, options, tmp_path):
    buffer, done_at = make_buffer(n_rows, **options)
    save_buffer(buffer, tmp_path / "buffer")

    loaded = load_buffer(tmp_path / "buffer", "cpu")

    assert type(loaded) is PrioritizedHerReplayBuffer
    assert loaded.options() == buffer.options()
    assert loaded.n_sampleable == buffer.n_sampleable > 0
    loaded.set_env(goal_envs(2))
    assert batches(loaded, done_at, n_rows) == batches(buffer, done_at, n_rows)


def test_a_loaded_buffer_says_that_it_needs_environments(tmp_path):
    save_buffer(make_buffer(9)[0], tmp_path / "buffer")
    loaded = load_buffer(tmp_path / "buffer")

    with pytest.raises(ValueError, match=r"needs set_env\(env\), or use_replay_buffer"):
        loaded.sample(4)

    assert loaded.sample(1).slots.shape == (1,)  # which keeps its own goal


def change(array, value):
    array.flat[3] = value
    return array


@pytest.mark.parametrize("n_rows", [9, 19])
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("ep_start", lambda array: change(array, -1)),
        ("ep_start", lambda array: change(array, 12)),
        ("ep_start", lambda array: change(array, 9)),
        ("ep_length", lambda array: change(array, 13)),
        ("ep_length", lambda array: change(array, -1)),
        ("ep_length", lambda array: change(array, 1)),
        ("ep_length", lambda array: change(array, 0)),
        ("ep_length", lambda array: array + 1),
        ("current_ep_start", lambda array: array - 1),
        ("current_ep_start", lambda array: array + 12),
        ("current_ep_start", lambda array: array[:1]),
        ("current_ep_start", lambda array: array.astype(float)),
    ],
)
def test_stored_episodes_that_are_not_whole_are_refused(name, changed, n_rows, tmp_path):
    save_buffer(make_buffer(n_rows)[0], tmp_path / "buffer")
    crafted = Crafted((tmp_path / "buffer").read_bytes())
    crafted.members[f"{name}.npy"] = changed(crafted.members[f"{name}.npy"].copy())
    path = crafted.write(tmp_path / "changed")

    with pytest.raises(ValueError, match=rf"{name}|whole episodes|stored priorities"):
        load_buffer(path)


def test_stored_infos_are_refused(tmp_path):
    buffer, _ = make_buffer(9, copy_info_dict=True)

    with pytest.raises(ValueError, match=r"copy_info_dict must be False .*save_replay_buffer"):
        save_buffer(buffer, tmp_path / "buffer")
    assert [*tmp_path.iterdir()] == []

    save_buffer(make_buffer(9)[0], tmp_path / "buffer")
    crafted = Crafted((tmp_path / "buffer").read_bytes())
    crafted.header["buffer"]["options"]["copy_info_dict"] = True
    with pytest.raises(ValueError, match="copy_info_dict must be False"):
        load_buffer(crafted.write(tmp_path / "changed"))


# Checkpoints


def model(algorithm=PERDQN, **options):
    return algorithm(
        "MultiInputPolicy",
        make_vec_env(lambda: Line(algorithm is PERDQN), n_envs=2),
        replay_buffer_class=PrioritizedHerReplayBuffer,
        replay_buffer_kwargs=options,
        learning_starts=20,
        batch_size=8,
        buffer_size=60,
        train_freq=1,
        policy_kwargs={"net_arch": [8]},
        device="cpu",
        seed=0,
    )


def state_of(trained):
    tensors = [tensor.tolist() for tensor in trained.policy.state_dict().values()]
    return json.dumps([tensors, trained._n_updates, trained.num_timesteps])


@pytest.mark.parametrize("algorithm", [PERDQN, PERSAC])
def test_a_run_resumed_from_a_checkpoint_is_the_run_that_was_never_interrupted(algorithm, tmp_path):
    trained = model(algorithm).learn(90)
    save_checkpoint(trained, tmp_path / "model.ckpt")
    trained.learn(54, reset_num_timesteps=False)
    env = make_vec_env(lambda: Line(algorithm is PERDQN), n_envs=2)

    resumed = load_checkpoint(tmp_path / "model.ckpt", env, "cpu", algorithm=algorithm)
    assert resumed.replay_buffer.env is resumed.get_env()
    resumed.learn(54, reset_num_timesteps=False)

    assert state_of(resumed) == state_of(trained)
    assert th.equal(*(th.as_tensor(one.replay_buffer.ep_length) for one in (resumed, trained)))


def test_the_callback_writes_checkpoints(tmp_path):
    model().learn(40, callback=CheckpointCallback(10, tmp_path))

    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "checkpoint_20_steps.ckpt",
        "checkpoint_40_steps.ckpt",
    ]


def test_stored_infos_are_refused_before_training_starts(tmp_path):
    untrained = model(copy_info_dict=True)

    with pytest.raises(ValueError, match=r"copy_info_dict must be False .*save_replay_buffer"):
        untrained.learn(100, callback=CheckpointCallback(10, tmp_path))

    assert untrained.num_timesteps == 0
    assert [*tmp_path.iterdir()] == []
