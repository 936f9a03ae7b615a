import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import NaiveRanks, check_same, operations

from sb3_per.prioritization.rank_based import RankBased


def ranked(td_errors, **options):
    rank_based = RankBased(len(td_errors), **options)
    rank_based.insert(np.arange(len(td_errors)))
    rank_based.update(np.arange(len(td_errors)), np.asarray(td_errors, dtype=np.float64))
    return rank_based


@given(
    operations(70),
    st.sampled_from([0.0, 0.5, 0.7, 1.0]),
    st.sampled_from([np.inf, 1.0]),
    st.sampled_from([1e-3, 1.0]),
    st.sampled_from(["max_seen", "max_stored"]),
)
def test_probabilities_are_those_of_a_sort(steps, alpha, clip, initial, new_priority):
    options = {"initial_priority": initial, "new_priority": new_priority}
    fast = RankBased(70, alpha=alpha, td_error_clip=None if clip == np.inf else clip, **options)
    check_same(fast, NaiveRanks(70, alpha, clip, initial, new_priority), steps)


def test_interrupted_insertion_is_completed_by_the_next_one(monkeypatch):
    rank_based = ranked([0.1, -5.0, 3.0, 0.5])
    rank_based.remove(np.array([3]))

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rank_based.tree, "set", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rank_based.insert(np.array([3]))

    rank_based.insert(np.arange(4))
    assert rank_based.probabilities(np.arange(4)).min() > 0
    assert rank_based.probabilities(np.arange(4)).sum() == pytest.approx(1)


def test_rank_of_a_slot_takes_at_most_42_bytes():
    rank_based = RankBased(1_000_000)

    assert sum(array.nbytes for array in rank_based._order._blocks) <= 42 * 1_000_000
    assert rank_based.tree.nodes.nbytes <= 10 * 1_000_000
