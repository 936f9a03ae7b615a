"""Transitions of a policy that acts, and demonstrations of models: Minari, actions, images."""

import gymnasium as gym
import numpy as np
import pytest
from builders import TWO_ACTIONS
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from sb3_per import PERDQN, PERSAC, collect


@pytest.mark.filterwarnings("ignore::UserWarning")  # it wants an author and a permalink
def test_minari_dataset_is_a_source(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gym.make("CartPole-v1", max_episode_steps=8)
    episodes, shown = [], []
    for seed in range(3):
        found = collect(Constant(seed % 2), env, 8)
        n = 1 + int(np.argmax(found["terminations"] | found["truncations"]))
        found = {name: values[:n] for name, values in found.items()}
        if seed == 1:  # without a flag at its end
            found["terminations"][-1] = found["truncations"][-1] = False
        last = found.pop("next_observations")[-1:]
        shown.append(found["observations"])
        episodes.append(EpisodeBuffer(**{**found, "observations": np.vstack([shown[-1], last])}))
    dataset = minari.create_dataset_from_buffers("cartpole/test-v0", episodes, env)
    model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=100, device="cpu")

    model.add_demonstrations(dataset)

    buffer, n = model.replay_buffer.demonstrations, sum(map(len, shown))
    assert buffer.size() == n
    assert np.array_equal(buffer.observations[:n, 0], np.vstack(shown))
    ends = np.cumsum([len(part) for part in shown]) - 1
    assert np.flatnonzero(buffer.dones).tolist() == [ends[0], ends[2]]
    assert ends[1] in np.flatnonzero(buffer.timeouts)
    following = np.delete(np.arange(n), ends)
    assert np.array_equal(buffer.next_observations[following], buffer.observations[following + 1])


class Counter(gym.Env):
    """Shows how many steps it has made, and ends after four."""

    def __init__(self, shape=(1,), action_space=TWO_ACTIONS):
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = action_space
        self.first = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
        self.place = self.first.copy()

    def reset(self, seed=None, options=None):
        self.n = 0
        self.place[:] = self.first
        return self.place.copy(), {}

    def step(self, action):
        self.n += 1
        self.place += 1
        return self.place.copy(), float(self.n), self.n == 4, False, {"cost": self.n}


class Constant:
    def __init__(self, action):
        self.action = action

    def predict(self, observation, **kwargs):
        return self.action, None


def test_collect_returns_the_transitions_of_a_policy():
    found = collect(Constant(1), Counter(), 6, info_keys=["cost"])

    assert found["observations"].tolist() == [[0], [1], [2], [3], [0], [1]]
    assert found["next_observations"].tolist() == [[1], [2], [3], [4], [1], [2]]
    assert found["actions"].tolist() == [1] * 6
    assert found["rewards"].tolist() == found["infos"]["cost"].tolist() == [1, 2, 3, 4, 1, 2]
    assert found["terminations"].tolist() == [False, False, False, True, False, False]
    assert found["truncations"].tolist() == [False] * 5 + [True]  # the last episode is cut


class SameArrays(DummyVecEnv):
    def step_wait(self):
        self.last, self.buf_rews[:], dones, infos = super().step_wait()
        self.shared = getattr(self, "shared", self.last)
        self.shared[:] = self.last
        return self.shared, self.buf_rews, dones, infos


def test_environments_may_return_the_same_arrays():
    env = SameArrays([lambda: gym.make("Pendulum-v1")] * 2)
    env.seed(0)
    action = Constant([np.zeros(1, np.float32)] * 2)

    found = collect(action, env, 10)

    assert len({*found["rewards"].tolist()}) == 10
    assert len({*found["observations"][:, 0].tolist()}) == 10


class Parity:
    """Acts by the number of steps in the episode, which it keeps in its state."""

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        is_batch = observation.ndim == 2
        steps = np.zeros(len(observation), int) if state is None else state * ~episode_start
        return steps % 2 if is_batch else steps[0] % 2, steps + 1


class Recorder:
    """Notes what it sees."""

    def __init__(self):
        self.seen = []

    def predict(self, observation, deterministic=True):
        self.seen.append(observation.copy())
        return np.ones(len(observation), int), None


def vectorized(n_envs=1, limit=9):
    return DummyVecEnv([lambda: gym.wrappers.TimeLimit(Counter(), limit)] * n_envs)


@pytest.mark.parametrize("env", [Counter(), vectorized()])
def test_collect_keeps_the_state_of_a_policy(env):
    assert collect(Parity(), env, 7)["actions"].tolist() == [0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("limit", [3, 9])
def test_collect_returns_one_environment_after_the_other(limit):
    single = gym.wrappers.TimeLimit(Counter(), limit)
    parts = [collect(Parity(), single, n, info_keys=["cost"]) for n in (6, 5)]

    found = collect(Parity(), vectorized(2, limit), 11, info_keys=["cost"])

    for name, array in found.items():
        first, second = (part[name] for part in parts)
        if name == "infos":
            array, first, second = array["cost"], first["cost"], second["cost"]
        assert array.tolist() == [*first.tolist(), *second.tolist()], name


@pytest.mark.parametrize("clip_obs", [99, 0.5])
def test_collect_does_not_normalize_what_it_returns(clip_obs):
    env, policy = VecNormalize(vectorized(2), training=False, clip_obs=clip_obs), Recorder()
    env.obs_rms.mean, env.obs_rms.var, env.ret_rms.var = np.full(1, 2.1), np.full(1, 2.9), 9.0

    found = collect(policy, env, 12)

    assert found["observations"][:, 0].tolist() == [0, 1, 2, 3, 0, 1] * 2
    assert found["next_observations"][:, 0].tolist() == [1, 2, 3, 4, 1, 2] * 2
    assert found["rewards"].tolist() == [1, 2, 3, 4, 1, 2] * 2
    expected = np.clip(
        [(step - 2.1) / 2.9**0.5 for step in (0, 1, 2, 3, 0, 1)], -clip_obs, clip_obs
    )
    assert np.array(policy.seen)[:, 0, 0] == pytest.approx(expected, abs=1e-6)


def test_collect_changes_no_statistics_of_normalization():
    env = VecNormalize(vectorized(2))

    collect(Recorder(), env, 12)

    assert (env.obs_rms.count, env.ret_rms.count) == (1e-4, 1e-4)
    assert env.training


@pytest.mark.parametrize("env", [Counter(), vectorized(), VecMonitor(VecNormalize(vectorized()))])
def test_collect_refuses_another_normalization_than_the_models(env):
    model = PERDQN("MlpPolicy", VecNormalize(vectorized()), buffer_size=20, device="cpu")

    with pytest.raises(ValueError, match="VecNormalize must be the outermost"):
        collect(model, env, 3)
    assert len(collect(model, model.get_env(), 3)["rewards"]) == 3


@pytest.mark.parametrize("env", [Counter(), vectorized()])
@pytest.mark.parametrize("n", [0, -1, 2.5])
def test_collect_refuses_a_number_that_is_not_positive_and_whole(env, n):
    with pytest.raises(ValueError, match=f"n must be a whole number of at least 1, got {n}"):
        collect(Constant(1), env, n)


def test_model_scales_actions_of_the_environment():
    env = Counter(action_space=spaces.Box(np.float32([0, -2]), np.float32([10, 2])))
    found = collect(Constant(np.float32([5, 2])), env, 3)
    model = PERSAC("MlpPolicy", env, buffer_size=20, device="cpu")

    model.add_demonstrations(found)

    assert model.replay_buffer.demonstrations.actions[:3, 0].tolist() == [[0, 1]] * 3
    other = PERSAC("MlpPolicy", env, buffer_size=20, device="cpu")
    theirs = ReplayBuffer(20, env.observation_space, env.action_space, "cpu")
    observations = found["observations"][0], found["next_observations"][0]
    theirs.add(*observations, np.array([0, 1]), np.ones(1), np.zeros(1), [{}])
    other.add_demonstrations(theirs)
    assert other.replay_buffer.demonstrations.actions[0, 0].tolist() == [0, 1]
    one_action = {**found, "actions": found["actions"][:, :1]}
    with pytest.raises(ValueError, match="actions must be 3 elements"):
        PERSAC("MlpPolicy", env, buffer_size=20, device="cpu").add_demonstrations(one_action)
    del one_action["actions"]
    with pytest.raises(ValueError, match="demonstrations must have actions, got "):
        model.add_demonstrations(one_action)


def test_model_scales_flat_actions_too():
    env = Counter(action_space=spaces.Box(-10, 10, (2, 2), np.float32))
    found = collect(Constant(np.full((2, 2), 5, np.float32)), env, 3)
    model = PERSAC("MlpPolicy", env, buffer_size=20, device="cpu")

    model.add_demonstrations(found, {**found, "actions": found["actions"].reshape(3, 4)})

    assert model.replay_buffer.demonstrations.actions[:6, 0].tolist() == [[0.5] * 4] * 6


@pytest.mark.parametrize("are_transposed", [False, True])
def test_model_transposes_images_as_sb3_does(are_transposed):
    env = Counter(shape=(36, 40, 3))
    model = PERDQN("CnnPolicy", env, buffer_size=20, device="cpu")
    acting = (model, model.get_env()) if are_transposed else (Constant(0), env)

    model.add_demonstrations(collect(*acting, 3))

    assert np.array_equal(
        model.replay_buffer.demonstrations.observations[0, 0], env.first.transpose(2, 0, 1)
    )
