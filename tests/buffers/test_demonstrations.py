"""Demonstrations: kept, replayed as often as stated, and weighted exactly."""

import pickle

import numpy as np
import pytest
import torch as th
from builders import (
    BOX,
    DICT,
    MEMORY_OPTIMISED,
    TWO_ACTIONS,
    fill,
    make_buffer,
    observation,
)
from checks import assert_same_batch, saved_and_loaded
from frequencies import SIGNIFICANCE, chi_square_p_value
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_per import (
    PrioritizedHerReplayBuffer,
    load_buffer,
    save_buffer,
)


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


def make(size=12, n_envs=1, space=BOX, **options):
    return make_buffer(size=size, n_envs=n_envs, space=space, **options)


def time_of(observations):
    """Return the time that an observation shows, (B,)."""
    return (observations["vector"] if isinstance(observations, dict) else observations)[:, 0]


# Storing.


@pytest.mark.parametrize("kind", ["proportional", "rank"])
@pytest.mark.parametrize(("n_envs", "space"), [(1, BOX), (3, DICT)])
def test_demonstrations_are_never_overwritten(kind, n_envs, space):
    buffer = make(6, n_envs, space, prioritization=kind, uniform_share=0.3)
    fill(buffer, 2)
    buffer.add_demonstrations(demonstrations(7, space))
    for step in range(2, 20):  # several times around
        fill(buffer, 1, first=step)
        batch = buffer.sample(8)
        buffer.update_priorities(batch.slots, np.ones(8))

    shown = np.arange(7) + buffer.n_slots
    assert time_of(buffer._get_samples(shown).observations).tolist() == [*range(500, 507)]
    agents = buffer._get_samples(np.arange(buffer.n_slots))
    assert {*time_of(agents.observations).tolist()} == {*range(14, 20)}
    assert (buffer.n_demonstrations, buffer.n_sampleable) == (7, 7 + buffer.n_slots)
    assert buffer.probabilities(np.arange(buffer.n_slots + 7)).sum() == pytest.approx(1)


def test_reset_forgets_demonstrations():
    buffer = make()
    buffer.add_demonstrations(demonstrations(5))

    buffer.reset()

    assert buffer.n_demonstrations == buffer.n_sampleable == 0


def test_cleared_buffer_keeps_its_demonstrations():
    buffer = fill(make(), 5)
    buffer.add_demonstrations(demonstrations(4))

    buffer.pos = 0

    assert set(buffer.sample(50).slots) == {12, 13, 14, 15}


def test_demonstrations_in_memory_optimised_storage():
    buffer = fill(make(6, 2, **MEMORY_OPTIMISED), 9)
    buffer.add_demonstrations(demonstrations(5, ends=[2]), demonstrations(4))

    batch = buffer._get_samples(np.arange(9) + buffer.n_slots)

    assert time_of(batch.observations).tolist() == [*range(500, 505), *range(500, 504)]
    assert batch.dones.flatten().tolist() == [0, 0, 1, 0, 1, 0, 0, 0, 1]
    goes_on = batch.dones.flatten() == 0
    following = time_of(batch.observations)[goes_on] + 1
    assert time_of(batch.next_observations)[goes_on].tolist() == following.tolist()
    assert set(buffer.sample(200).slots) >= set(range(12, 21))


def test_demonstrations_may_be_added_again():
    buffer = make(info_keys=["cost"])
    for first in (1.0, 6.0):
        infos = {"cost": np.arange(first, first + 5)}
        buffer.add_demonstrations({**demonstrations(5, cuts=[1]), "infos": infos})

    assert buffer.n_demonstrations == 10
    batch = buffer.sample(50)  # the agent has not played yet
    assert np.array_equal(batch.infos["cost"][:, 0], batch.slots - 11)
    assert np.flatnonzero(buffer.demonstrations.timeouts).tolist() == [1, 4, 6, 9]


@pytest.mark.parametrize("size", [8, 5])
def test_cut_episode_stays_cut_without_time_limits(size, tmp_path):
    # Without handle_timeout_termination, a time limit ends an episode as done; no more data do not.
    options = {"handle_timeout_termination": False, "n_steps": 2}
    buffer = make(8, **options)
    buffer.add_demonstrations(demonstrations(4, cuts=[1]))
    save_buffer(buffer, tmp_path / "buffer.npz")
    loaded = make(size, **options)
    load_buffer(tmp_path / "buffer.npz", loaded)
    from_buffer = make(8, **options)
    from_buffer.add_demonstrations(buffer.demonstrations)

    for one in (buffer, loaded, from_buffer):
        one.add_demonstrations(demonstrations(2))

        found = one._get_samples(np.arange(6) + one.n_slots)

        assert found.dones[:, 0].tolist() == [1, 1, 0, 0, 0, 0]
        assert time_of(found.next_observations).tolist() == [502, 502, 504, 504, 502, 502]


# Sampling.

TD_ERRORS = np.array([0.1, 2, 0, 1, 3, 0.5, 5, 1, 0.2, 1])
AGENTS, SHOWN = np.arange(6), np.arange(4) + 12


def with_td_errors(share=0.3, uniform_share=0.0, alpha=0.6, **options):
    """Six transitions of the agent, whose TD errors come first, and four demonstrations."""
    options |= {"demonstration_share": share, "uniform_share": uniform_share, "alpha": alpha}
    buffer = fill(make(**options), 6)
    buffer.add_demonstrations(demonstrations(4))
    buffer.generator = np.random.default_rng(0)
    buffer.update_priorities(np.concatenate([AGENTS, SHOWN]), TD_ERRORS)
    return buffer


def expected_probabilities(share, uniform_share=0.0, alpha=0.6):
    """By slot, from the definition."""
    found = np.zeros(16)
    for slots, errors, part in ((AGENTS, TD_ERRORS[:6], 1 - share), (SHOWN, TD_ERRORS[6:], share)):
        powers = (errors + 1e-6) ** alpha
        by_priority = (1 - uniform_share) * powers / powers.sum()
        found[slots] = part * (uniform_share / len(slots) + by_priority)
    return found


def sampled(buffer, batch_size, n_batches):
    """Return the slots and the weights of many batches, (n_batches, B) each."""
    batches = []
    for _ in range(n_batches):
        batches.append(buffer.sample(batch_size))
        buffer.update_priorities([], [])  # priorities stay
    return (
        np.stack([batch.slots for batch in batches]),
        np.stack([batch.host_weights[:, 0] for batch in batches]),
    )


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("uniform_share", [0.0, 0.4])
def test_frequencies_are_those_of_the_mixture(stratified, uniform_share):
    buffer = with_td_errors(0.3, uniform_share, stratified=stratified)

    counts = np.bincount(sampled(buffer, 10, 1000)[0].ravel(), minlength=16)

    expected = expected_probabilities(0.3, uniform_share)
    np.testing.assert_allclose(buffer.probabilities(np.arange(16)), expected, rtol=1e-9)
    assert chi_square_p_value(counts, expected) > SIGNIFICANCE
    wrong = expected_probabilities(0.4, uniform_share)
    assert chi_square_p_value(counts, wrong) < SIGNIFICANCE


@pytest.mark.parametrize(
    ("share", "batch_size", "n"),
    [
        *[(0.5, 8, 4), (0.25, 8, 2), (0.0, 8, 0), (1.0, 8, 8), (0.01, 8, 1), (0.99, 8, 7)],
        *[(0.3, 8, 2), (0.4, 1, 0), (0.75, 1, 1)],
    ],
)
def test_batch_has_a_fixed_number_of_demonstrations(share, batch_size, n):
    slots, _ = sampled(with_td_errors(share), batch_size, 20)

    assert ((slots >= 12).sum(axis=1) == n).all()


def test_demonstrations_follow_the_device_of_the_buffer():
    buffer = with_td_errors()

    buffer.device = th.device("meta")  # any other device; an algorithm changes it for a while

    batch = buffer.sample(8)
    assert batch.rewards.device.type == batch.observations.device.type == "meta"


@pytest.mark.parametrize(("n_steps", "discounts"), [(1, None), (2, {0.25})])
def test_demonstrations_follow_the_returns_of_the_buffer(n_steps, discounts):
    buffer = fill(make(n_steps=3), 6)
    buffer.add_demonstrations(demonstrations(9))
    buffer.n_steps, buffer.gamma = n_steps, 0.5

    of_demonstrations = buffer.demonstrations.n_slots - 2  # with two steps to come
    slots = np.concatenate([np.arange(4), buffer.n_slots + np.arange(of_demonstrations)])
    found = buffer._get_samples(slots).discounts
    assert (None if found is None else {*found[:, 0].tolist()}) == discounts


def test_buffer_of_sb3_replaces_no_demonstrations():
    buffer = make(12)
    buffer.add_demonstrations(demonstrations(9))

    buffer._refill_from(sb3_buffer(12, 5))

    assert (len(buffer), buffer.n_demonstrations) == (5, 9)


def test_batch_has_demonstrations_alone_until_the_agent_plays():
    buffer = make()
    buffer.add_demonstrations(demonstrations(4))

    assert (buffer.sample(8).slots >= 12).all()
    assert buffer.probabilities(SHOWN).tolist() == [0.25] * 4
    assert buffer.sample(8).weights.tolist() == [[1]] * 8


@pytest.mark.parametrize("normalization", ["batch", "mean", "none"])
@pytest.mark.parametrize("batch_size", [8, 9])
def test_weights_use_the_probability_within_each_part(normalization, batch_size):
    options = {"weight_normalization": normalization, "beta": 0.5, "uniform_share": 0.2}
    buffer = with_td_errors(0.3, **options)

    shares = expected_probabilities(0.5, 0.2) * 2  # within each part
    for slots, weights in zip(*sampled(buffer, batch_size, 20), strict=True):
        expected = (np.where(slots < 12, 6, 4) * shares[slots]) ** -0.5
        divisors = {"batch": expected.max(), "mean": expected.mean(), "none": 1}
        np.testing.assert_allclose(weights, expected / divisors[normalization], rtol=1e-6)


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("replacement", [True, False])
def test_weights_of_a_transition_add_up_to_uniform_sampling(stratified, replacement):
    """With beta 1, N / n times its weights add up to 1 on average: n samples of N in its part."""
    options = {"stratified": stratified, "replacement": replacement, "beta": 1.0}
    buffer = with_td_errors(0.4, weight_normalization="none", **options)
    n_batches = 20_000

    slots, weights = sampled(buffer, 5, n_batches)

    found = np.zeros((n_batches, 16))
    size_and_samples = np.where(slots < 12, 6 / 3, 4 / 2)
    np.add.at(found, (np.arange(n_batches)[:, None], slots), size_and_samples * weights)
    stored = np.concatenate([AGENTS, SHOWN])
    errors = found.std(axis=0)[stored] / np.sqrt(n_batches)
    is_frequent = (found[:, stored] > 0).sum(axis=0) > 1000
    assert is_frequent.sum() > 7
    deviations = np.abs(found.mean(axis=0)[stored] - 1) / np.maximum(errors, 1e-9)
    assert (deviations[is_frequent] < 5).all()


def test_td_errors_that_are_not_finite_change_nothing():
    buffer = with_td_errors()
    before = buffer.probabilities(np.arange(16))

    for slots, errors, named in (
        ([0, 13], [9.0, np.nan], "nan for slot 13"),
        ([0, 16], [9.0, 1.0], r"\[0, 16\), got 16"),
        ([13, -1], [9.0, 1.0], "got -1"),
    ):
        with pytest.raises(ValueError, match=named):
            buffer.update_priorities(slots, errors)
        assert buffer.probabilities(np.arange(16)).tolist() == before.tolist()


# Files.


@pytest.mark.parametrize("n_envs", [1, 3])
def test_stored_buffer_keeps_its_demonstrations(n_envs, tmp_path):
    buffer = make(8, n_envs, DICT, demonstration_share=0.3, uniform_share=0.2)
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


def test_buffer_as_a_source_brings_its_demonstrations():
    buffer, other = make(8), fill(make(8), 4)
    other.add_demonstrations(demonstrations(3))

    buffer.add_demonstrations(other)

    assert buffer.n_demonstrations == 7


def test_file_with_demonstrations_needs_a_fitting_buffer(tmp_path):
    buffer = make(8)
    buffer.add_demonstrations(demonstrations(3))
    save_buffer(buffer, tmp_path / "buffer.npz")
    for size in (8, 5):
        other = fill(make(size, weight_normalization="buffer"), 4)

        with pytest.raises(ValueError, match="demonstrations do not work with"):
            load_buffer(tmp_path / "buffer.npz", other)

        assert len(other) == 4


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

    found = buffer._get_samples(np.arange(buffer.n_demonstrations) + 20)

    assert time_of(found.observations).tolist() == times * n_envs
    cut, end = n_added - 3, n_added - 2  # of the first environment
    for i, time in enumerate(times * n_envs):
        is_first = i < len(times)
        cuts = [times[-1], *([end, *([] if optimized else [cut])] if is_first else [])]
        last = time if time in cuts else time + 1
        assert time_of(found.next_observations)[i] == last + 1
        assert found.dones[i] == (is_first and last == end)
    rewards = [t + env / 10 for env in range(n_envs) for t in times]
    assert np.allclose(buffer.demonstrations.rewards[:, 0], rewards)


# Mistakes.


@pytest.mark.parametrize(
    ("changes", "error", "rule"),
    [
        ({"observations": np.zeros((5, 3))}, ValueError, "observations must be 5 elements of Box"),
        ({"next_observations": np.zeros((4, 2))}, ValueError, "next_observations must be 5 "),
        ({"actions": np.zeros(4, int)}, ValueError, "actions must be 5 elements"),
        ({"actions": np.full(5, 7)}, ValueError, r"actions must be elements of Discrete.*, got 7"),
        ({"actions": np.full(5, -1)}, ValueError, "actions must be elements of .*, got -1"),
        ({"actions": np.full(5, 0.9)}, ValueError, "actions must be 5 elements .*, got float64"),
        ({"terminations": np.zeros(6)}, ValueError, "terminations must have 5 values, as .* got 6"),
        ({"infos": {}}, KeyError, "cost"),
        ({"infos": {"cost": np.zeros(4)}}, ValueError, "'cost'.* must have 5 values, as .* got 4"),
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
    assert buffer.demonstrations is None


class EmptyDataset:
    def iterate_episodes(self):
        return iter(())


@pytest.mark.parametrize("optimize_memory_usage", [True, False])
def test_sources_without_transitions_are_refused(optimize_memory_usage):
    buffer = make(optimize_memory_usage=optimize_memory_usage, handle_timeout_termination=False)
    none = {name: values[:0] for name, values in demonstrations(1).items()}
    for sources in ([], [make()], [none], [EmptyDataset()]):
        with pytest.raises(ValueError, match=r"at least one (episode|transition)"):
            buffer.add_demonstrations(*sources)
    assert_is_empty(buffer)


def test_unknown_sources_are_refused(tmp_path):
    save_buffer(make(), tmp_path / "buffer.pkl")
    (tmp_path / "empty.pkl").touch()
    for source, rule in (
        ([1, 2], r"must be a dict of arrays, a ReplayBuffer .*, got list"),
        (tmp_path / "buffer.pkl", "fill a buffer with load_buffer"),
        (str(tmp_path / "empty"), "must be a whole file of save_replay_buffer"),
    ):
        with pytest.raises(ValueError, match=rule):
            make().add_demonstrations(source)


def test_transitions_are_in_the_order_of_their_slots():
    """Also if a subclass mixes those of the agent and those of demonstrations."""
    buffer = make()
    fill(buffer, 5)
    buffer.add_demonstrations(demonstrations(5))
    slots = np.array([14, 0, 12, 1, 13])

    batch = buffer._get_samples(slots)

    assert time_of(batch.observations).tolist() == [502, 0, 500, 1, 501]
    assert batch.rewards.ravel().tolist() == [102, 0, 100, 1, 101]


def test_buffers_that_cannot_have_demonstrations_refuse_them():
    goals = spaces.Dict(dict.fromkeys(["observation", "achieved_goal", "desired_goal"], BOX))
    for buffer in (
        PrioritizedHerReplayBuffer(12, goals, TWO_ACTIONS, None),
        make(weight_normalization="buffer"),
    ):
        with pytest.raises(ValueError, match="demonstrations do not work with"):
            buffer.add_demonstrations(demonstrations(5))
        assert buffer.n_demonstrations == 0
