import inspect
import random
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from checks import assert_same_buffer, check_valid
from corridor import Corridor, DictCorridor, NotingPERDQN, WithDropout, make
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common import callbacks
from stable_baselines3.common.callbacks import EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
)

from examples.custom_priorities import SeldomReplayed
from sb3_per import (
    PERDQN,
    CheckpointCallback,
    latest_checkpoint,
    load_buffer,
    load_checkpoint,
    save_buffer,
    save_checkpoint,
)
from sb3_per.prioritization.proportional import Proportional
from sb3_per.saving import checkpoint, checkpoint_callback


class Storable(Proportional):
    """A prioritization of one's own that offers its state."""

    def state(self):
        return super().state()

    def restore(self, state):
        super().restore(state)


RANK = {"replay_buffer_kwargs": {"prioritization": "rank", "new_priority": "max_stored"}}
SHARED = {
    "optimize_memory_usage": True,
    "replay_buffer_kwargs": {"handle_timeout_termination": False},
}


@pytest.fixture(autouse=True)
def _forget_notes():
    NotingPERDQN.notes.clear()


def use_up_some_randomness():
    """Another process has its streams elsewhere."""
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002  # what SB3 draws from
    th.manual_seed(99)


def state_of(model):
    """Everything that decides on what comes next."""
    optimizer = model.policy.optimizer.state_dict()["state"]
    tensors = [*model.policy.state_dict().values()]
    tensors += [value for one in optimizer.values() for value in one.values()]
    counters = ("num_timesteps", "_n_updates", "_n_calls", "_episode_num", "exploration_rate")
    return [tensor.tolist() for tensor in tensors], [getattr(model, name) for name in counters]


@pytest.mark.parametrize(
    ("options", "env_kind"),
    [
        ({}, Corridor),
        (RANK, Corridor),
        ({**RANK, "n_steps": 3, "double_q": True}, DictCorridor),
        (SHARED, Corridor),
        ({"replay_buffer_kwargs": {"prioritization": Storable}}, Corridor),
        ({"policy_kwargs": {"features_extractor_class": WithDropout}}, Corridor),
        ({"train_freq": 4, "gradient_steps": 2, "seed": None, "learning_rate": 0.01}, Corridor),
        ({"learning_starts": 300}, Corridor),
    ],
)
@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_resumed_run_equals_one_that_was_never_interrupted(options, env_kind, n_envs, tmp_path):
    """The same batches, weights, losses, networks and optimiser, bit by bit."""
    whole = make(make_vec_env(env_kind, n_envs=n_envs), **options)
    whole.learn(420, callback=CheckpointCallback(200 // n_envs, tmp_path, keep=3))
    expected, NotingPERDQN.notes[:] = NotingPERDQN.notes[:], []
    use_up_some_randomness()

    path = tmp_path / "checkpoint_200_steps.ckpt"
    env = make_vec_env(env_kind, n_envs=n_envs)
    resumed = load_checkpoint(path, env, "cpu", algorithm=NotingPERDQN)
    assert resumed.num_timesteps == 200
    resumed.learn(220, reset_num_timesteps=False)

    assert len(NotingPERDQN.notes) > 10
    assert NotingPERDQN.notes == expected[-len(NotingPERDQN.notes) :]
    assert state_of(resumed) == state_of(whole)
    assert_same_buffer(resumed.replay_buffer, whole.replay_buffer)
    assert resumed.replay_buffer.beta == whole.replay_buffer.beta == 1.0
    assert (resumed.seed, resumed.buffer_size) == (whole.seed, whole.buffer_size)
    check_valid(resumed.replay_buffer)


def test_the_streams_that_all_of_the_program_shares_go_on(tmp_path):
    def draw():
        return random.random(), np.random.random(), th.rand(1).item()  # noqa: NPY002

    model = make(kind=PERDQN)
    draw()
    save_checkpoint(model, tmp_path / "checkpoint")
    expected = draw()
    use_up_some_randomness()

    load_checkpoint(tmp_path / "checkpoint", Corridor(), "cpu")

    assert draw() == expected


@pytest.mark.parametrize("vec_env_cls", [None, SubprocVecEnv])
def test_environments_with_a_stream_of_their_own_go_on_with_it(vec_env_cls, tmp_path):
    def first_observations():
        return make_vec_env("CartPole-v1", n_envs=2, vec_env_cls=vec_env_cls)

    env, other = first_observations(), first_observations()
    try:
        model = make(env, kind=PERDQN).learn(60)
        save_checkpoint(model, tmp_path / "checkpoint")
        load_checkpoint(tmp_path / "checkpoint", other, "cpu")

        assert (env.reset() == other.reset()).all()
        assert (env.reset() == other.reset()).all()
    finally:
        env.close()
        other.close()


class WithPhilox(Corridor):
    """Draws its start with another random generator than gymnasium's."""

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.np_random = np.random.Generator(np.random.Philox(seed))
        super().reset()
        self.place = int(self.np_random.integers(-3, 4))
        return self.observation(), {}


class WithoutSetter(WithPhilox):
    """Has a generator that nobody can put in place."""

    own = np.random.Generator(np.random.Philox(3))
    np_random = property(lambda self: self.own)

    def reset(self, seed=None, options=None):
        return WithPhilox.reset(self)


class Unlike(Corridor):
    """Has no generator that can be replaced, and of another kind."""

    np_random = property(lambda self: np.random.Generator(np.random.SFC64(1)))

    def reset(self, seed=None, options=None):
        self.place = self.time = 0
        return self.observation(), {}


@pytest.mark.parametrize("kind", [WithPhilox, WithoutSetter])
def test_other_random_generators_go_on(kind, tmp_path):
    env = make_vec_env(kind, n_envs=2)
    model = make(env, kind=PERDQN)
    model.replay_buffer.generator = np.random.Generator(np.random.SFC64(5))
    model.learn(60, callback=CheckpointCallback(60, tmp_path))
    path = latest_checkpoint(tmp_path)
    expected = [env.reset().tolist() for _ in range(3)]
    batch = model.replay_buffer.sample(8).slots.tolist()

    other = make_vec_env(kind, n_envs=2)
    resumed = load_checkpoint(path, other, "cpu")

    assert [other.reset().tolist() for _ in range(3)] == expected
    assert resumed.replay_buffer.sample(8).slots.tolist() == batch


def test_random_numbers_of_environments_that_cannot_be_restored_are_left_alone_on_demand(tmp_path):
    save_checkpoint(make(make_vec_env(WithPhilox), kind=PERDQN).learn(30), tmp_path / "checkpoint")
    env = make_vec_env(Unlike)

    with pytest.raises(ValueError, match=r"environment 0 must be .*restore_environments=False"):
        load_checkpoint(tmp_path / "checkpoint", env, "cpu")
    model = load_checkpoint(tmp_path / "checkpoint", env, "cpu", restore_environments=False)

    assert model.learn(10, reset_num_timesteps=False).num_timesteps == 40


def test_a_key_that_no_file_can_hold_is_refused_before_the_first_step(tmp_path):
    class Keys(Corridor):
        observation_space = spaces.Dict({"a\0b": Corridor.observation_space})

        def observation(self):
            return {"a\0b": super().observation()}

    model = make(Keys(), kind=PERDQN)

    with pytest.raises(ValueError, match=r"printable text"):
        model.learn(60, callback=CheckpointCallback(50, tmp_path))

    assert model.num_timesteps == 0


def test_statistics_of_normalized_observations_go_on(tmp_path):
    for kind in (Corridor, DictCorridor):
        env, other = (VecNormalize(make_vec_env(kind, n_envs=2)) for _ in range(2))
        model = make(env, kind=PERDQN).learn(60)
        save_checkpoint(model, tmp_path / "checkpoint")

        load_checkpoint(tmp_path / "checkpoint", other, "cpu")

        observations = env.get_original_obs()
        left, right = (one.normalize_obs(observations) for one in (env, other))
        np.testing.assert_equal(right, left)
        assert (other.normalize_reward(np.ones(2)) == env.normalize_reward(np.ones(2))).all()
        assert other.ret_rms.count == env.ret_rms.count


def test_environments_that_hide_their_generators_are_stored_without_them(tmp_path, monkeypatch):
    def refuse(name, *_):
        raise AttributeError(name)  # which SB3 itself expects, and no other error

    model = make(make_vec_env(Corridor)).learn(60)
    monkeypatch.setattr(model.env, "get_attr", refuse)

    save_checkpoint(model, tmp_path / "model.ckpt")

    assert load_checkpoint(tmp_path / "model.ckpt", make_vec_env(Corridor)).num_timesteps == 60


def test_a_subclass_is_not_taken_for_ours_by_the_name_of_its_package(tmp_path):
    kind = type("Mine", (PERDQN,), {"__module__": "sb3_per_tricks"})
    model = make(make_vec_env(Corridor), kind).learn(60)

    save_checkpoint(model, tmp_path / "model.ckpt")

    assert type(load_checkpoint(tmp_path / "model.ckpt", make_vec_env(Corridor))) is PERDQN


def test_a_prefix_names_no_folder(tmp_path):
    for prefix in ("run/a", "../a"):
        with pytest.raises(
            ValueError, match=f"name_prefix must be .* without a folder, got '{prefix}"
        ):
            CheckpointCallback(10, tmp_path, prefix)


def test_normalization_that_was_forgotten_or_is_new_is_refused(tmp_path):
    plain, normalized = make_vec_env(Corridor), VecNormalize(make_vec_env(Corridor))
    rewards_only = VecNormalize(make_vec_env(Corridor), norm_obs=False)
    save_checkpoint(make(normalized, kind=PERDQN), tmp_path / "normalized")
    save_checkpoint(make(plain, kind=PERDQN), tmp_path / "plain")

    for path, env, complaint in (
        (tmp_path / "normalized", plain, "if and only if it was when saved, got None"),
        (tmp_path / "plain", normalized, "if and only if it was when saved"),
        (tmp_path / "normalized", rewards_only, r"normalize the same observations as when saved"),
    ):
        with pytest.raises(ValueError, match=complaint):
            load_checkpoint(path, env, "cpu")


def test_a_run_broken_off_in_mid_episode_does_not_join_two_episodes(tmp_path):
    model = make(kind=PERDQN, n_steps=3)
    model.learn(44, callback=CheckpointCallback(43, tmp_path))
    resumed = load_checkpoint(tmp_path / "checkpoint_43_steps.ckpt", Corridor(), "cpu")

    resumed.learn(5, reset_num_timesteps=False)
    batch = resumed.replay_buffer.gather(np.array([41, 42, 43]))

    np.testing.assert_allclose(batch.discounts.flatten(), [0.99**2, 0.99, 0.99**3], rtol=1e-6)
    assert batch.next_observations[:, 1].tolist() == [3, 3, 3]
    assert not batch.dones.any()


def test_a_buffer_taken_over_in_mid_run_does_not_join_two_episodes():
    taken = make(kind=PERDQN, n_steps=3).learn(44).replay_buffer
    model = make(kind=PERDQN, n_steps=3).learn(47)

    model.use_replay_buffer(taken)
    model.learn(5, reset_num_timesteps=False)
    batch = taken.gather(np.array([41, 42, 43]))

    np.testing.assert_allclose(batch.discounts.flatten(), [0.99**3, 0.99**2, 0.99], rtol=1e-6)


def test_training_again_does_not_join_two_episodes_of_stacked_observations():
    """``VecFrameStack`` gives the same array for each reset, with new values."""
    model = make(VecFrameStack(DummyVecEnv([Corridor]), 2), kind=PERDQN, n_steps=3)

    model.learn(44)
    model.learn(5)
    batch = model.replay_buffer.gather(np.array([41, 42, 43]))

    np.testing.assert_allclose(batch.discounts.flatten(), [0.99**3, 0.99**2, 0.99], rtol=1e-6)


def test_an_environment_that_refuses_early_resets_goes_on(tmp_path):
    def strict():
        return Monitor(Corridor(), allow_early_resets=False)

    model = make(strict(), kind=PERDQN).learn(20)  # two episodes
    save_checkpoint(model, tmp_path / "checkpoint")

    resumed = load_checkpoint(tmp_path / "checkpoint", strict(), "cpu")
    resumed.learn(10, reset_num_timesteps=False)

    assert resumed.num_timesteps == 30


def test_other_numbers_of_environments_are_refused(tmp_path):
    save_checkpoint(make(kind=PERDQN), tmp_path / "checkpoint")

    with pytest.raises(ValueError, match="n_envs must equal the model's 2, got 1"):
        load_checkpoint(tmp_path / "checkpoint", make_vec_env(Corridor, n_envs=2), "cpu")


def test_options_may_change_on_loading(tmp_path):
    save_checkpoint(make(kind=PERDQN), tmp_path / "checkpoint")

    model = load_checkpoint(tmp_path / "checkpoint", Corridor(), "cpu", batch_size=17)

    assert model.batch_size == 17


@pytest.mark.parametrize(
    "option",
    [
        {"buffer_size": 500},
        {"force_reset": False},
        {"replay_buffer_kwargs": {}},
        {"alpha": 0.9},
        {"prioritization": "rank"},
        {"beta": 0.9},
    ],
)
def test_what_the_checkpoint_decides_is_refused_as_an_option(option, tmp_path):
    save_checkpoint(make(kind=PERDQN), tmp_path / "checkpoint")

    with pytest.raises(
        ValueError, match=f"{next(iter(option))} comes from the checkpoint: leave it out"
    ):
        load_checkpoint(tmp_path / "checkpoint", Corridor(), **option)


def test_a_model_that_was_stored_without_an_environment_gets_one(tmp_path):
    make(kind=PERDQN).learn(60).save(tmp_path / "model")
    save_checkpoint(PERDQN.load(tmp_path / "model", device="cpu"), tmp_path / "checkpoint")

    resumed = load_checkpoint(tmp_path / "checkpoint", Corridor(), "cpu")

    assert resumed.learn(10, reset_num_timesteps=False).num_timesteps == 70


def test_a_buffer_that_cannot_be_stored_stops_the_checkpoint_and_nothing_is_written(tmp_path):
    model = make(kind=PERDQN, replay_buffer_kwargs={"prioritization": SeldomReplayed})

    with pytest.raises(ValueError, match="got 'SeldomReplayed'"):
        save_checkpoint(model, tmp_path / "checkpoint")

    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_stored_is_refused_before_the_first_step(tmp_path):
    model = make(kind=PERDQN, replay_buffer_kwargs={"prioritization": SeldomReplayed})

    with pytest.raises(ValueError, match="got 'SeldomReplayed'"):
        model.learn(60, callback=CheckpointCallback(50, tmp_path))

    assert model.num_timesteps == 0


def test_a_checkpoint_is_no_buffer_and_a_buffer_no_checkpoint(tmp_path):
    model = make(kind=PERDQN)
    save_checkpoint(model, tmp_path / "checkpoint")
    save_buffer(model.replay_buffer, tmp_path / "buffer")

    with pytest.raises(ValueError, match="checkpoint must hold a sb3-per buffer"):
        load_buffer(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="buffer must hold a sb3-per checkpoint"):
        load_checkpoint(tmp_path / "buffer", Corridor())


# The callback


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_checkpoints_come_at_their_steps_and_only_the_last_ones_stay(tmp_path):
    make(kind=PERDQN, train_freq=4).learn(200, callback=CheckpointCallback(50, tmp_path))

    assert names_in(tmp_path) == ["checkpoint_152_steps.ckpt", "checkpoint_200_steps.ckpt"]
    assert latest_checkpoint(tmp_path).name == "checkpoint_200_steps.ckpt"


def test_a_resumed_run_keeps_the_rhythm(tmp_path):
    callback = CheckpointCallback(50, tmp_path, keep=9)
    make(kind=PERDQN).learn(120, callback=callback)

    latest = latest_checkpoint(tmp_path)
    written_at = latest.stat().st_mtime_ns

    resumed = load_checkpoint(latest, Corridor(), "cpu")
    resumed.learn(80, callback=CheckpointCallback(50, tmp_path, keep=9), reset_num_timesteps=False)

    # The last step of each run, and each fiftieth of both.
    assert [name.split("_")[1] for name in names_in(tmp_path)] == ["100", "120", "150", "200", "50"]
    assert latest.stat().st_mtime_ns == written_at


def test_a_long_rollout_is_followed_by_one_checkpoint(tmp_path):
    model, callback = make(kind=PERDQN), CheckpointCallback(10, tmp_path)
    callback.init_callback(model)
    callback.on_training_start({}, {})

    for model.num_timesteps in (35, 36, 39):
        callback.on_rollout_start()

    assert names_in(tmp_path) == ["checkpoint_35_steps.ckpt"]


def test_within_another_callback_which_tells_it_of_no_rollout_it_refuses(tmp_path):
    within = CheckpointCallback(50, tmp_path)
    outer = EveryNTimesteps(20, within)

    with pytest.raises(ValueError, match=r"must be given to learn itself.* not to EveryNTimesteps"):
        make(kind=PERDQN).learn(100, callback=outer)
    make(kind=PERDQN).learn(60, callback=[within])
    assert names_in(tmp_path) == ["checkpoint_50_steps.ckpt", "checkpoint_60_steps.ckpt"]


class Unpicklable(PERDQN):
    def _setup_model(self):
        super()._setup_model()
        self.lock = threading.Lock()


def unstorable(tmp_path, kind):
    """A model or a folder that no checkpoint can be made of, and what is said of it."""
    model, folder = make(kind=PERDQN), tmp_path / "folder"
    if kind == "a file":
        folder.touch()
        return model, folder, ValueError, "must be a folder that can be written to, or a new one"
    if kind == "a lock":
        return make(kind=Unpicklable), folder, TypeError, "cannot pickle"
    states = {"a set": {1}, "objects": np.array([{}], dtype=object)}
    methods = {"state": lambda self: {"own": states[kind]}, "restore": Storable.restore}
    own = type("Own", (Storable,), methods)
    model = make(kind=PERDQN, replay_buffer_kwargs={"prioritization": own})
    return (
        model,
        folder,
        ValueError,
        "Python objects" if kind == "objects" else "values that JSON holds",
    )


class Failing(Corridor):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, np.nan, *rest


def test_after_an_error_nothing_is_saved_though_rl_zoo_asks_for_it(tmp_path):
    model, callback = make(Failing(), kind=PERDQN), CheckpointCallback(20, tmp_path)

    with pytest.raises(ValueError, match="TD error must be finite"):  # noqa: PT012  # as RL-Zoo does
        try:
            model.learn(100, callback=callback)
        finally:
            callback.on_training_end()

    assert model.num_timesteps > 0
    assert not any(int(name.split("_")[1]) == model.num_timesteps for name in names_in(tmp_path))


def test_training_that_is_the_answer_to_an_error_saves_its_end(tmp_path):
    try:
        raise KeyError
    except KeyError:
        make(kind=PERDQN).learn(60, callback=CheckpointCallback(50, tmp_path))

    assert "checkpoint_60_steps.ckpt" in names_in(tmp_path)


@pytest.mark.parametrize("kind", ["a file", "a lock", "a set", "objects"])
def test_what_no_checkpoint_can_be_made_of_is_told_before_the_first_step(kind, tmp_path):
    model, folder, error, message = unstorable(tmp_path, kind)

    with pytest.raises(error, match=message):
        model.learn(100, callback=CheckpointCallback(50, folder))

    assert model.num_timesteps == 0


def test_a_checkpoint_of_a_later_version_is_neither_passed_over_nor_put_aside(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    model = make(kind=PERDQN).learn(100, callback=CheckpointCallback(50, tmp_path))
    monkeypatch.setattr(checkpoint, "VERSION", 1)

    with pytest.raises(ValueError, match=r"must have format version 1 or older .update sb3-per."):
        latest_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="update sb3-per"):
        model.learn(10, callback=CheckpointCallback(50, tmp_path), reset_num_timesteps=False)
    assert names_in(tmp_path) == ["checkpoint_100_steps.ckpt", "checkpoint_50_steps.ckpt"]


def test_a_checkpoint_that_vanishes_meanwhile_is_none(tmp_path, monkeypatch):
    make(kind=PERDQN).learn(60, callback=CheckpointCallback(50, tmp_path))
    gone = [
        *checkpoint_callback._checkpoints(tmp_path, "checkpoint"),
        tmp_path / "checkpoint_70_steps.ckpt",
    ]
    monkeypatch.setattr(checkpoint_callback, "_checkpoints", lambda *_: gone)

    assert latest_checkpoint(tmp_path).name == "checkpoint_60_steps.ckpt"


def test_a_checkpoint_is_of_perdqn(tmp_path):
    save_checkpoint(make(kind=PERDQN), tmp_path / "checkpoint.ckpt")

    with pytest.raises(
        ValueError, match="algorithm must be a prioritized algorithm, such as PERDQN, got"
    ):
        load_checkpoint(tmp_path / "checkpoint.ckpt", Corridor(), algorithm=DQN)


def test_a_model_that_its_buffer_no_longer_fits_is_not_stored(tmp_path):
    model = make(kind=PERDQN, n_steps=3)
    model.gamma = 0.5  # of which the buffer's returns know nothing

    with pytest.raises(
        ValueError, match=r"the buffer's gamma must equal the model's 0.5, got 0.99"
    ):
        save_checkpoint(model, tmp_path / "checkpoint.ckpt")
    with pytest.raises(ValueError, match=r"the buffer's gamma must equal the model's 0.5"):
        model.learn(50, callback=CheckpointCallback(50, tmp_path))
    assert model.num_timesteps == 0
    assert not names_in(tmp_path)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path):
    make(kind=PERDQN).learn(100, callback=CheckpointCallback(50, tmp_path))
    newest = tmp_path / "checkpoint_100_steps.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1000])

    with pytest.warns(UserWarning, match=r"checkpoint_100_steps.ckpt is damaged.* an earlier one"):
        found = latest_checkpoint(tmp_path)

    assert found.name == "checkpoint_50_steps.ckpt"
    with pytest.raises(ValueError, match=r"checkpoint_100_steps.ckpt is damaged"):
        load_checkpoint(newest, Corridor())


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_checkpoint_does_not_push_out_good_ones(keep, tmp_path):
    make(kind=PERDQN).learn(200, callback=CheckpointCallback(50, tmp_path, keep=4))
    newest = tmp_path / "checkpoint_200_steps.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    with pytest.warns(UserWarning, match="taking an earlier one"):
        resumed = load_checkpoint(latest_checkpoint(tmp_path), Corridor(), "cpu")

    callback = CheckpointCallback(10, tmp_path, keep=keep)
    with pytest.warns(UserWarning, match="taking an earlier one"):
        resumed.learn(20, callback=callback, reset_num_timesteps=False)

    kept = [f"checkpoint_{n_steps}_steps.ckpt" for n_steps in (160, 170)[-keep:]]
    assert names_in(tmp_path) == [*kept, "checkpoint_200_steps.ckpt.damaged"]
    assert latest_checkpoint(tmp_path).name == "checkpoint_170_steps.ckpt"


def test_what_a_killed_run_has_half_written_is_removed(tmp_path):
    half = tmp_path / ".checkpoint_73_steps.ckpt.partial"
    half.write_bytes(b"half")

    make(kind=PERDQN).learn(20, callback=CheckpointCallback(50, tmp_path))

    assert names_in(tmp_path) == ["checkpoint_20_steps.ckpt"]


def test_without_checkpoints_there_is_no_latest_one(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "nowhere") is None


def test_a_new_run_does_not_delete_the_checkpoints_of_one_that_got_further(tmp_path):
    make(kind=PERDQN).learn(120, callback=CheckpointCallback(50, tmp_path))

    with pytest.raises(ValueError, match=r"step 0: continue .*=False\)\), or move .*_120_steps"):
        make(kind=PERDQN).learn(120, callback=CheckpointCallback(50, tmp_path))

    assert len(names_in(tmp_path)) == 2


def test_a_checkpoint_does_not_change_the_run(tmp_path):
    plain = make(kind=PERDQN).learn(150)
    saved = make(kind=PERDQN).learn(150, callback=CheckpointCallback(7, tmp_path))

    assert state_of(saved) == state_of(plain)
    assert_same_buffer(saved.replay_buffer, plain.replay_buffer)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"save_freq": 0}, "save_freq must be a whole number of at least 1, got 0"),
        ({"save_freq": 5, "keep": 0}, "keep must be a whole number of at least 1, got 0"),
        ({"save_freq": 2.5}, "save_freq .* got 2.5"),
        ({"save_freq": True}, "save_freq .* got True"),
    ],
)
def test_numbers_out_of_range_are_refused(options, complaint, tmp_path):
    with pytest.raises(ValueError, match=complaint):
        CheckpointCallback(save_path=tmp_path, **options)


def test_arguments_are_those_of_sb3s_callback_in_its_order_and_then_ours():
    theirs, ours = (
        [*inspect.signature(kind).parameters]
        for kind in (callbacks.CheckpointCallback, CheckpointCallback)
    )

    assert ours == [*theirs, "keep"]


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        (("logs", 100), {}, r"SB3's order, CheckpointCallback\(save_freq, save_path\), got 'logs'"),
        ((Path("logs"), 100), {}, r"SB3's order, CheckpointCallback\(save_freq, save_path\), got "),
        ((), {"folder": "logs", "save_freq": 9}, "no argument 'folder': it is called save_path"),
        ((9, "logs"), {"save_frequency": 9}, "did you mean 'save_freq'"),
        ((9, "logs"), {"save_replay_buffer": False}, "save_replay_buffer=False"),
        ((9, "logs"), {"save_vecnormalize": False}, "save_vecnormalize=False"),
    ],
)
def test_arguments_that_sb3s_callback_would_not_take_are_explained(arguments, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        CheckpointCallback(*arguments, **options)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_save_freq_counts_calls_and_files_have_the_prefix(n_envs, tmp_path):
    env = make_vec_env(Corridor, n_envs=n_envs)
    callback = CheckpointCallback(20, str(tmp_path), "mine", True, True, 0, keep=9)

    make(env, kind=PERDQN, train_freq=1).learn(60 * n_envs, callback=callback)

    names = {f"mine_{n * n_envs}_steps.ckpt" for n in (20, 40, 60)}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path, "mine").name == f"mine_{60 * n_envs}_steps.ckpt"


@pytest.mark.parametrize("env", [None, "CartPole-v1"])
def test_a_checkpoint_goes_on_in_an_environment(env, tmp_path):
    save_checkpoint(make(kind=PERDQN), tmp_path / "checkpoint")

    with pytest.raises(ValueError, match=f"env must be an environment, .* got {env!r}"):
        load_checkpoint(tmp_path / "checkpoint", env)


def test_a_model_that_is_no_checkpoint_is_told_what_reads_it(tmp_path):
    make(kind=PERDQN).save(tmp_path / "model.zip")

    with pytest.raises(ValueError, match=r"not written by sb3-per \(PERDQN\.load and"):
        load_checkpoint(tmp_path / "model.zip", Corridor())


def test_what_was_saved_is_said_on_demand(tmp_path, capsys):
    callback = CheckpointCallback(50, tmp_path, verbose=1)
    make(kind=PERDQN, verbose=1).learn(60, callback=callback)

    assert f"Saved {tmp_path / 'checkpoint_50_steps.ckpt'}" in capsys.readouterr().out


def test_plain_dqn_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="of a prioritized algorithm, such as PERDQN, got DQN"):
        make(kind=DQN).learn(60, callback=CheckpointCallback(50, tmp_path))
    with pytest.raises(ValueError, match="of a prioritized algorithm, such as PERDQN, got DQN"):
        save_checkpoint(make(kind=DQN), tmp_path / "checkpoint")
    assert not [*tmp_path.iterdir()]


class ForeignVecEnv(VecEnvWrapper):
    """A wrapper around a vectorized environment that is not SB3's, as SuperSuit and Isaac Lab."""

    def __init__(self, venv):
        super().__init__(venv)
        self.venv = SimpleNamespace(step_wait=venv.step_wait, reset=venv.reset, close=venv.close)
        self.steps = venv.step_async

    @property
    def unwrapped(self):
        return self.venv

    def step_async(self, actions):
        self.steps(actions)

    def step_wait(self):
        return self.venv.step_wait()

    def reset(self):
        return self.venv.reset()

    def get_attr(self, attr_name, indices=None):
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise NotImplementedError("no attributes")

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


@pytest.mark.parametrize("restore", [True, False])
def test_checkpoint_of_vec_env_that_is_not_from_sb3(tmp_path, restore):
    env = ForeignVecEnv(DummyVecEnv([Corridor]))
    model = PERDQN("MlpPolicy", env, learning_starts=10, buffer_size=100, device="cpu")
    with pytest.warns(UserWarning, match="generators of the environments"):
        model.learn(30, callback=CheckpointCallback(10, tmp_path))

    loaded = load_checkpoint(
        latest_checkpoint(tmp_path),
        ForeignVecEnv(DummyVecEnv([Corridor])),
        "cpu",
        restore_environments=restore,
    )

    assert_same_buffer(loaded.replay_buffer, model.replay_buffer)
    loaded.learn(10, reset_num_timesteps=False)
