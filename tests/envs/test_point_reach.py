"""PointReach-v0: its rules, and that goals can be replaced."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from sb3_per.envs.point_reach import PointReach
from sb3_per.envs.registration import BIT_FLIPPING, POINT_REACH
from stable_baselines3.common import env_checker as sb3


@pytest.mark.parametrize("discrete", [False, True])
def test_gymnasium_and_sb3_find_nothing_to_warn_of(discrete):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(POINT_REACH, discrete=discrete).unwrapped)
        sb3.check_env(PointReach(discrete=discrete))


@pytest.mark.parametrize(
    ("discrete", "actions"), [(False, [[1, 0.5], [-3, 0]]), (True, [0, 2, 1, 4])]
)
def test_steps_move_the_point_inside_the_square(discrete, actions):
    env = PointReach(discrete=discrete)
    env.reset(seed=0)
    env._place = np.array([0.95, 0.0], np.float32)

    for action in actions:
        place = env.step(action)[0]["achieved_goal"]

    # 0.95 + 0.1 is cut at 1; actions are cut at 1, too.
    expected = [0.9, 0.1] if discrete else [0.9, 0.05]
    np.testing.assert_allclose(place, expected, atol=1e-6)


def test_only_the_goal_is_rewarded_and_only_time_ends_an_episode():
    env = PointReach(max_steps=3)
    env.reset(seed=0)
    env._place, env._goal = np.zeros(2, np.float32), np.array([0.25, 0], np.float32)

    steps = [env.step(np.array([1, 0]))[1:] for _ in range(3)]

    assert steps == [
        (-1.0, False, False, {"is_success": False}),
        (0.0, False, False, {"is_success": True}),
        (0.0, False, True, {"is_success": True}),
    ]


def test_rewards_of_other_goals_are_computed_at_once():
    places, goals = np.zeros((3, 2)), np.array([[0, 0.09], [0.2, 0], [0.08, 0.08]])

    assert PointReach().compute_reward(places, goals, [{}] * 3).tolist() == [0, -1, -1]


def test_sb3s_bits_have_an_id():
    env = gym.make(BIT_FLIPPING, n_bits=15, max_steps=15)

    assert env.observation_space["desired_goal"].shape == (15,)


@pytest.mark.parametrize("options", [{"discrete": "no"}, {"max_steps": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        PointReach(**options)
