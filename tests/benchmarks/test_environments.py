"""BlindCliffwalk and PointReach: their rules."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common import env_checker as sb3

from benchmarks.environments import BlindCliffwalk, PointReach

RIGHT = (0, 1, 0, 1)  # worked out by hand for n = 4
ENVIRONMENTS = [
    (BlindCliffwalk, {"n": 5}),
    *((PointReach, {"discrete": discrete}) for discrete in (False, True)),
]


@pytest.mark.parametrize(("kind", "options"), ENVIRONMENTS)
def test_environment_checkers_find_nothing(kind, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(f"sb3_per/{kind.__name__}-v0", **options).unwrapped)
        sb3.check_env(kind(**options))


def state_of(one_hot):
    """Return the state that an observation shows."""
    assert sorted(one_hot.tolist()) == [0.0] * (len(one_hot) - 1) + [1.0]
    return int(one_hot.argmax())


def test_cliffwalk_rewards_the_last_of_all_right_actions():
    env = gym.make("sb3_per/BlindCliffwalk-v0", n=4)
    assert state_of(env.reset()[0]) == 0

    steps = [(state_of(seen), *rest[:3]) for seen, *rest in map(env.step, RIGHT)]

    assert steps == [
        (1, 0.0, False, False),
        (2, 0.0, False, False),
        (3, 0.0, False, False),
        (3, 1.0, True, False),
    ]


@pytest.mark.parametrize("state", range(4))
def test_cliffwalk_ends_at_a_wrong_action(state):
    env = gym.make("sb3_per/BlindCliffwalk-v0", n=4)
    env.reset()
    for action in RIGHT[:state]:
        env.step(action)

    seen, *rest, _ = env.step(1 - RIGHT[state])
    assert (state_of(seen), *rest) == (state, 0.0, True, False)


@pytest.mark.parametrize(
    ("discrete", "actions"), [(False, [[1, 0.5], [-3, 0]]), (True, [0, 2, 1, 4])]
)
def test_point_reach_moves_inside_the_square(discrete, actions):
    env = PointReach(discrete=discrete)
    env.reset(seed=0)
    env._place = np.array([0.95, 0.0], np.float32)

    for action in actions:
        place = env.step(action)[0]["achieved_goal"]

    # 0.95 + 0.1 is cut at 1; actions are cut at 1, too.
    expected = [0.9, 0.1] if discrete else [0.9, 0.05]
    np.testing.assert_allclose(place, expected, atol=1e-6)


def test_point_reach_rewards_the_goal_and_ends_at_its_time_limit():
    env = PointReach(max_steps=3)
    env.reset(seed=0)
    env._place, env._goal = np.zeros(2, np.float32), np.array([0.25, 0], np.float32)

    steps = [env.step(np.array([1, 0]))[1:] for _ in range(3)]

    assert steps == [
        (-1.0, False, False, {"is_success": False}),
        (0.0, False, False, {"is_success": True}),
        (0.0, False, True, {"is_success": True}),
    ]


def test_point_reach_computes_rewards_of_other_goals():
    places, goals = np.zeros((3, 2)), np.array([[0, 0.09], [0.2, 0], [0.08, 0.08]])

    assert PointReach().compute_reward(places, goals, [{}] * 3).tolist() == [0, -1, -1]
