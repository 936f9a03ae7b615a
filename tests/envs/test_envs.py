"""BlindCliffwalk-v0: its rules, its noise, and how gymnasium comes to know it."""

import pickle
import subprocess
import sys
import warnings
from importlib import metadata

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from sb3_per.envs.blind_cliffwalk import NOISES, BlindCliffwalk, right_action
from stable_baselines3.common import env_checker as sb3
from stable_baselines3.common.env_util import make_vec_env

from sb3_per.envs import registration

RIGHT = (0, 1, 0, 1)  # worked out by hand for n = 4
OPTIONS = [
    {"observations": observations, "noise": noise}
    for observations in ("one-hot", "integer")
    for noise in NOISES
]


@pytest.mark.parametrize("options", OPTIONS)
def test_gymnasium_and_sb3_find_nothing_to_warn_of(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(registration.BLIND_CLIFFWALK, n=5, **options).unwrapped)
        sb3.check_env(BlindCliffwalk(5, **options))


def test_right_actions_in_a_row_are_rewarded_once_at_the_end():
    env = gym.make(registration.BLIND_CLIFFWALK, n=4, observations="integer")
    assert env.reset()[0] == 0

    steps = [env.step(action)[:4] for action in RIGHT]

    assert steps == [
        (1, 0.0, False, False),
        (2, 0.0, False, False),
        (3, 0.0, False, False),
        (3, 1.0, True, False),
    ]


@pytest.mark.parametrize("state", range(4))
def test_a_wrong_action_ends_the_episode_without_reward(state):
    env = gym.make(registration.BLIND_CLIFFWALK, n=4, observations="integer")
    env.reset()
    for action in RIGHT[:state]:
        env.step(action)

    assert env.step(1 - RIGHT[state])[:4] == (state, 0.0, True, False)


def test_a_one_hot_observation_tells_the_state():
    env = BlindCliffwalk(3)

    observations = [env.reset()[0], env.step(right_action(0))[0], env.step(right_action(1))[0]]

    assert (np.array(observations) == np.eye(3)).all()


@pytest.mark.parametrize("noise", ["gaussian", "skewed"])
def test_noise_has_mean_zero_and_the_scale_that_was_asked_for(noise):
    env = BlindCliffwalk(1, noise=noise, noise_scale=0.5)
    env.reset(seed=0)

    rewards = np.array([env.step(1)[1] for _ in range(20_000)])

    # Four standard errors; those of the deviation are larger, as the skewed kind's kurtosis is 8.
    assert abs(rewards.mean()) < 4 * 0.5 / 20_000**0.5
    assert rewards.std() == pytest.approx(0.5, rel=4 * (7 / 4 / 20_000) ** 0.5)
    skewness = np.mean((rewards / 0.5) ** 3)
    assert skewness == pytest.approx(8 / 3 if noise == "skewed" else 0.0, abs=0.3)


def test_the_same_seed_gives_the_same_noise():
    env = BlindCliffwalk(1, noise="skewed")

    runs = []
    for seed in (7, 7, 8):
        env.reset(seed=seed)
        runs.append([env.step(1)[1] for _ in range(50)])

    assert runs[0] == runs[1] != runs[2]


def test_the_number_of_states_may_be_numpys():
    assert type(BlindCliffwalk(np.int64(5)).n) is int


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be a whole number of at least 1, got 0"),
        ({"observations": "text"}, r"observations must be one of .*, got 'text'"),
        ({"noise": "pink"}, r"noise must be one of .*, got 'pink'"),
        ({"noise_scale": -1.0}, "noise_scale must be a number of at least 0, got -1.0"),
        ({"n": True}, "n must be a whole number of at least 1, got True"),
        ({"noise": ["skewed"]}, r"noise must be one of .*, got \['skewed'\]"),
        ({"noise_scale": None}, "noise_scale must be a number of at least 0, got None"),
    ],
)
def test_an_option_out_of_its_range_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        BlindCliffwalk(**options)


@pytest.mark.filterwarnings("ignore:.*not in the possible render_modes")  # gymnasium's
@pytest.mark.parametrize("env_id", [registration.BLIND_CLIFFWALK, registration.POINT_REACH])
def test_sb3_makes_the_environment_from_its_name(env_id):
    registration.register()

    env = make_vec_env(env_id)  # with render_mode="rgb_array"

    env.reset()
    gym.make(env_id, render_mode=None)


def test_a_walk_can_be_pickled():
    env = pickle.loads(pickle.dumps(BlindCliffwalk(2, noise="gaussian")))

    env.reset(seed=0)
    assert env.step(0)[1] != 0


def in_a_fresh_process(code):
    return subprocess.run([sys.executable, "-c", code], check=True, text=True, stdout=-1).stdout


@pytest.mark.parametrize("first", ["gymnasium", "stable_baselines3", "sb3_per", "sb3_per.envs"])
def test_make_finds_the_environment_whatever_is_imported_first(first):
    code = (
        f"import {first}, gymnasium; gymnasium.make('sb3_per.envs:{registration.BLIND_CLIFFWALK}')"
    )

    in_a_fresh_process(code)


@pytest.mark.skipif(gym.__version__ >= "1", reason="gymnasium 1.0 has no plugins any more")
@pytest.mark.parametrize("first", ["gymnasium", "stable_baselines3", "sb3_per", "sb3_per.envs"])
def test_gymnasium_before_1_knows_the_environment_without_an_import(first):
    code = f"import {first}, gymnasium; gymnasium.make('{registration.BLIND_CLIFFWALK}')"

    in_a_fresh_process(f"import warnings; warnings.simplefilter('error', UserWarning); {code}")


def test_making_the_environment_brings_neither_torch_nor_numba():
    code = "import sb3_per.envs, sys; print(*{'torch', 'numba'} & {*sys.modules})"

    assert in_a_fresh_process(code) == "\n"


def test_what_gymnasium_before_1_calls_in_its_own_import_leaves_the_environment_alone():
    code = (
        "import sb3_per.envs.registration, sys;"
        "print(*{'sb3_per.envs.blind_cliffwalk', 'stable_baselines3'} & {*sys.modules})"
    )

    assert in_a_fresh_process(code) == "\n"
    (plugin,) = metadata.entry_points(group="gymnasium.envs", name="sb3_per")
    assert plugin.load() is registration.register


def test_registering_twice_changes_nothing():
    registration.register()
    before = dict(gym.registry)

    registration.register()

    assert gym.registry == before


def test_the_package_still_has_its_names():
    code = (
        "import sb3_per; assert {*sb3_per.__all__} <= {*dir(sb3_per)};"
        "from sb3_per import *; PrioritizedReplayBuffer;"
        "print(sb3_per.algorithms.dqn.PERDQN is PERDQN)"
    )

    assert in_a_fresh_process(code) == "True\n"
    with pytest.raises(ImportError, match="cannot import name 'PERPPO'"):
        from sb3_per import PERPPO  # noqa: F401  # it has to fail
