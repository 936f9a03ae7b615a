"""
The stored buffers that every later version has to read, and what they drew when they were written.

``python tests/stored_buffers.py`` writes them anew; that is right only before a format is released.
"""

import json
from pathlib import Path

import numpy as np
from builders import BOX, DICT, TWO_ACTIONS, fill

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer, save_buffer

FOLDER = Path(__file__).with_name("stored")
NAMES = ("buffer_v1_proportional", "buffer_v1_rank")


def make(name):
    np.random.seed(7)  # noqa: NPY002  # where buffers take their seed from
    if name == "buffer_v1_rank":
        options = {"prioritization": "rank", "n_steps": 3, "gamma": 0.5, "n_envs": 2}
        buffer = PrioritizedDictReplayBuffer(24, DICT, TWO_ACTIONS, "cpu", beta=0.7, **options)
    else:
        buffer = PrioritizedReplayBuffer(16, BOX, TWO_ACTIONS, "cpu", replacement=False)
    fill(buffer, 20, done_at={(13, 0)}, truncated_at={(17, 0)})
    buffer.update_priorities(buffer.sample(8).slots, np.linspace(-2, 5, 8))
    buffer.sample(4)  # waits for its TD errors
    return fill(buffer, 2, first=20)


def next_batches(buffer):
    """What a buffer draws after late TD errors, and after more of them, as JSON has it."""
    buffer.update_priorities(np.arange(4), np.full(4, 3.0))
    batches = []
    for errors in (np.arange(6.0), np.ones(6)):
        batch = buffer.sample(6)
        buffer.update_priorities(batch.slots, errors)
        columns = (batch.weights, batch.rewards, batch.dones)
        batches.append([batch.slots.tolist(), *[column.flatten().tolist() for column in columns]])
    return batches


if __name__ == "__main__":
    for name in NAMES:
        save_buffer(make(name), FOLDER / f"{name}.npz")
        drawn = json.dumps(next_batches(make(name)))
        FOLDER.joinpath(f"{name}.json").write_text(drawn + "\n")
