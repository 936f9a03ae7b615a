"""Checkpoints: resumed runs equal uninterrupted ones, and the callback that saves them."""

import inspect
import random
from types import SimpleNamespace

import models
import numpy as np
import pytest
import torch as th
from checks import assert_same_buffer, check_valid
from corridor import Corridor, DictCorridor, NotingPERDQN, make
from goal_line import Line
from graph_cases import Normed
from own_prioritization import Storable
from stable_baselines3 import DQN
from stable_baselines3.common import callbacks
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
)

from examples.custom_priorities import RarelyReplayed
from sb3_per import (
    PERDQN,
    PERSAC,
    PERTD3,
    CheckpointCallback,
    PrioritizedHerReplayBuffer,
    Rainbow,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

RANK = {"replay_buffer_kwargs": {"prioritization": "rank", "new_priority": "max_stored"}}
MEMORY_OPTIMIZED = {
    "optimize_memory_usage": True,
    "replay_buffer_kwargs": {"handle_timeout_termination": False},
}


@pytest.fixture(autouse=True)
def _forget_notes():
    NotingPERDQN.notes.clear()


def use_up_some_randomness():
    """Another process has its generators elsewhere."""
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002  # what SB3 samples from
    th.manual_seed(99)


def state_of(model):
    """Return everything that decides on what comes next."""
    optimizer = models.critic_optimizer(model).state_dict()["state"]
    tensors = [*model.policy.state_dict().values()]
    tensors += [value for one in optimizer.values() for value in one.values()]
    tensors += [model.log_ent_coef] if getattr(model, "log_ent_coef", None) is not None else []
    counters = ("num_timesteps", "_n_updates", "_episode_num", "exploration_rate", "_n_calls")
    return [tensor.tolist() for tensor in tensors], [getattr(model, c, None) for c in counters]


def assert_same_run(left, right):
    assert state_of(left) == state_of(right)
    assert_same_buffer(left.replay_buffer, right.replay_buffer)


# Resumed runs


@pytest.mark.parametrize(
    ("options", "env_kind"),
    [
        ({}, Corridor),
        (RANK, Corridor),
        ({**RANK, "n_steps": 3, "double_q": True}, DictCorridor),
        (MEMORY_OPTIMIZED, Corridor),
        ({"replay_buffer_kwargs": {"prioritization": Storable}}, Corridor),
        ({"policy_kwargs": {"features_extractor_class": Normed}}, Corridor),
        ({"train_freq": 4, "gradient_steps": 2, "seed": None, "learning_rate": 0.01}, Corridor),
        ({"replay_buffer_kwargs": {"beta": (0.4, 1.0, 420)}}, Corridor),
        ({"learning_starts": 300}, Corridor),
    ],
)
@pytest.mark.parametrize("n_envs", [1, 2])
def test_resumed_run_equals_an_uninterrupted_one(options, env_kind, n_envs, tmp_path):
    """The same batches, weights, losses, networks and optimizer, bit by bit."""
    whole = make(make_vec_env(env_kind, n_envs=n_envs), **options)
    whole.learn(420, callback=CheckpointCallback(200 // n_envs, tmp_path))
    expected, NotingPERDQN.notes[:] = NotingPERDQN.notes[:], []
    python_state = random.getstate()  # SB3 takes no numbers from Python's generator
    use_up_some_randomness()

    path, env = tmp_path / "rl_model_200_steps.ckpt", make_vec_env(env_kind, n_envs=n_envs)
    resumed = load_checkpoint(path, env, "cpu", algorithm=NotingPERDQN)
    assert resumed.num_timesteps == 200
    resumed.learn(220, reset_num_timesteps=False)

    assert len(NotingPERDQN.notes) > 10
    assert NotingPERDQN.notes == expected[-len(NotingPERDQN.notes) :]
    assert_same_run(resumed, whole)
    assert random.getstate() == python_state
    assert resumed.replay_buffer.beta == whole.replay_buffer.beta == 1.0
    assert (resumed.seed, resumed.buffer_size) == (whole.seed, whole.buffer_size)
    check_valid(resumed.replay_buffer)


def stacked(kind):
    return VecFrameStack(still(kind), 3)


def still(kind):
    return make_vec_env(lambda: models.Still(models.is_discrete(kind)))


def with_goals(kind):
    return make_vec_env(lambda: Line(discrete=models.is_discrete(kind)), n_envs=2)


HER = {"replay_buffer_class": PrioritizedHerReplayBuffer, "policy": "MultiInputPolicy"}
RUNS = [(kind, {}, still) for kind in (*models.PAIRS, Rainbow)]
RUNS += [(kind, HER, with_goals) for kind in (PERDQN, PERSAC)]
RUNS += [(PERDQN, {"options": {"n_stack": 3}}, stacked)]


@pytest.mark.parametrize(("kind", "arguments", "make_env"), RUNS)
def test_each_algorithm_resumes(kind, arguments, make_env, tmp_path):
    whole = models.make(kind, make_env(kind), **arguments)
    whole.learn(90, callback=CheckpointCallback(1, tmp_path))
    use_up_some_randomness()
    # SB3 samples gSDE's noise before it calls callbacks at the start of a rollout.
    path = tmp_path / f"rl_model_{36 if make_env is with_goals else 45}_steps.ckpt"

    resumed = load_checkpoint(path, make_env(kind), "cpu")
    resumed.learn(90 - resumed.num_timesteps, reset_num_timesteps=False)

    assert type(resumed) is kind
    assert_same_run(resumed, whole)
    if "replay_buffer_class" in arguments:
        assert resumed.replay_buffer.env is resumed.get_env()


def test_checkpoint_does_not_change_the_run(tmp_path):
    plain = make(kind=PERDQN).learn(150)
    saved = make(kind=PERDQN).learn(150, callback=CheckpointCallback(7, tmp_path))

    assert_same_run(saved, plain)


def first_states(model):
    return model.get_env().reset().tolist()


def test_environments_do_not_repeat_the_beginning_of_the_run(tmp_path):
    started = first_states(make(make_vec_env("CartPole-v1"), kind=PERDQN))
    model = make(make_vec_env("CartPole-v1"), kind=PERDQN).learn(30)
    save_checkpoint(model, tmp_path / "checkpoint")

    resumed = [
        load_checkpoint(tmp_path / "checkpoint", make_vec_env("CartPole-v1"), "cpu")
        for _ in range(2)
    ]

    states = [first_states(model) for model in resumed]
    assert states[0] == states[1] != started


class ForeignVecEnv(VecEnvWrapper):
    """A wrapper around a vectorized environment that is not SB3's, as SuperSuit and Isaac Lab."""

    def __init__(self, venv):
        super().__init__(venv)
        self.step_async, self._foreign = venv.step_async, venv
        self.venv = SimpleNamespace(close=venv.close)

    def step_wait(self):
        return self._foreign.step_wait()

    def reset(self):
        return self._foreign.reset()

    def get_attr(self, attr_name, indices=None):
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise AttributeError(attr_name)  # other libraries raise all kinds of errors

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


def test_checkpoint_of_vec_env_that_is_not_from_sb3(tmp_path):
    env, other = (ForeignVecEnv(DummyVecEnv([Corridor])) for _ in range(2))
    model = make(env, kind=PERDQN, seed=None)
    model.learn(30, callback=CheckpointCallback(10, tmp_path))

    loaded = load_checkpoint(latest_checkpoint(tmp_path), other, "cpu")

    assert_same_buffer(loaded.replay_buffer, model.replay_buffer)
    assert loaded.learn(10, reset_num_timesteps=False).num_timesteps == 40


@pytest.mark.parametrize("kind", [Corridor, DictCorridor])
def test_statistics_of_vec_normalize_continue(kind, tmp_path):
    env, other = (VecNormalize(make_vec_env(kind, n_envs=2)) for _ in range(2))
    save_checkpoint(make(env, kind=PERDQN).learn(60), tmp_path / "checkpoint")

    load_checkpoint(tmp_path / "checkpoint", other, "cpu")

    observations = env.get_original_obs()
    np.testing.assert_equal(other.normalize_obs(observations), env.normalize_obs(observations))
    assert (other.normalize_reward(np.ones(2)) == env.normalize_reward(np.ones(2))).all()
    assert other.ret_rms.copy().count == env.ret_rms.count


def test_another_normalization_is_refused(tmp_path):
    envs = [
        make_vec_env(Corridor),
        VecNormalize(make_vec_env(Corridor)),
        VecNormalize(make_vec_env(Corridor), norm_obs=False),
    ]
    for i, saved in enumerate(envs):
        save_checkpoint(make(saved, kind=PERDQN), tmp_path / "checkpoint")
        for other in (env for j, env in enumerate(envs) if j != i):
            with pytest.raises(ValueError, match="VecNormalize"):
                load_checkpoint(tmp_path / "checkpoint", other, "cpu")


def test_resumed_run_does_not_join_two_episodes(tmp_path):
    model = make(kind=PERDQN, n_steps=3)
    model.learn(44, callback=CheckpointCallback(43, tmp_path))
    resumed = load_checkpoint(tmp_path / "rl_model_43_steps.ckpt", Corridor(), "cpu")

    resumed.learn(5, reset_num_timesteps=False)
    batch = resumed.replay_buffer._get_samples(np.array([41, 42, 43]))

    np.testing.assert_allclose(batch.discounts.flatten(), [0.99**2, 0.99, 0.99**3], rtol=1e-6)
    assert batch.next_observations[:, 1].tolist() == [3, 3, 3]
    assert not batch.dones.any()


def test_model_that_was_saved_without_an_environment(tmp_path):
    make(kind=PERDQN).learn(60).save(tmp_path / "model")
    save_checkpoint(PERDQN.load(tmp_path / "model", device="cpu"), tmp_path / "checkpoint")

    resumed = load_checkpoint(tmp_path / "checkpoint", Corridor(), "cpu")

    assert resumed.learn(10, reset_num_timesteps=False).num_timesteps == 70


# Arguments of `load_checkpoint`


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"env": None}, "env must be an environment"),
        ({"env": "CartPole-v1"}, "env must be an environment"),
        ({"env": DummyVecEnv([Corridor] * 2)}, "n_envs"),
        ({"algorithm": None}, "algorithm must be the class .*NotingPERDQN, got None"),
        ({"algorithm": PERTD3}, "algorithm must be the class .*NotingPERDQN, got .*PERTD3"),
        ({"algorithm": "PERDQN"}, "algorithm must be a class"),
    ],
)
def test_arguments_that_do_not_fit_the_checkpoint_are_refused(arguments, named, tmp_path):
    save_checkpoint(make(), tmp_path / "checkpoint")

    fitting = {"env": Corridor(), "algorithm": NotingPERDQN}
    with pytest.raises(ValueError, match=named):
        load_checkpoint(tmp_path / "checkpoint", **{**fitting, **arguments})


def test_class_of_the_user_may_have_our_name(tmp_path):
    own = type("PERDQN", (PERDQN,), {})
    save_checkpoint(make(kind=own), tmp_path / "checkpoint")

    with pytest.raises(ValueError, match=r"algorithm must be the class .*\.PERDQN, got None"):
        load_checkpoint(tmp_path / "checkpoint", Corridor())
    assert type(load_checkpoint(tmp_path / "checkpoint", Corridor(), algorithm=own)) is own


# What no checkpoint can be made of


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: make(kind=DQN), "PERDQN, got DQN"),
        (
            lambda: make(kind=PERDQN, replay_buffer_kwargs={"prioritization": RarelyReplayed}),
            "RarelyReplayed",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused_before_the_first_step(model, named, tmp_path):
    model = model()

    with pytest.raises(ValueError, match=named):
        save_checkpoint(model, tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=named):
        model.learn(60, callback=CheckpointCallback(50, tmp_path))

    assert model.num_timesteps == 0
    assert not [*tmp_path.iterdir()]


# The callback


def names_in(folder):
    return sorted((path.name for path in folder.iterdir()), key=lambda name: (len(name), name))


def test_arguments_are_those_of_sb3s_callback_and_keep():
    theirs, ours = (
        inspect.signature(kind).parameters
        for kind in (callbacks.CheckpointCallback, CheckpointCallback)
    )

    assert [*ours] == [*theirs, "keep"]
    assert ours["name_prefix"].default == theirs["name_prefix"].default


@pytest.mark.parametrize("name", ["save_freq", "keep"])
def test_numbers_out_of_range_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=name):
        CheckpointCallback(**{"save_freq": 5, "save_path": tmp_path, name: 0})


def test_only_the_last_checkpoints_are_kept(tmp_path, capsys):
    callback = CheckpointCallback(50, tmp_path, verbose=2, keep=2)
    make(kind=PERDQN, train_freq=4, verbose=1).learn(200, callback=callback)

    assert names_in(tmp_path) == ["rl_model_152_steps.ckpt", "rl_model_200_steps.ckpt"]
    assert latest_checkpoint(tmp_path).name == "rl_model_200_steps.ckpt"
    assert str(tmp_path / "rl_model_52_steps.ckpt") in capsys.readouterr().out


@pytest.mark.parametrize("n_envs", [1, 3])
def test_all_are_kept_and_save_freq_counts_calls(n_envs, tmp_path):
    callback = CheckpointCallback(20, str(tmp_path / "new"), "mine", True, True, 0)

    make(make_vec_env(Corridor, n_envs=n_envs), kind=PERDQN).learn(60 * n_envs, callback=callback)

    folder = tmp_path / "new"
    assert names_in(folder) == [f"mine_{n * n_envs}_steps.ckpt" for n in (20, 40, 60)]
    assert latest_checkpoint(folder) is latest_checkpoint(tmp_path / "nowhere") is None
    assert latest_checkpoint(folder, "mine").name == f"mine_{60 * n_envs}_steps.ckpt"


def test_checkpoints_of_a_resumed_run(tmp_path):
    make(kind=PERDQN).learn(120, callback=CheckpointCallback(50, tmp_path))
    resumed = load_checkpoint(latest_checkpoint(tmp_path), Corridor(), "cpu")

    resumed.learn(80, callback=CheckpointCallback(50, tmp_path), reset_num_timesteps=False)

    # The last step of each run, and each fiftieth of each.
    assert [name.split("_")[2] for name in names_in(tmp_path)] == ["50", "100", "120", "170", "200"]


def test_damaged_checkpoint_is_skipped_with_its_name(tmp_path):
    make(kind=PERDQN).learn(100, callback=CheckpointCallback(50, tmp_path))
    newest = tmp_path / "rl_model_100_steps.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1000])

    with pytest.warns(UserWarning, match="rl_model_100_steps"):
        found = latest_checkpoint(tmp_path)

    assert found.name == "rl_model_50_steps.ckpt"


def test_new_run_keeps_later_checkpoints_of_another_run(tmp_path):
    make(kind=PERDQN).learn(120, callback=CheckpointCallback(50, tmp_path))

    with pytest.raises(ValueError, match="rl_model_120_steps"):
        make(kind=PERDQN).learn(120, callback=CheckpointCallback(50, tmp_path))

    assert len(names_in(tmp_path)) == 3


def test_files_of_a_run_that_was_killed_are_removed(tmp_path):
    ours = [".rl_model_50_steps.ckpt.0123456789ab.partial", ".rl_model_9_steps.ckpt.x.partial"]
    theirs = [
        ".rl_model_2_50_steps.ckpt.0123456789ab.partial",
        ".other.partial",
        "rl_model.partial",
    ]
    for name in ours + theirs:
        (tmp_path / name).touch()

    make(kind=PERDQN).learn(10, callback=CheckpointCallback(50, tmp_path))

    assert {path.name for path in tmp_path.iterdir()} == {*theirs, "rl_model_10_steps.ckpt"}


class Failing(Corridor):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, np.nan, *rest


def test_nothing_is_saved_after_an_error(tmp_path):
    model, callback = make(Failing(), kind=PERDQN), CheckpointCallback(20, tmp_path)

    with pytest.raises(ValueError, match="finite"):  # noqa: PT012  # as RL-Zoo does
        try:
            model.learn(100, callback=callback)
        finally:
            callback.on_training_end()

    assert model.num_timesteps > 20
    assert names_in(tmp_path) == ["rl_model_20_steps.ckpt"]
