import numpy as np
import pytest
from frequencies import SIGNIFICANCE, chi_square_p_value
from hypothesis import given
from hypothesis import strategies as st
from naive import NaiveRanks, drive_both
from sb3_per.prioritization.sampling import SamplingScheme

from sb3_per.prioritization.rank_based import RankBased

N_SLOTS = 70
EVERYONE = np.arange(N_SLOTS)
slots_lists = st.lists(st.integers(0, N_SLOTS - 1), min_size=1, max_size=20, unique=True)
errors = st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-1e6, 1e6))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), slots_lists),
        st.tuples(st.just("remove"), slots_lists),
        st.tuples(st.just("update"), st.lists(st.tuples(st.integers(0, 99), errors), max_size=40)),
    ),
    max_size=15,
)


def ranked(td_errors, **options):
    rank_based = RankBased(len(td_errors), **options)
    rank_based.insert(np.arange(len(td_errors)))
    rank_based.update(np.arange(len(td_errors)), np.asarray(td_errors, dtype=np.float64))
    return rank_based


@given(
    operations,
    st.sampled_from([0.0, 0.5, 0.7, 1.0]),
    st.sampled_from([1e-3, 1.0]),
    st.sampled_from(["max_seen", "max_stored"]),
)
def test_probabilities_are_those_of_an_argsort(steps, alpha, initial, new_priority):
    fast = RankBased(N_SLOTS, alpha=alpha, initial_priority=initial, new_priority=new_priority)
    naive = NaiveRanks(N_SLOTS, alpha, initial, new_priority)

    drive_both(fast, naive, steps)

    if naive.inserted():
        expected = naive.probabilities()
        np.testing.assert_allclose(fast.probabilities(EVERYONE), expected, rtol=1e-12)
        assert fast.largest_priority == naive.largest_seen


def test_ranks_are_worked_out_by_hand():
    rank_based = ranked([0.1, -5.0, 3.0], alpha=1.0)

    shares = rank_based.probabilities(np.arange(3))

    np.testing.assert_allclose(shares, np.array([1 / 3, 1, 1 / 2]) / (1 + 1 / 2 + 1 / 3))


def test_an_interrupted_insertion_is_completed_by_the_next_one(monkeypatch):
    rank_based = ranked([0.1, -5.0, 3.0, 0.5])
    rank_based.remove(np.array([3]))

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rank_based._tree, "set", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rank_based.insert(np.array([3]))

    rank_based.insert(np.arange(4))
    again = RankBased(4)
    again.restore(rank_based.state())
    assert rank_based.probabilities(np.arange(4)).min() > 0
    assert rank_based.probabilities(np.arange(4)).sum() == pytest.approx(1)


def test_new_transitions_enter_at_the_top():
    rank_based = RankBased(4, alpha=1.0)
    rank_based.insert(np.array([0, 1, 2]))
    rank_based.update(np.array([0, 1]), np.array([50.0, 0.5]))

    rank_based.insert(np.array([3]))

    order = np.argsort(-rank_based.probabilities(np.arange(4)))
    assert order.tolist() == [3, 0, 2, 1]


@pytest.mark.parametrize("n_slots", [1, 2, 7, 1000, 2**17])
def test_independent_draws_follow_the_ranks(n_slots):
    td_errors = np.random.default_rng(n_slots).permutation(n_slots) + 1.0
    rank_based, n_draws = ranked(td_errors, alpha=0.7), 400_000

    drawn = rank_based.sample(
        SamplingScheme(stratified=False), n_draws, np.random.default_rng(1).random(n_draws)
    )

    powers = (n_slots + 1 - td_errors) ** -0.7
    counts = np.bincount(drawn.slots, minlength=n_slots)
    assert chi_square_p_value(counts, powers / powers.sum()) > SIGNIFICANCE
    np.testing.assert_allclose(drawn.probabilities, (powers / powers.sum())[drawn.slots])


@pytest.mark.parametrize("n_slots", [2, 7, 1000, 2**17])
def test_the_same_test_rejects_a_slightly_smaller_alpha(n_slots):
    td_errors = np.random.default_rng(n_slots).permutation(n_slots) + 1.0
    wrong, n_draws = ranked(td_errors, alpha=0.65), 400_000

    drawn = wrong.sample(
        SamplingScheme(stratified=False), n_draws, np.random.default_rng(1).random(n_draws)
    )

    powers = (n_slots + 1 - td_errors) ** -0.7
    counts = np.bincount(drawn.slots, minlength=n_slots)
    assert chi_square_p_value(counts, powers / powers.sum()) < SIGNIFICANCE


def test_the_drawn_distribution_stays_exact_under_live_updates():
    """Total variation distance to an argsort's distribution, after every thousand updates."""
    random, n_slots = np.random.default_rng(0), 1000
    td_errors = random.exponential(size=n_slots)
    rank_based = ranked(td_errors, alpha=0.7)
    powers = np.arange(1, n_slots + 1) ** -0.7

    for _ in range(20):
        for _ in range(30):
            slots = rank_based.sample(SamplingScheme(), 32, random.random(32)).slots
            new_errors = random.exponential(size=32)
            rank_based.update(slots, new_errors)
            td_errors[slots] = new_errors
        exact = np.empty(n_slots)
        exact[np.argsort(-td_errors, kind="stable")] = powers / powers.sum()
        distance = np.abs(rank_based.probabilities(np.arange(n_slots)) - exact).sum() / 2
        assert distance < 1e-12


def test_clipped_errors_tie_and_their_priorities_are_bounded():
    rank_based = ranked([5.0, 0.5, 9.0], td_error_clip=1.0, initial_priority=0.1)

    first, second = np.argsort(-rank_based.probabilities(np.arange(3)))[:2]

    assert {first, second} == {0, 2}
    assert rank_based.largest_priority == pytest.approx(1.0, abs=1e-5)


def test_the_smallest_probability_is_that_of_the_last_rank():
    rank_based = ranked([3.0, 1.0, 2.0], alpha=1.0)

    drawn = rank_based.sample(SamplingScheme(), 4, np.full(4, 0.5), with_smallest=True)

    assert drawn.smallest_probability == rank_based.probabilities(np.array([1]))[0]


def test_removed_slots_are_not_drawn_and_their_ranks_move_up():
    rank_based = ranked([4.0, 3.0, 2.0, 1.0], alpha=1.0)

    rank_based.remove(np.array([0, 2]))
    rank_based.remove(np.array([0]))

    np.testing.assert_allclose(rank_based.probabilities(np.arange(4)), [0, 2 / 3, 0, 1 / 3])


def test_an_eps_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"eps must stay .* cannot affect ranks, got 0.01"):
        RankBased(4, eps=0.01)


def test_at_most_sixty_four_bytes_a_slot():
    rank_based = RankBased(1_000_000)

    order, tree = rank_based._order._tree, rank_based._tree
    assert sum(array.nbytes for array in order) + tree.nodes.nbytes <= 64 * 1_000_000
