"""What goes wrong in long runs: the error is raised, and the run can be saved and resumed."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch as th
from checks import assert_same_buffer, check_valid
from corridor import Corridor, make
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERDQN, load_checkpoint, save_checkpoint

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs signals or limits of POSIX")
KINDS = pytest.mark.parametrize("prioritization", ["proportional", "rank"])


def model_of(prioritization="proportional", env=None):
    return make(env, PERDQN, replay_buffer_kwargs={"prioritization": prioritization})


def assert_it_can_be_saved_and_resumed(model, tmp_path):
    check_valid(model.replay_buffer)
    save_checkpoint(model, tmp_path / "after")
    resumed = load_checkpoint(tmp_path / "after", make_vec_env(Corridor, model.n_envs), "cpu")
    assert_same_buffer(resumed.replay_buffer, model.replay_buffer)
    n_before = resumed.num_timesteps
    resumed.learn(60, reset_num_timesteps=False)
    assert resumed.num_timesteps == n_before + 60
    check_valid(resumed.replay_buffer)


def test_checkpoint_is_on_the_disk_before_it_replaces_the_old_one(tmp_path, monkeypatch):
    calls, sync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: calls.append("fsync") or sync(file))
    monkeypatch.setattr(Path, "replace", lambda *to: calls.append("replace") or replace(*to))

    save_checkpoint(model_of(), tmp_path / "checkpoint")

    assert calls == ["fsync", "replace"]


@pytest.mark.slow
@POSIX
def test_run_killed_while_saving_keeps_a_whole_checkpoint(tmp_path):
    script = Path(__file__).parents[1] / "support" / "killed_while_saving.py"

    command = [sys.executable, str(script), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


@POSIX
@pytest.mark.parametrize("n_bytes", [0, 100, 5_000, 20_000])
def test_full_disk_leaves_the_checkpoint_that_was_there(n_bytes, tmp_path):
    import resource  # Windows has none

    model = model_of().learn(100)
    save_checkpoint(model, tmp_path / "checkpoint")
    before = (tmp_path / "checkpoint").read_bytes()
    model.learn(30, reset_num_timesteps=False)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_checkpoint(model, tmp_path / "checkpoint")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert (tmp_path / "checkpoint").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert_it_can_be_saved_and_resumed(model, tmp_path)


class AtStep60(BaseCallback):
    def __init__(self, action):
        super().__init__()
        self.action = action

    def _on_step(self):
        if self.num_timesteps == 60:
            self.action(self.model)
        return True


def spoil(model):
    for parameter in model.q_net.parameters():
        parameter.data.fill_(th.nan)


@KINDS
def test_network_that_diverges_stops_the_training(prioritization, tmp_path):
    model = model_of(prioritization).learn(40)
    healthy = copy.deepcopy(model.policy.state_dict())

    with pytest.raises(ValueError, match=r"got nan for slot \d+"):
        model.learn(60, callback=AtStep60(spoil), reset_num_timesteps=False)

    assert model.num_timesteps == model.replay_buffer.size() == 60
    model.policy.load_state_dict(healthy)
    assert_it_can_be_saved_and_resumed(model, tmp_path)


class Broken(Corridor):
    """Raises at its 55th step."""

    n_steps = 0

    def __init__(self, error):
        self.error = error

    def step(self, action):
        self.n_steps += 1
        if self.n_steps == 55:
            raise self.error
        return super().step(action)


@KINDS
@pytest.mark.parametrize("error", [ConnectionError, KeyboardInterrupt])
def test_error_in_the_environment_loses_no_transition(error, prioritization, tmp_path):
    model = model_of(prioritization, Broken(error))

    with pytest.raises(error):
        model.learn(100)

    assert model.replay_buffer.size() == 54
    assert_it_can_be_saved_and_resumed(model, tmp_path)
    model.learn(20, reset_num_timesteps=False)  # with the same environment
    assert model.replay_buffer.size() == 74
