"""
Files that version 0.1.0 saved, which every later version has to read, and what it did with them.

For each prioritization there is a model, its replay buffer (as a pickle and as ``.npz``) and a
checkpoint, and the batches that version 0.1.0 samples after it has loaded each of them. They were
made in a checkout of commit 1691875, installed with the packages of ``constraints-oldest.txt`` so
that old and new versions of these can read the pickles::

    PYTHONPATH=tests/support python tests/support/stored_by_0_1_0.py
"""

import json
from pathlib import Path

import numpy as np
from builders import fill
from corridor import Corridor, DictCorridor, make
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.save_util import load_from_pkl
from stored_buffers import next_batches

from sb3_per import PERDQN, load_buffer, load_checkpoint, save_buffer, save_checkpoint

FOLDER = Path(__file__).with_name("stored") / "0.1.0"
OPTIONS = {
    "proportional": {"replay_buffer_kwargs": {"weight_normalization": "buffer"}},
    "rank": {
        "replay_buffer_kwargs": {"prioritization": "rank", "new_priority": "max_stored"},
        "n_steps": 3,
        "double_q": True,
    },
}


def make_env(name):
    """Return the environments of a model: one, or two with Dict observations for ranks."""
    return make_vec_env(DictCorridor if name == "rank" else Corridor, 1 + (name == "rank"))


def save_all(name):
    """Save the four files of a prioritization."""
    np.random.seed(5)  # noqa: NPY002  # where environments take their seeds from
    model = make(make_env(name), PERDQN, buffer_size=48, **OPTIONS[name]).learn(130)
    buffer = model.replay_buffer
    buffer.sample(4)  # waits for its TD errors
    fill(buffer, 2, first=7)
    model.save_replay_buffer(FOLDER / f"{name}.pkl")  # before the new rows have a priority
    model.save(FOLDER / f"{name}.zip")
    save_buffer(buffer, FOLDER / f"{name}.npz")
    save_checkpoint(model, FOLDER / f"{name}.ckpt")


def batches_of(name):
    """Return what is sampled after each file was loaded, as JSON has it."""
    return {
        "npz": next_batches(load_buffer(FOLDER / f"{name}.npz", "cpu")),
        "pkl": next_batches(load_from_pkl(FOLDER / f"{name}.pkl")),
        "ckpt": batches_of_training(load_checkpoint(FOLDER / f"{name}.ckpt", make_env(name))),
        "zip": batches_of_training(load_model(name)),
    }


def load_model(name):
    """Return the model with its replay buffer, ready to train."""
    model = PERDQN.load(FOLDER / f"{name}.zip", make_env(name), "cpu")
    model.set_random_seed(3)
    model.load_replay_buffer(FOLDER / f"{name}.pkl")
    return model


def batches_of_training(model):
    """Return slots, weights and TD errors of the next twelve gradient steps."""
    buffer, batches = model.replay_buffer, []
    sample, update = buffer.sample, buffer.update_priorities

    def note_sample(batch_size, env=None):
        batch = sample(batch_size, env)
        batches.append([batch.slots.tolist(), batch.weights.flatten().tolist()])
        return batch

    def note_update(slots, td_errors):
        batches[-1].append(np.asarray(td_errors).flatten().tolist())
        update(slots, td_errors)

    buffer.sample, buffer.update_priorities = note_sample, note_update
    model.learn(12 * model.n_envs, reset_num_timesteps=False)
    return batches


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in OPTIONS:
        save_all(name)
        FOLDER.joinpath(f"{name}.json").write_text(json.dumps(batches_of(name)) + "\n")
