"""Hindsight replay with priorities, against SB3's ``HerReplayBuffer`` on the same transitions."""

import contextlib
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from builders import TWO_ACTIONS, fill, probabilities_in
from checks import assert_same_batch
from goal_line import GOAL_SPACE
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

from sb3_per import PERDQN, PERSAC, PERTD3, PERTQC, PrioritizedHerReplayBuffer, Rainbow


class Goals(gym.Env):
    """Rewards are larger for goals that are farther away, and for an info that says truncated."""

    observation_space = GOAL_SPACE
    action_space = TWO_ACTIONS

    def compute_reward(self, achieved, desired, infos):
        distance = np.abs(achieved - desired).sum(axis=1)
        return distance + [1000 * info.get("TimeLimit.truncated", False) for info in infos]


def goal_envs(n_envs):
    return DummyVecEnv([Goals] * n_envs)


def make(n_rows=10, n_envs=1, kind=PrioritizedHerReplayBuffer, **options):
    """At step t, environment e sees (t, e) and wants (t, e), and has achieved (t + 1, e) after."""
    sizes = (n_rows * n_envs, GOAL_SPACE, TWO_ACTIONS, goal_envs(n_envs), "cpu")
    return kind(*sizes, n_envs=n_envs, **options)


def has_new_goal(batch):
    """Where the goal is not the transition's own: what was achieved then or later, (B,)."""
    return (batch.observations["desired_goal"] != batch.observations["observation"]).any(dim=1)


def sampleable(buffer):
    return set(np.flatnonzero(probabilities_in(buffer, np.arange(buffer.n_slots)) > 0))


class GlobalGoals:
    """Random numbers of a buffer, except for the goals: they come from NumPy's global state."""

    def __init__(self):
        generator = np.random.default_rng(0)
        self.random, self.permutation = generator.random, generator.permutation
        self.integers = np.random.randint  # as in SB3


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("copy_info_dict", [False, True])
@pytest.mark.parametrize("strategy", ["future", "final", "episode", GoalSelectionStrategy.FINAL])
@pytest.mark.parametrize("is_normalized", [False, True])
def test_goals_rewards_and_infos_are_those_of_sb3(n_envs, copy_info_dict, strategy, is_normalized):
    options = {"goal_selection_strategy": strategy, "copy_info_dict": copy_info_dict}
    ours, theirs = (
        make(12, n_envs, kind, **options) for kind in (PrioritizedHerReplayBuffer, HerReplayBuffer)
    )
    ends = {"done_at": [(4, 0), (9, 1), (14, 0)], "truncated_at": [(8, 0), (12, 1), (11, 2)]}
    for buffer in (ours, theirs):
        fill(buffer, 17, **ends)
    env = None
    if is_normalized:
        env = VecNormalize(goal_envs(n_envs), clip_reward=1e9, norm_obs_keys=["observation"])
        env.ret_rms.var, env.obs_rms["observation"].mean = 9.0, np.array([3.0, 1.0])
    ours.generator = GlobalGoals()

    np.random.seed(5)  # noqa: NPY002
    batch = ours.sample(40, env)

    np.random.seed(5)  # noqa: NPY002
    rows, envs = np.divmod(batch.slots, n_envs)
    parts = (
        theirs._get_real_samples(rows[:8], envs[:8], env),
        theirs._get_virtual_samples(rows[8:], envs[8:], env),
    )
    for name in ("observations", "next_observations"):
        for key in GOAL_SPACE:
            expected = th.cat([getattr(part, name)[key] for part in parts])
            assert th.equal(getattr(batch, name)[key], expected)
    for name in ("actions", "dones", "rewards"):
        assert th.equal(getattr(batch, name), th.cat([getattr(part, name) for part in parts]))
    assert batch.discounts is None
    assert (batch.rewards > 300).any() == copy_info_dict  # a truncated transition, even normalized


@pytest.mark.parametrize(("n_sampled_goal", "n_new"), [(0, 0), (1, 3), (4, 5)])
def test_her_ratio_of_a_batch_gets_new_goals(n_sampled_goal, n_new):
    buffer = fill(make(20, n_sampled_goal=n_sampled_goal), 20, done_at=[(9, 0), (19, 0)])

    batch = buffer.sample(7)

    assert has_new_goal(batch).tolist() == [False] * (7 - n_new) + [True] * n_new
    assert not has_new_goal(buffer.sample(1)).any()


def test_new_goals_do_not_depend_on_priority():
    buffer = fill(make(20, alpha=1.0), 20, done_at=[(9, 0), (19, 0)])
    buffer.generator = np.random.default_rng(0)
    buffer.update_priorities(np.arange(20), 1.0 + np.arange(20))
    n_sampled, n_new = np.zeros(20), np.zeros(20)

    for _ in range(400):
        batch = buffer.sample(20)
        buffer.update_priorities(batch.slots, 1.0 + batch.slots)
        np.add.at(n_sampled, batch.slots, 1)
        np.add.at(n_new, batch.slots, has_new_goal(batch).numpy())

    # Without replacement within a batch, the variance is below the binomial one. Four standard
    # errors for each of 20 slots: a false alarm in a thousand seeds. In order of slots instead,
    # the first slots would get 100 % and the last ones 0 %.
    assert n_sampled.min() > 20
    assert n_new.sum() == 400 * 16
    assert (np.abs(n_new / n_sampled - 0.8) < 4 * np.sqrt(0.16 / n_sampled)).all()


def test_weights_belong_to_the_transitions_of_the_batch():
    options = {"weight_normalization": "none", "beta": 0.7, "info_keys": ["TimeLimit.truncated"]}
    ends = {"done_at": [(9, 0)], "truncated_at": [(5, 0), (15, 1)]}
    buffer = fill(make(20, 2, **options), 20, **ends)
    slots = np.array(sorted(sampleable(buffer)))
    buffer.update_priorities(slots, 1.0 + slots)

    batch = buffer.sample(30)

    steps_and_envs = np.stack(np.divmod(batch.slots, 2), axis=1)
    assert np.array_equal(batch.observations["observation"], steps_and_envs)
    was_cut = [tuple(place) in ends["truncated_at"] for place in steps_and_envs.tolist()]
    assert batch.infos["TimeLimit.truncated"].flatten().tolist() == was_cut
    assert any(was_cut)
    expected = (len(slots) * buffer.probabilities(batch.slots)) ** -0.7
    np.testing.assert_allclose(batch.weights.numpy().ravel(), expected, rtol=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_sampleable_transitions_are_those_of_sb3(seed):
    """Episodes of 1 to 25 steps in rings of 1 to 12 rows, truncated now and then."""
    random = np.random.default_rng(seed)
    n_rows, n_envs = int(random.integers(1, 13)), int(random.integers(1, 4))
    ours = make(n_rows, n_envs, uniform_share=1.0, n_sampled_goal=0)
    theirs = make(n_rows, n_envs, HerReplayBuffer)
    slots = np.zeros(0, dtype=int)
    for step in range(150):
        done_at = [(step, env) for env in range(n_envs) if random.random() < 1 / (1 + seed)]
        is_cut = random.random() < 0.05
        for buffer in (ours, theirs):
            fill(buffer, 1, first=step, done_at=done_at)
            if is_cut:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    buffer.truncate_last_trajectory()
        ours.update_priorities(slots[:3], random.normal(size=len(slots[:3])))  # some are stale
        expected = np.flatnonzero(theirs.ep_length.ravel() > 0).tolist()
        assert sampleable(ours) == set(expected)
        assert ours.n_sampleable == len(expected)
        if expected:
            slots = ours.sample(500).slots
            assert set(slots.tolist()) == set(expected)


@pytest.mark.parametrize("end", ["truncate_last_trajectory", "end_episodes"])
@pytest.mark.filterwarnings("ignore:The last trajectory")
def test_truncated_episode_does_not_go_on(end):
    buffer = fill(make(10, 2), 7, done_at=[(2, 0), (6, 1)])

    getattr(buffer, end)()

    assert sampleable(buffer) == set(range(14))
    assert buffer._get_samples(np.array([12, 13])).dones.flatten().tolist() == [0, 1]
    fill(buffer, 1, first=7, done_at=[(7, 0)])
    assert buffer.ep_length[:, 0].tolist() == [3, 3, 3, 4, 4, 4, 4, 1, 0, 0]


def test_truncated_episode_ends_in_a_buffer_of_another_size():
    buffer = fill(make(10, 2), 3)
    buffer.end_episodes()
    fill(buffer, 4, first=3, done_at=[(6, 0), (6, 1)])

    other = make(12, 2)
    other._refill_from(buffer)

    assert other.ep_length[:7].tolist() == [[3, 3]] * 3 + [[4, 4]] * 4


def test_pickled_buffer_continues_with_the_same_batches():
    buffer = fill(make(10, 2), 17, done_at=[(2, 0), (8, 1), (13, 0), (14, 1)])
    buffer.update_priorities(buffer.sample(8).slots, np.arange(8.0))

    loaded = pickle.loads(pickle.dumps(buffer))

    with pytest.raises(ValueError, match="set_env"):
        loaded.sample(4)
    loaded.set_env(goal_envs(2))
    for _ in range(3):
        batch = buffer.sample(16)
        assert_same_batch(loaded.sample(16), batch)
        for one in (buffer, loaded):
            one.update_priorities(batch.slots, batch.rewards)
            fill(one, 3, first=17, done_at=[(18, 0), (19, 1)])


class Relabelling(PrioritizedHerReplayBuffer):
    """SB3's hooks, overridden."""

    def _get_real_samples(self, batch_indices, env_indices, env=None):
        samples = super()._get_real_samples(batch_indices, env_indices, env)
        return samples._replace(rewards=th.from_numpy(100 * batch_indices[:, None] + 1))

    def _get_virtual_samples(self, batch_indices, env_indices, env=None):
        samples = super()._get_virtual_samples(batch_indices, env_indices, env)
        return samples._replace(rewards=th.from_numpy(-100 * batch_indices[:, None] - 1))


def test_hooks_of_a_subclass_are_called():
    buffer = fill(make(20, 2, Relabelling), 10, done_at=[(9, 0), (9, 1)])

    batch = buffer.sample(20)

    rewards = 100 * (batch.slots // 2) + 1
    rewards[4:] *= -1  # the last int(her_ratio * 20) have new goals
    assert batch.rewards.flatten().tolist() == rewards.tolist()


def test_sample_without_a_whole_episode_is_refused():
    buffer = fill(make(10, 2), 12, done_at={(8, 0), (8, 1)})

    with pytest.raises(ValueError, match=r"learning_starts .* buffer_size .* 20 of 20"):
        buffer.sample(4)


def test_hindsight_buffer_has_every_attribute_of_sb3s():
    """Its constructor does not run SB3's, and so has to set what SB3 sets."""
    ours, theirs = (make(kind=kind) for kind in (PrioritizedHerReplayBuffer, HerReplayBuffer))

    for name, value in vars(theirs).items():
        found = getattr(ours, name)
        if isinstance(value, np.ndarray):
            assert (found.shape, found.dtype) == (value.shape, value.dtype), name
        elif not isinstance(value, dict | DummyVecEnv):
            assert found == value, name


# In an algorithm


def model(algorithm=PERDQN, n_envs=1, **options):
    """A model whose episodes take 15 steps, unless chance sets twenty bits."""
    bits = {"n_bits": 20, "max_steps": 15, "continuous": not issubclass(algorithm, PERDQN)}
    fixed = {"learning_starts": 40, "batch_size": 8, "buffer_size": 200, "train_freq": 1}
    fixed |= {"n_steps": 1}  # Rainbow's default is 3
    fixed |= {"replay_buffer_kwargs": {"n_sampled_goal": 2}, "device": "cpu", "seed": 0}
    fixed |= {"replay_buffer_class": PrioritizedHerReplayBuffer, "policy_kwargs": {"net_arch": [8]}}
    env = make_vec_env(lambda: BitFlippingEnv(**bits), n_envs)
    return algorithm("MultiInputPolicy", env, **{**fixed, **options})


@pytest.mark.parametrize("algorithm", [PERDQN, Rainbow, PERSAC, PERTD3, PERTQC])
def test_algorithms_learn_with_hindsight(algorithm):
    buffer = model(algorithm, 2, replay_buffer_class=HerReplayBuffer).learn(60).replay_buffer

    assert type(buffer) is PrioritizedHerReplayBuffer
    assert len({*probabilities_in(buffer, np.array(sorted(sampleable(buffer))))}) > 3
    assert buffer.n_sampled_goal == 2


def test_buffer_of_another_run_truncates_its_episodes(tmp_path):
    first, second = model().learn(20), model()
    first.save_replay_buffer(tmp_path / "buffer")

    with pytest.warns(UserWarning, match="trajectory in the replay buffer will be truncated"):
        second.load_replay_buffer(tmp_path / "buffer")
    buffer = second.replay_buffer
    assert buffer.env is second.get_env()
    assert buffer.n_sampleable == len(buffer) == 20
    second.learn(22)
    second.set_env(model().get_env())

    assert buffer.env is second.get_env()
    assert buffer.n_sampleable == len(buffer) == 42
    assert buffer.ep_length[:42, 0].tolist() == [15] * 15 + [5] * 5 + [15] * 15 + [7] * 7


class Stops(BaseCallback):
    """Stops the training at its 20th step, by an exception or as callbacks do."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def _on_step(self):
        if self.n_calls == 20 and self.error:
            raise self.error
        return self.n_calls < 20


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_stopped_training_goes_on_with_new_episodes(error):
    trained = model()
    with contextlib.suppress(KeyboardInterrupt):
        trained.learn(100, callback=Stops(error))

    trained.learn(10, reset_num_timesteps=False)

    # SB3 drops the step at which the training stops.
    assert trained.replay_buffer.ep_length[15:19, 0].tolist() == [4] * 4


def test_second_training_begins_with_new_episodes():
    trained = model().learn(20).learn(12)

    assert trained.replay_buffer.ep_length[15:21, 0].tolist() == [*[5] * 5, 0]


def test_algorithm_refuses_environments_without_rewards_of_goals(tmp_path):
    trained = model().learn(20)
    env, buffer = trained.get_env(), trained.replay_buffer
    trained.save(tmp_path / "model")
    with pytest.raises(ValueError, match="pass env"):
        PERDQN.load(tmp_path / "model")
    with pytest.raises(ValueError, match="compute_reward"):
        trained.set_env(make_vec_env("CartPole-v1"))
    assert trained.get_env() is env is buffer.env
