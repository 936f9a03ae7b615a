"""What happens to long runs: each time the error is heard, and the run can be saved and go on."""

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch as th
from builders import BOX, TWO_ACTIONS, fill, probabilities_in
from checks import assert_same_buffer, check_valid
from corridor import Corridor, make
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_per import (
    PERDQN,
    CheckpointCallback,
    PrioritizedReplayBuffer,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs signals or limits of POSIX")
VARIANTS = pytest.mark.parametrize("prioritization", ["proportional", "rank"])


def model_of(prioritization="proportional", env=None, **options):
    return make(env, PERDQN, replay_buffer_kwargs={"prioritization": prioritization}, **options)


def assert_it_can_be_saved_and_go_on(model, tmp_path, env=None):
    check_valid(model.replay_buffer)
    save_checkpoint(model, tmp_path / "after")
    resumed = load_checkpoint(tmp_path / "after", env or Corridor(), "cpu")
    assert_same_buffer(resumed.replay_buffer, model.replay_buffer)
    n_before = resumed.num_timesteps
    resumed.learn(60, reset_num_timesteps=False)
    assert resumed.num_timesteps == n_before + 60
    check_valid(resumed.replay_buffer)


# The disk


@pytest.mark.slow
@POSIX
def test_a_run_killed_while_saving_finds_a_whole_checkpoint_every_time(tmp_path):
    script = Path(__file__).parents[1] / "support" / "killed_while_saving.py"

    command = [sys.executable, str(script), str(tmp_path), "25"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    n_halves = int(result.stdout.split(" kills, ")[1].split()[0])
    assert n_halves >= 3  # or the kills were no test of saving


class FullDisk:
    """No file may grow beyond so many bytes, as when the disk is full."""

    def __init__(self, n_bytes):
        self.n_bytes = n_bytes

    def __enter__(self):
        import resource  # Windows has none

        self.resource = resource
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.n_bytes, self.limits[1]))

    def __exit__(self, *error):
        self.resource.setrlimit(self.resource.RLIMIT_FSIZE, self.limits)


@POSIX
@pytest.mark.parametrize("n_bytes", [0, 100, 5_000, 20_000])
def test_a_full_disk_is_heard_of_and_leaves_the_checkpoint_that_was_there(n_bytes, tmp_path):
    model = model_of().learn(100)
    save_checkpoint(model, tmp_path / "checkpoint")
    before = (tmp_path / "checkpoint").read_bytes()
    model.learn(30, reset_num_timesteps=False)

    with FullDisk(n_bytes), pytest.raises(OSError, match="File too large"):
        save_checkpoint(model, tmp_path / "checkpoint")

    assert (tmp_path / "checkpoint").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert load_checkpoint(tmp_path / "checkpoint", Corridor(), "cpu").num_timesteps == 100
    assert_it_can_be_saved_and_go_on(model, tmp_path)


@POSIX
def test_a_disk_that_fills_up_stops_the_training_and_the_last_checkpoint_stays(tmp_path):
    model = model_of().learn(60, callback=CheckpointCallback(50, tmp_path))

    with FullDisk(5_000), pytest.raises(OSError, match="File too large"):
        model.learn(60, callback=CheckpointCallback(50, tmp_path), reset_num_timesteps=False)

    assert latest_checkpoint(tmp_path).name == "checkpoint_60_steps.ckpt"
    assert_it_can_be_saved_and_go_on(model, tmp_path)


# The network


class Spoil(BaseCallback):
    """Turns the network's numbers into NaN at a step."""

    def _on_step(self):
        if self.num_timesteps == 60:
            for parameter in self.model.q_net.parameters():
                parameter.data.fill_(th.nan)
        return True


@VARIANTS
def test_a_network_that_diverges_stops_the_training_with_a_reason(prioritization, tmp_path):
    model = model_of(prioritization).learn(40)
    healthy = copy.deepcopy(model.policy.state_dict())

    with pytest.raises(ValueError, match=r"got nan for slot \d+: either the network has diverged"):
        model.learn(60, callback=Spoil(), reset_num_timesteps=False)

    assert model.num_timesteps == 60
    assert model.replay_buffer.size() == 60
    model.policy.load_state_dict(healthy)
    assert_it_can_be_saved_and_go_on(model, tmp_path)


# The environment


class Broken(Corridor):
    """Raises at its 55th step."""

    n_steps = 0

    def step(self, action):
        self.n_steps += 1
        if self.n_steps == 55:
            raise ConnectionError("the simulator is gone")
        return super().step(action)


@VARIANTS
def test_an_environment_that_raises_is_heard_and_nothing_is_lost(prioritization, tmp_path):
    model = model_of(prioritization, Broken())

    with pytest.raises(ConnectionError, match="the simulator is gone"):
        model.learn(100)

    assert model.replay_buffer.size() == 54
    assert_it_can_be_saved_and_go_on(model, tmp_path)
    model.learn(20, reset_num_timesteps=False)  # the same one, if it is better by now
    assert model.replay_buffer.size() == 74


class KillWorker(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 60:
            os.kill(self.training_env.processes[1].pid, signal.SIGKILL)
        return True


@POSIX
def test_a_worker_that_is_killed_is_heard_and_nothing_is_lost(tmp_path):
    env = make_vec_env(Corridor, n_envs=2, vec_env_cls=SubprocVecEnv)
    model = model_of("proportional", env)

    with pytest.raises((EOFError, ConnectionError)):
        model.learn(200, callback=KillWorker())
    save_checkpoint(model, tmp_path / "checkpoint")
    for process in env.processes:
        process.kill()

    assert model.replay_buffer.size() * 2 == 60
    check_valid(model.replay_buffer)
    others = make_vec_env(Corridor, n_envs=2)
    resumed = load_checkpoint(tmp_path / "checkpoint", others, "cpu")
    assert_same_buffer(resumed.replay_buffer, model.replay_buffer)
    resumed.learn(60, reset_num_timesteps=False)


def test_another_number_of_environments_is_refused_and_the_run_keeps_its_own():
    model = model_of().learn(40)
    own = model.get_env()

    with pytest.raises(AssertionError, match=r"number of environments .*\(3 != 1\).*PERDQN.load"):
        model.set_env(make_vec_env(Corridor, n_envs=3))

    assert model.get_env() is own
    model.learn(20, reset_num_timesteps=False)


# The person


@VARIANTS
def test_an_interrupt_between_sampling_and_updating_leaves_a_run_that_goes_on(
    prioritization, tmp_path, monkeypatch
):
    model = model_of(prioritization)
    losses, weighted_loss = [], PERDQN._weighted_loss

    def interrupt(self, batch):
        losses.append(batch)
        if len(losses) == 30:
            raise KeyboardInterrupt
        return weighted_loss(self, batch)

    with monkeypatch.context() as patch:
        # Of the class: an attribute of the model would be saved with it.
        patch.setattr(PERDQN, "_weighted_loss", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.learn(200)

    assert model.num_timesteps == 55
    assert_it_can_be_saved_and_go_on(model, tmp_path)
    model.learn(60, reset_num_timesteps=False)
    check_valid(model.replay_buffer)


class Reset(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 60:
            self.model.replay_buffer.reset()
        return True


@VARIANTS
def test_a_buffer_that_is_reset_in_mid_run_fills_up_again(prioritization, tmp_path):
    model = model_of(prioritization).learn(100, callback=Reset())

    assert model.replay_buffer.size() == 41
    assert_it_can_be_saved_and_go_on(model, tmp_path)


# Late TD errors


@VARIANTS
@pytest.mark.parametrize("n_new", [1, 7, 8, 9, 24])
def test_errors_of_what_the_ring_has_replaced_change_nothing_that_is_newer(prioritization, n_new):
    buffer, twin = (
        fill(PrioritizedReplayBuffer(8, BOX, TWO_ACTIONS, "cpu", prioritization=prioritization), 8)
        for _ in range(2)
    )
    slots = buffer.sample(8).slots
    for one in (buffer, twin):
        fill(one, n_new, first=8)

    late = slots[slots < n_new]
    buffer.update_priorities(late, np.full(len(late), 1e6))

    twin.hand_over_new_rows()
    everyone = np.arange(8)
    shares = [probabilities_in(one, everyone).tolist() for one in (buffer, twin)]
    assert shares[0] == shares[1]
    assert buffer.prioritization.largest_priority == 1.0
    check_valid(buffer)
