"""Demonstrations: kept, replayed as often as stated, and joined into n-step returns correctly."""

import pickle

import numpy as np
import pytest
from builders import BOX, DICT, TWO_ACTIONS, fill, observation
from checks import assert_same_batch, saved_and_loaded
from frequencies import SIGNIFICANCE, chi_square_p_value
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
)

GAMMA = 0.9


def observation_of(space, steps):
    parts = [observation(space, step, 1) for step in steps]
    if isinstance(space, spaces.Dict):
        return {key: np.concatenate([part[key] for part in parts]) for key in space}
    return np.concatenate(parts)


def demonstrations(n, space=BOX, ends=(), cuts=()):
    """Step t sees 500 + t, acts t % 2 and earns 100 + t; it ends or cuts the episode in these."""
    steps = np.arange(n)
    return {
        "observations": observation_of(space, 500 + steps),
        "actions": steps % 2,
        "rewards": 100.0 + steps,
        "next_observations": observation_of(space, 501 + steps),
        "terminations": np.isin(steps, ends),
        "truncations": np.isin(steps, cuts),
    }


def make(n_rows=12, n_envs=1, space=BOX, **options):
    has_dict = isinstance(space, spaces.Dict)
    kind = PrioritizedDictReplayBuffer if has_dict else PrioritizedReplayBuffer
    return kind(n_rows * n_envs, space, TWO_ACTIONS, "cpu", n_envs=n_envs, **options)


def time_of(observations):
    """Return the time that an observation shows, (B,)."""
    return (observations["vector"] if isinstance(observations, dict) else observations)[:, 0]


# Storing.


@pytest.mark.parametrize("kind", ["proportional", "rank"])
@pytest.mark.parametrize(("n_envs", "n", "space"), [(1, 3, BOX), (3, 6, BOX), (3, 7, DICT)])
def test_demonstrations_are_never_overwritten(kind, n_envs, n, space):
    buffer = make(6, n_envs, space, prioritization=kind, uniform_share=0.3)
    buffer.add_demonstrations(demonstrations(n, space))
    n_rows = -(-n // n_envs)
    for step in range(20):  # several times around
        fill(buffer, 1, first=step)
        batch = buffer.sample(8)
        buffer.update_priorities(batch.slots, np.ones(8))

    n_free = buffer.buffer_size - n_rows
    stored = buffer._get_samples(np.arange(n))
    agents = np.arange(n_rows * n_envs, buffer.n_slots)
    assert sorted(time_of(stored.observations)) == [*range(500, 500 + n)]
    times = time_of(buffer._get_samples(agents).observations)
    assert {*times.tolist()} == {*range(20 - n_free, 20)}
    probabilities = buffer.probabilities(np.arange(buffer.n_slots))
    assert np.flatnonzero(probabilities).tolist() == [*range(n), *agents]
    assert buffer.n_demonstrations == n
    assert buffer.n_sampleable == n + n_free * n_envs
    assert probabilities.sum() == pytest.approx(1)


def test_reset_forgets_demonstrations():
    buffer = make()
    buffer.add_demonstrations(demonstrations(5))
    buffer.reset()

    fill(buffer, 30)

    assert buffer.n_demonstrations == 0
    assert time_of(buffer._get_samples(np.arange(12)).observations).max() == 29


def n_step_transition(steps, i, n_steps=4):
    """Return the return, the time of the last next observation, done and discount, step by step."""
    total, steps = 0.0, steps[i : i + n_steps]
    for n_taken, (reward, next_time, is_done, is_end) in enumerate(steps, start=1):
        total += GAMMA ** (n_taken - 1) * reward
        if is_end or n_taken == len(steps):
            return total, next_time, is_done, GAMMA**n_taken
    raise AssertionError


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n", [6, 8])
@pytest.mark.parametrize("n_agent_rows", [0, 3, 7, 40])
def test_n_step_returns_stay_within_demonstrations(n_envs, n, n_agent_rows):
    buffer = make(12, n_envs, n_steps=4, gamma=GAMMA)
    buffer.add_demonstrations(demonstrations(n, ends=[2], cuts=[4]))
    cuts, ends = [(step, 0) for step in range(3, 99, 5)], [(s, n_envs - 1) for s in range(1, 99, 7)]
    fill(buffer, n_agent_rows, done_at=ends, truncated_at=cuts)

    shown = [(100 + t, 501 + t, t == 2, t in (2, 4)) for t in range(n)]
    n_rows = -(-n // n_envs)
    n_kept = min(n_agent_rows, 12 - n_rows)
    first = 0
    for env in range(n_envs):
        steps = shown[first : first + len(range(env, n, n_envs))]
        slots = [(env + i * n_envs, n_step_transition(steps, i)) for i in range(len(steps))]
        first += len(steps)
        played = [
            (
                t + env / 10,
                t + 1,
                (t, env) in ends and (t, env) not in cuts,
                (t, env) in ends + cuts,
            )
            for t in range(n_agent_rows - n_kept, n_agent_rows)
        ]
        for i in range(n_kept):
            row = n_rows + (n_agent_rows - n_kept + i) % (12 - n_rows)
            slots.append((row * n_envs + env, n_step_transition(played, i)))
        batch = buffer._get_samples(np.array([slot for slot, _ in slots]))
        found = (batch.rewards, time_of(batch.next_observations), batch.dones, batch.discounts)
        for values, expected in zip(found, zip(*[x for _, x in slots], strict=True), strict=True):
            np.testing.assert_allclose(values.flatten(), np.array(expected, float), rtol=1e-6)


# Sampling.


def expected_probabilities(td_errors, n_demonstrations, share, uniform_share, bonus=0.0, alpha=0.6):
    """Of the mixture, from its definition."""
    is_demonstration = np.arange(len(td_errors)) < n_demonstrations
    powers = (np.abs(td_errors) + bonus * is_demonstration + 1e-6) ** alpha
    by_priority = uniform_share / len(powers) + (1 - uniform_share) * powers / powers.sum()
    return share * is_demonstration / n_demonstrations + (1 - share) * by_priority


def with_td_errors(share=0.3, uniform_share=0.0, **options):
    buffer = make(demonstration_share=share, uniform_share=uniform_share, **options)
    buffer.add_demonstrations(demonstrations(4))
    fill(buffer, 6)
    buffer.generator = np.random.default_rng(0)
    buffer.update_priorities(np.arange(10), TD_ERRORS)
    return buffer


def sampled(buffer, batch_size, n_batches):
    """Return the slots and the weights of many batches."""
    slots, weights = [], []
    for _ in range(n_batches):
        batch = buffer.sample(batch_size)
        slots.append(batch.slots)
        weights.append(batch.weights.flatten())
        buffer.update_priorities([], [])  # priorities stay
    return np.concatenate(slots), np.concatenate(weights)


TD_ERRORS = np.array([0.1, 2, 0, 1, 3, 0.5, 5, 1, 0.2, 1])


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("uniform_share", [0.0, 0.4])
def test_frequencies_are_those_of_the_mixture(stratified, uniform_share):
    buffer = with_td_errors(uniform_share=uniform_share, stratified=stratified)

    expected = expected_probabilities(TD_ERRORS, 4, 0.3, uniform_share)
    counts = np.bincount(sampled(buffer, 7, 1500)[0])

    np.testing.assert_allclose(buffer.probabilities(np.arange(10)), expected, rtol=1e-9)
    assert chi_square_p_value(counts, expected) > SIGNIFICANCE
    wrong = expected_probabilities(TD_ERRORS, 4, 0.4, uniform_share)
    assert chi_square_p_value(counts, wrong) < SIGNIFICANCE


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_weights_use_the_probability_under_the_mixture(share):
    buffer = with_td_errors(share, weight_normalization="none", beta=0.5)

    slots, weights = sampled(buffer, 8, 50)

    expected = (10 * expected_probabilities(TD_ERRORS, 4, share, 0.0)[slots]) ** -0.5
    assert (slots < 4).all() == (share == 1)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_share_of_each_batch_comes_from_demonstrations():
    buffer = make(demonstration_share=0.25, alpha=1.0)
    buffer.add_demonstrations(demonstrations(4))
    assert (buffer.sample(8).slots < 4).all()  # the agent has no transitions yet
    fill(buffer, 8)
    buffer.update_priorities(np.arange(12), np.where(np.arange(12) < 4, 0, 1.0))

    slots, _ = sampled(buffer, 8, 50)

    # By priority, a demonstration would come once in a million samples.
    assert ((slots < 4).reshape(50, 8).sum(axis=1) == 2).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_bonus_is_added_to_the_td_errors_of_demonstrations(sign):
    buffer = with_td_errors(share=0.0, demonstration_bonus=2.0)

    buffer.update_priorities(np.arange(10), sign * TD_ERRORS)

    by_hand = expected_probabilities(TD_ERRORS, 4, 0.0, 0.0, bonus=2.0)
    np.testing.assert_allclose(buffer.probabilities(np.arange(10)), by_hand, rtol=1e-9)


# Files.


@pytest.mark.parametrize("n_envs", [1, 3])
def test_stored_buffer_keeps_its_demonstrations(n_envs, tmp_path):
    options = {"demonstration_share": 0.3, "demonstration_bonus": 0.5, "uniform_share": 0.2}
    buffer = make(8, n_envs, DICT, **options)
    buffer.add_demonstrations(demonstrations(7, DICT))
    fill(buffer, 20)
    buffer.update_priorities(buffer.sample(6).slots, np.arange(6))

    loaded = saved_and_loaded(buffer, tmp_path / "buffer.npz"), pickle.loads(pickle.dumps(buffer))

    for _ in range(2):
        batch = buffer.sample(16)
        for one in loaded:
            assert_same_batch(one.sample(16), batch)
            assert one.n_demonstrations == 7
        for one in (buffer, *loaded):
            fill(one, 20, first=20)


# Sources.


def sb3_buffer(n_rows, n_added, n_envs=1, space=BOX, optimized=False):
    kind = DictReplayBuffer if isinstance(space, spaces.Dict) else ReplayBuffer
    options = {"optimize_memory_usage": optimized, "handle_timeout_termination": not optimized}
    buffer = kind(n_rows * n_envs, space, TWO_ACTIONS, "cpu", n_envs, **options)
    cuts = [] if optimized else [(n_added - 3, 0)]
    return fill(buffer, n_added, done_at=[(n_added - 2, 0)], truncated_at=cuts)


@pytest.mark.parametrize("through_pickle", [False, True])
@pytest.mark.parametrize(
    ("n_added", "n_envs", "space", "optimized", "times"),
    [
        (4, 1, BOX, False, [0, 1, 2, 3]),
        (9, 1, BOX, False, [3, 4, 5, 6, 7, 8]),
        (9, 2, DICT, False, [3, 4, 5, 6, 7, 8]),
        (4, 2, BOX, True, [0, 1, 2, 3]),
        (9, 2, BOX, True, [4, 5, 6, 7, 8]),
    ],
)
def test_sb3_buffers_are_sources(
    n_added, n_envs, space, optimized, times, through_pickle, tmp_path
):
    source = sb3_buffer(6, n_added, n_envs, space, optimized)
    if through_pickle:
        (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(source))
        source = tmp_path / "buffer.pkl"
    buffer = make(20, 1, space, n_steps=2, gamma=1.0)
    buffer.add_demonstrations(source)

    found = buffer._get_samples(np.arange(buffer.n_demonstrations))

    assert time_of(found.observations).tolist() == times * n_envs
    cut, end = n_added - 3, n_added - 2  # of the first environment
    for i, time in enumerate(times * n_envs):
        is_first = i < len(times)
        cuts = [times[-1], *([end, *([] if optimized else [cut])] if is_first else [])]
        last = time if time in cuts else time + 1
        assert time_of(found.next_observations)[i] == last + 1
        assert found.dones[i] == (is_first and last == end)
    rewards = [t + env / 10 for env in range(n_envs) for t in times]
    assert np.allclose(buffer.rewards[: len(rewards), 0], rewards)


def test_episode_ends_between_two_sources():
    buffer = make(20, n_steps=3, gamma=1.0)
    buffer.add_demonstrations(demonstrations(3), sb3_buffer(5, 4), demonstrations(2))

    found = buffer._get_samples(np.arange(9))

    assert time_of(found.observations).tolist() == [500, 501, 502, 0, 1, 2, 3, 500, 501]
    assert time_of(found.next_observations).tolist() == [503, 503, 503, 2, 2, 3, 4, 502, 502]


# Mistakes.


@pytest.mark.parametrize(
    ("changes", "error", "rule"),
    [
        ({"observations": np.zeros((5, 3))}, ValueError, "observations must be 5 elements of Box"),
        ({"next_observations": np.zeros((4, 2))}, ValueError, "next_observations must be 5 "),
        ({"actions": np.zeros(4, int)}, ValueError, "actions must be 5 elements"),
        ({"actions": np.full(5, 0.9)}, ValueError, "actions must be 5 elements .*, got float64"),
        ({"terminations": np.zeros(6)}, ValueError, "cannot reshape"),
        ({"infos": {}}, KeyError, "cost"),
        ({"infos": {"cost": np.zeros(4)}}, ValueError, "'cost'.* must have 5 values, got 4"),
        ({"infos": {"cost": np.full(5, "a")}}, ValueError, "must be numbers"),
    ],
)
def test_demonstrations_that_do_not_fit_change_nothing(changes, error, rule):
    buffer = make(info_keys=["cost"])
    good = {**demonstrations(5), "infos": {"cost": np.zeros(5)}}

    with pytest.raises(error, match=rule):
        buffer.add_demonstrations(good, {**good, **changes})

    assert_is_empty(buffer)
    buffer.add_demonstrations(good)
    assert buffer.n_demonstrations == 5


def assert_is_empty(buffer):
    assert (len(buffer), buffer.n_demonstrations, buffer.n_sampleable) == (0, 0, 0)
    assert buffer.info_arrays == {}
    assert not buffer.rewards.any()


@pytest.mark.parametrize(
    ("sources", "rule"),
    [
        ([demonstrations(12)], "buffer_size must be larger than the 12 demonstrations"),
        ([[1, 2]], "must be a dict of arrays, a ReplayBuffer .*, got list"),
    ],
)
def test_too_many_and_unknown_sources_are_refused(sources, rule):
    buffer = make()

    with pytest.raises(ValueError, match=rule):
        buffer.add_demonstrations(*sources)
    assert_is_empty(buffer)


def test_demonstrations_come_first_and_in_one_call():
    buffer = fill(make(), 1)
    with pytest.raises(ValueError, match=r"an empty buffer, all in one call, got .* 1 transitions"):
        buffer.add_demonstrations(demonstrations(5))

    buffer = make()
    buffer.add_demonstrations(demonstrations(5))
    with pytest.raises(ValueError, match="an empty buffer"):
        buffer.add_demonstrations(demonstrations(5))
    with pytest.raises(ValueError, match="with demonstrations cannot fill another"):
        make(30).add_demonstrations(buffer)


def test_buffers_that_cannot_hold_demonstrations_refuse_them():
    goals = spaces.Dict(dict.fromkeys(["observation", "achieved_goal", "desired_goal"], BOX))
    for buffer in (
        PrioritizedHerReplayBuffer(12, goals, TWO_ACTIONS, None),
        make(optimize_memory_usage=True, handle_timeout_termination=False),
    ):
        with pytest.raises(ValueError, match="demonstrations do not work with"):
            buffer.add_demonstrations(demonstrations(5))
        assert len(buffer) == buffer.n_demonstrations == 0
