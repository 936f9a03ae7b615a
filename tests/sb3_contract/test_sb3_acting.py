"""What SB3's own tests ask of callbacks, loggers and acting, asked of DQN and PERDQN."""

import gymnasium as gym
import numpy as np
import pytest
from expectations import BOTH, make
from gymnasium import spaces
from stable_baselines3.common.callbacks import (
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure


@BOTH
def test_sb3s_callbacks_are_called_in_time(kind, tmp_path):
    counted = []
    callbacks = [
        EvalCallback(
            make_vec_env("CartPole-v1"), eval_freq=50, best_model_save_path=str(tmp_path), verbose=0
        ),
        CheckpointCallback(40, str(tmp_path), save_replay_buffer=True),
        EveryNTimesteps(30, ConvertCallback(lambda *_: counted.append(1) or True)),
        StopTrainingOnMaxEpisodes(12),
    ]

    model = make(kind).learn(5000, callback=callbacks)

    assert model._episode_num <= 12
    assert model.num_timesteps < 5000
    assert len(counted) == model.num_timesteps // 30
    assert {"best_model.zip", "rl_model_40_steps.zip"} <= {p.name for p in tmp_path.iterdir()}
    assert (tmp_path / "rl_model_replay_buffer_40_steps.pkl").exists()


@BOTH
def test_a_callback_that_says_no_stops_the_training(kind):
    model = make(kind).learn(200, callback=lambda locals_, _: locals_["self"].num_timesteps < 77)

    assert model.num_timesteps == 77


@BOTH
def test_a_logger_of_ones_own_gets_everything(kind, tmp_path):
    model = make(kind)
    model.set_logger(configure(str(tmp_path), ["csv", "json"]))

    model.learn(200, log_interval=1)
    model.logger.close()

    columns = (tmp_path / "progress.csv").read_text().splitlines()[0].split(",")
    wanted = {"rollout/ep_rew_mean", "rollout/exploration_rate", "train/loss", "time/fps"}
    assert wanted <= set(columns)
    assert (tmp_path / "progress.json").exists()


@BOTH
def test_exploration_falls_linearly_and_then_stays(kind):
    model = make(kind, exploration_fraction=0.5, exploration_final_eps=0.1)
    rates = {}

    def note(locals_, _):
        rates[model.num_timesteps] = model.exploration_rate
        return True

    model.learn(200, callback=note)

    assert rates[51] == pytest.approx(0.55)
    assert rates[150] == pytest.approx(0.1)


@BOTH
def test_predictions_have_the_shapes_of_what_they_are_asked(kind):
    model = make(kind)
    one = model.observation_space.sample()

    for deterministic in (True, False):
        action, state = model.predict(one, deterministic=deterministic)
        actions, _ = model.predict(np.stack([one] * 5), deterministic=deterministic)
        assert (np.shape(action), actions.shape, state) == ((), (5,), None)
        assert model.action_space.contains(int(action))
    with pytest.raises(ValueError, match="Unexpected observation shape"):
        model.predict(np.ones(3))


@BOTH
def test_acting_at_random_is_a_matter_of_the_exploration_rate(kind):
    model = make(kind)
    one = model.observation_space.sample()
    best = int(model.predict(one, deterministic=True)[0])

    model.exploration_rate = 1.0
    explored = {int(model.predict(one)[0]) for _ in range(50)}
    model.exploration_rate = 0.0
    exploited = {int(model.predict(one)[0]) for _ in range(50)}

    assert (explored, exploited) == ({0, 1}, {best})


@BOTH
def test_other_environments_have_to_fit(kind):
    model = make(kind)

    with pytest.raises(ValueError, match="spaces do not match"):
        model.set_env(gym.make("Acrobot-v1"))
    with pytest.raises(AssertionError, match="number of environments"):
        model.set_env(make_vec_env("CartPole-v1", n_envs=2))
    model.set_env(gym.make("CartPole-v1"))
    assert isinstance(model.observation_space, spaces.Box)
    model.learn(60)


@BOTH
def test_a_model_can_be_made_without_an_environment_only_to_be_loaded(kind, tmp_path):
    make(kind).save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model")

    with pytest.raises(AssertionError, match="set the environment"):
        loaded.learn(10)
    loaded.set_env(gym.make("CartPole-v1"))
    loaded.learn(60)
