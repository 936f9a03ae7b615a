"""
Kill -9 a training run that saves after every step, again and again, and continue from what is left.

``python tests/support/killed_while_saving.py FOLDER`` continues after 25 kills until three of them
have left half a file.
"""

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import torch as th
from builders import fill
from checks import check_valid
from corridor import Corridor, make

from sb3_per import PERDQN, CheckpointCallback, latest_checkpoint, load_checkpoint, save_checkpoint

N_KILLS, N_HALVES = 25, 3


def continue_until_killed(model, folder, seconds):
    child = os.fork()
    if child == 0:
        callback = CheckpointCallback(1, folder, keep=2)
        model.learn(10**9, callback=callback, reset_num_timesteps=False)
    before = {*folder.iterdir()}
    while {*folder.iterdir()} == before:  # a busy machine takes its time to start
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended by itself"
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, "it ended by itself"


def main(folder):
    warnings.simplefilter("error")  # such as that a checkpoint is damaged
    th.set_num_threads(1)  # after a fork, several would wait for each other without end
    moments = random.Random(0)
    model = make(kind=PERDQN, buffer_size=20_000, policy_kwargs={"net_arch": [64]}).learn(100)
    fill(model.replay_buffer, 20_000)
    save_checkpoint(model, folder / "rl_model_100_steps.ckpt")
    n_done = n_halves = 0
    # How many kills hit a save depends on the machine: with few, more kills follow.
    while n_done < N_KILLS or n_halves < N_HALVES:
        n_done += 1
        continue_until_killed(model, folder, moments.uniform(0, 0.1))
        halves = [*folder.glob(".*.partial")]
        n_halves += len(halves)
        for half in halves:
            half.unlink()
        n_steps = model.num_timesteps
        model = load_checkpoint(latest_checkpoint(folder), Corridor(), "cpu")
        assert model.num_timesteps >= n_steps
        check_valid(model.replay_buffer)
        assert n_done < 10 * N_KILLS, "too few kills came while a file was written"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
