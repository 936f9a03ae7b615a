"""Hindsight replay with priorities, against SB3's ``HerReplayBuffer`` on the same transitions."""

import contextlib
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from builders import BOX, TWO_ACTIONS, fill, probabilities_in
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

from sb3_per import (
    PERDQN,
    PERSAC,
    PERTD3,
    PERTQC,
    PrioritizedHerReplayBuffer,
)

GOAL_SPACE = spaces.Dict({"observation": BOX, "achieved_goal": BOX, "desired_goal": BOX})
STRATEGIES = ("future", "final", "episode")


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
    envs = goal_envs(n_envs)
    size = n_rows * n_envs
    return kind(size, GOAL_SPACE, TWO_ACTIONS, envs, "cpu", n_envs=n_envs, **options)


def has_new_goal(batch):
    """Where the goal is not the transition's own: what was achieved then or later, (B,)."""
    return (batch.observations["desired_goal"] != batch.observations["observation"]).any(dim=1)


def sampleable(buffer):
    return set(np.flatnonzero(probabilities_in(buffer, np.arange(buffer.n_slots)) > 0))


class GlobalGoals:
    """Random numbers of a buffer, except for the goals: they come from NumPy's global state."""

    def __init__(self):
        own = np.random.default_rng(0)
        self.random, self.permutation = own.random, own.permutation
        self.integers = np.random.randint  # as in SB3


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("copy_info_dict", [False, True])
@pytest.mark.parametrize("strategy", [*STRATEGIES, *GoalSelectionStrategy])
@pytest.mark.parametrize("normalized", [False, True])
def test_goals_rewards_and_infos_are_those_of_sb3(n_envs, copy_info_dict, strategy, normalized):
    options = {"goal_selection_strategy": strategy, "copy_info_dict": copy_info_dict}
    ours, theirs = (
        make(12, n_envs, kind, **options) for kind in (PrioritizedHerReplayBuffer, HerReplayBuffer)
    )
    ends = {"done_at": [(4, 0), (9, 1), (14, 0)], "truncated_at": [(8, 0), (12, 1), (11, 2)]}
    for buffer in (ours, theirs):
        fill(buffer, 17, **ends)
    env = (
        VecNormalize(goal_envs(n_envs), clip_reward=1e9, norm_obs_keys=["observation"])
        if normalized
        else None
    )
    if normalized:
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


@pytest.mark.parametrize("n_sampled_goal", [0, 1, 4])
@pytest.mark.parametrize("batch_size", [1, 7, 50])
def test_her_ratio_of_a_batch_gets_new_goals(n_sampled_goal, batch_size):
    buffer = fill(make(20, n_sampled_goal=n_sampled_goal), 20, done_at=[(9, 0), (19, 0)])

    batch = buffer.sample(batch_size)

    assert has_new_goal(batch).sum() == int(buffer.her_ratio * batch_size)
    assert len(batch.rewards) == len(batch.slots) == batch_size


def test_a_batch_size_that_is_no_whole_number_is_refused():
    buffer = fill(make(20), 20, done_at=[(9, 0), (19, 0)])

    with pytest.raises(ValueError, match=r"batch_size must be a whole number .* got '2'"):
        buffer.sample("2")


@pytest.mark.parametrize("options", [{}, {"prioritization": "rank"}, {"uniform_share": 0.5}])
def test_new_goals_do_not_depend_on_priority(options):
    buffer = fill(make(20, 1, alpha=1.0, **options), 20, done_at=[(9, 0), (19, 0)])
    buffer.generator = np.random.default_rng(0)
    buffer.update_priorities(np.arange(20), 1.0 + np.arange(20))
    n_sampled, n_new = np.zeros(20), np.zeros(20)

    for _ in range(400):
        batch = buffer.sample(20)
        buffer.update_priorities(batch.slots, 1.0 + batch.slots)
        np.add.at(n_sampled, batch.slots, 1)
        np.add.at(n_new, batch.slots, has_new_goal(batch).numpy())

    # Without replacement within a batch, the variance is below the binomial one. Four standard
    # errors for each of 20 slots: a wrong alarm in a thousand seeds. In order of slots instead,
    # the first slots would get 100 % and the last ones 0 %.
    assert n_sampled.min() > 20
    assert n_new.sum() == 400 * 16
    assert (np.abs(n_new / n_sampled - 0.8) < 4 * np.sqrt(0.16 / n_sampled)).all()


def test_weights_and_slots_belong_to_the_transitions_of_the_batch():
    buffer = fill(make(20, 2, weight_normalization="none", beta=0.7), 20, done_at=[(9, 0), (15, 1)])
    slots = np.array(sorted(sampleable(buffer)))
    buffer.update_priorities(slots, 1.0 + slots)

    batch = buffer.sample(30)

    steps_and_envs = th.from_numpy(np.stack(np.divmod(batch.slots, 2), axis=1))
    assert th.equal(batch.observations["observation"], steps_and_envs.float())
    expected = (len(slots) * buffer.prioritization.probabilities(batch.slots)) ** -0.7
    np.testing.assert_allclose(batch.weights.numpy().ravel(), expected, rtol=1e-6)


def test_transitions_of_unfinished_episodes_are_never_sampled():
    buffer = fill(make(10, 2), 7, done_at=[(2, 0)], truncated_at=[(4, 1)])

    ended = {2 * row for row in range(3)} | {2 * row + 1 for row in range(5)}
    assert sampleable(buffer) == ended
    assert buffer.n_sampleable == 8
    assert set(np.concatenate([buffer.sample(8).slots for _ in range(9)])) == ended


def test_an_episode_that_is_overwritten_leaves_whole():
    buffer = fill(make(10), 9, done_at=[(3, 0), (8, 0)])
    batch = buffer.sample(20)

    fill(buffer, 2, first=9)

    assert sampleable(buffer) == {4, 5, 6, 7, 8}
    buffer.update_priorities(batch.slots, np.full(20, 5.0))  # some of these come too late
    assert sampleable(buffer) == {4, 5, 6, 7, 8}
    assert set(np.concatenate([buffer.sample(8).slots for _ in range(9)])) == {4, 5, 6, 7, 8}


@pytest.mark.parametrize("seed", range(10))
def test_what_can_be_sampled_is_always_what_sb3_samples(seed):
    """Episodes of 1 to 25 steps in rings of 1 to 12 rows, cut and emptied now and then."""
    random = np.random.default_rng(seed)
    n_rows, n_envs = int(random.integers(1, 13)), int(random.integers(1, 4))
    ours, theirs = (
        make(n_rows, n_envs, kind) for kind in (PrioritizedHerReplayBuffer, HerReplayBuffer)
    )
    for step in range(150):
        done_at = [(step, env) for env in range(n_envs) if random.random() < 1 / (1 + seed)]
        is_cut = random.random() < 0.05
        for buffer in (ours, theirs):
            fill(buffer, 1, first=step, done_at=done_at)
            if is_cut:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    buffer.truncate_last_trajectory()
        assert sampleable(ours) == set(np.flatnonzero(theirs.ep_length.ravel() > 0))
        assert ours.n_sampleable == len(sampleable(ours))
        if ours.n_sampleable:
            batch = ours.sample(3)
            ours.update_priorities(batch.slots, random.normal(size=3))


def test_a_buffer_that_was_pickled_continues_with_the_same_batches():
    buffer = fill(make(10, 2), 17, done_at=[(2, 0), (8, 1), (13, 0), (14, 1)])
    buffer.update_priorities(buffer.sample(8).slots, np.arange(8.0))

    loaded = pickle.loads(pickle.dumps(buffer))

    assert loaded.env is None
    loaded.set_env(goal_envs(2))
    for _ in range(3):
        left, right = buffer.sample(16), loaded.sample(16)
        assert (left.slots == right.slots).all()
        for key in GOAL_SPACE:
            assert th.equal(left.observations[key], right.observations[key])
        assert th.equal(left.rewards, right.rewards)
        assert th.equal(left.weights, right.weights)
        for each in (buffer, loaded):
            each.update_priorities(left.slots, left.rewards)
            fill(each, 3, first=17, done_at=[(18, 0), (19, 1)])


def test_a_trajectory_that_is_truncated_on_loading_can_be_sampled():
    buffer = fill(make(10, 2), 7, done_at=[(2, 0), (6, 1)])

    with pytest.warns(UserWarning, match="last trajectory .* will be truncated"):
        buffer.truncate_last_trajectory()

    assert sampleable(buffer) == set(range(14))
    assert buffer.dones[6].tolist() == [1, 1]
    assert buffer.timeouts[6].tolist() == [1, 0]
    fill(buffer, 1, first=7, done_at=[(7, 0)])
    assert buffer.ep_length[:, 0].tolist() == [3, 3, 3, 4, 4, 4, 4, 1, 0, 0]


def test_episodes_that_end_with_a_reset_of_the_environments_do_not_go_on():
    buffer = fill(make(10, 2), 7, done_at=[(2, 0), (6, 1)])

    buffer.end_episodes()

    assert sampleable(buffer) == set(range(14))
    assert (buffer.gather(np.array([12, 13])).dones.ravel() == th.tensor([0.0, 1.0])).all()
    fill(buffer, 1, first=7, done_at=[(7, 0)])
    assert buffer.ep_length[:, 0].tolist() == [3, 3, 3, 4, 4, 4, 4, 1, 0, 0]


def test_reset_empties_the_buffer():
    buffer = fill(make(10), 7, done_at=[(5, 0)])

    buffer.reset()

    assert sampleable(buffer) == set()
    assert len(buffer) == buffer.n_sampleable == 0
    assert not buffer.ep_length.any()
    assert sampleable(fill(buffer, 3, done_at=[(1, 0)])) == {0, 1}


def test_without_an_episode_that_has_ended_the_error_names_learning_starts():
    with pytest.raises(ValueError, match=r"learning_starts must be larger .* after 10 steps"):
        fill(make(10, 2), 5).sample(4)


def test_when_a_full_buffer_holds_no_whole_episode_the_error_names_buffer_size():
    buffer = fill(make(10, 2), 12, done_at={(8, 0), (8, 1)})

    with pytest.raises(ValueError, match=r"buffer_size must hold two episodes .* got 20"):
        buffer.sample(4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_steps": 3}, "n_steps must be 1 .* got 3"),
        ({"optimize_memory_usage": True}, "optimize_memory_usage must be False"),
        ({"n_sampled_goal": -1}, "n_sampled_goal must be a whole number of at least 0, got -1"),
        ({"goal_selection_strategy": "past"}, "must be one of .*'future'.* got 'past'"),
        ({"goal_selection_strategy": 3}, "must be one of .*'future'.* got 3"),
        ({"alpha": 2.0}, "alpha must .* got 2.0"),
        ({"n_sampled_goals": 4}, "did you mean 'n_sampled_goal'"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_environments_without_goals_are_refused():
    kind, envs = PrioritizedHerReplayBuffer, goal_envs(1)
    with pytest.raises(ValueError, match="Dict observations with achieved_goal and desired_goal"):
        kind(10, BOX, TWO_ACTIONS, envs)
    with pytest.raises(ValueError, match="Dict observations with achieved_goal and desired_goal"):
        kind(10, spaces.Dict({"achieved_goal": BOX}), TWO_ACTIONS, envs)
    with pytest.raises(ValueError, match=r"a method compute_reward\("):
        kind(10, GOAL_SPACE, TWO_ACTIONS, make_vec_env("CartPole-v1"))
    with pytest.raises(ValueError, match=r"env to be a VecEnv, .* got .*Goals"):
        kind(10, GOAL_SPACE, TWO_ACTIONS, Goals())


def test_it_has_every_attribute_of_sb3s_buffer():
    """Its constructor does not run SB3's, and so has to set what SB3 sets."""
    ours, theirs = (make(kind=kind) for kind in (PrioritizedHerReplayBuffer, HerReplayBuffer))

    for name, value in vars(theirs).items():
        own = getattr(ours, name)
        if isinstance(value, np.ndarray):
            assert (own.shape, own.dtype) == (value.shape, value.dtype), name
        elif not isinstance(value, dict | DummyVecEnv):
            assert own == value, name


# In an algorithm


def model(algorithm=PERDQN, n_envs=2, **options):
    """A model whose episodes take 15 steps, unless chance sets twenty bits."""
    options = {
        "learning_starts": 40,
        "batch_size": 8,
        "buffer_size": 200,
        "train_freq": 1,
        **options,
    }
    options.setdefault("replay_buffer_kwargs", {"n_sampled_goal": 2})
    continuous = algorithm is not PERDQN
    bits = {"n_bits": 20, "max_steps": 15, "continuous": continuous}
    env = make_vec_env(lambda: BitFlippingEnv(**bits), n_envs)
    return algorithm(
        "MultiInputPolicy",
        env,
        replay_buffer_class=PrioritizedHerReplayBuffer,
        policy_kwargs={"net_arch": [8]},
        device="cpu",
        seed=0,
        **options,
    )


@pytest.mark.parametrize("algorithm", [PERDQN, PERSAC, PERTD3, PERTQC])
def test_prioritized_algorithms_learn_with_hindsight(algorithm):
    trained = model(algorithm).learn(60)

    buffer = trained.replay_buffer
    assert trained._n_updates > 0
    probabilities = buffer.prioritization.probabilities(np.array(sorted(sampleable(buffer))))
    assert len(set(probabilities)) > 3
    assert buffer.n_sampled_goal == 2


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
def test_a_model_loads_its_buffer_and_trains_on(tmp_path, truncate):
    trained = model().learn(50)
    trained.save(tmp_path / "model")
    trained.save_replay_buffer(tmp_path / "buffer")
    assert (len(trained.replay_buffer), trained.replay_buffer.n_sampleable) == (50, 30)

    loaded = PERDQN.load(tmp_path / "model", trained.get_env())
    loaded.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=truncate)

    assert loaded.replay_buffer.env is loaded.get_env()
    assert loaded.replay_buffer.n_sampleable == (50 if truncate else 30)
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.replay_buffer.n_sampled_goal == 2


def test_a_buffer_of_another_run_computes_rewards_with_the_new_environments():
    first, second = model(), model()
    first.learn(50)
    other = pickle.loads(pickle.dumps(first.replay_buffer))

    second.use_replay_buffer(other)

    assert other.env is second.get_env()
    assert other.n_sampleable == len(other) == 50  # its last episodes count as truncated
    second.learn(20)


def test_an_episode_never_joins_two_when_a_model_returns_to_a_buffer():
    trained = model(n_envs=1).learn(20)
    first = trained.replay_buffer
    trained.use_replay_buffer(model(n_envs=1).replay_buffer)
    trained.learn(12, reset_num_timesteps=False)

    trained.use_replay_buffer(first)
    trained.learn(10, reset_num_timesteps=False)

    assert first.ep_length[15:20, 0].tolist() == [5] * 5
    goals = first.observations["desired_goal"]
    for start, length in zip(first.ep_start[:30, 0], first.ep_length[:30, 0], strict=True):
        assert (goals[start : start + length] == goals[start]).all()


def test_rewards_for_new_goals_come_from_the_environments_of_set_env():
    trained, other = model().learn(50), model()

    trained.set_env(other.get_env())

    assert trained.replay_buffer.env is trained.get_env() is other.get_env()
    assert trained.replay_buffer.n_sampleable == 50  # the running episodes count as truncated
    trained.learn(20, reset_num_timesteps=False)


def test_a_second_training_begins_with_new_episodes():
    trained = model(n_envs=1).learn(50)

    trained.learn(12)

    assert trained.replay_buffer.ep_length[[0, 15, 30, 45, 49, 50], 0].tolist() == [
        *[15, 15, 15, 5, 5],
        0,
    ]


class FailsAtTheStart(BaseCallback):
    def _init_callback(self):
        raise ImportError("a package is missing")

    def _on_step(self):
        return True


def test_a_training_that_fails_after_the_environments_were_reset_ends_their_episodes():
    trained = model(n_envs=1).learn(20)
    with pytest.raises(ImportError):
        trained.learn(20, callback=FailsAtTheStart())

    trained.learn(10, reset_num_timesteps=False)

    assert trained.replay_buffer.ep_length[15:20, 0].tolist() == [5] * 5


class StopsAfter(BaseCallback):
    def __init__(self, n_steps, by_ctrl_c):
        super().__init__()
        self.n_steps, self.by_ctrl_c = n_steps, by_ctrl_c

    def _on_step(self):
        if self.n_calls == self.n_steps and self.by_ctrl_c:
            raise KeyboardInterrupt
        return self.n_calls < self.n_steps


@pytest.mark.parametrize("by_ctrl_c", [False, True])
def test_a_training_that_was_stopped_goes_on_with_new_episodes(by_ctrl_c):
    trained = model(n_envs=1)
    with contextlib.suppress(KeyboardInterrupt):
        trained.learn(100, callback=StopsAfter(20, by_ctrl_c))

    trained.learn(10, reset_num_timesteps=False)

    # SB3 drops the step at which the training stops.
    assert trained.replay_buffer.ep_length[15:19, 0].tolist() == [4] * 4


class WithoutRewards(gym.Env):
    """Spaces of the model's environments, but no way to compute rewards for other goals."""

    def __init__(self, n_bits):
        bits = BitFlippingEnv(n_bits)
        self.observation_space, self.action_space = bits.observation_space, bits.action_space


def test_environments_that_cannot_compute_rewards_are_refused_later_too():
    trained = model().learn(50)
    env, buffer = trained.get_env(), trained.replay_buffer
    without = make_vec_env(lambda: WithoutRewards(20), 2)

    with pytest.raises(ValueError, match="needs environments with a method compute_reward"):
        trained.set_env(without)

    assert trained.get_env() is env is buffer.env
    plain = PERDQN("MultiInputPolicy", without, buffer_size=300)
    own = plain.replay_buffer
    with pytest.raises(ValueError, match="needs environments with a method compute_reward"):
        plain.use_replay_buffer(buffer)
    assert plain.replay_buffer is own
    trained.learn(20, reset_num_timesteps=False)


def test_an_algorithm_needs_a_goal_environment(tmp_path):
    kind = {"replay_buffer_class": PrioritizedHerReplayBuffer}
    with pytest.raises(ValueError, match=r"needs Dict observations .*leave replay_buffer_class"):
        PERDQN("MlpPolicy", "CartPole-v1", **kind)
    model().save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"env to be a VecEnv, .*to load a model, pass env"):
        PERDQN.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_steps": 3}, "n_steps must be 1 .* got 3"),
        ({"optimize_memory_usage": True}, "optimize_memory_usage must be False"),
        ({"replay_buffer_kwargs": {"env": None}}, "has no option 'env'"),
        ({"replay_buffer_kwargs": {"n_goals": 3}}, "has no option 'n_goals'.*n_sampled_goal"),
    ],
)
def test_an_algorithm_refuses_what_hindsight_replay_cannot_do(options, message):
    with pytest.raises(ValueError, match=message):
        model(**options)
