import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import NaiveProportional, drive_both
from sb3_per.prioritization.sampling import SamplingScheme

from sb3_per.prioritization.proportional import Proportional

N_SLOTS = 20
ALL_SLOTS = np.arange(N_SLOTS)
slots_lists = st.lists(st.integers(0, N_SLOTS - 1), min_size=1, max_size=6)
errors = st.floats(-1e6, 1e6)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), slots_lists),
        st.tuples(st.just("remove"), slots_lists),
        st.tuples(st.just("update"), st.lists(st.tuples(st.integers(0, 99), errors), max_size=6)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=25,
)


@given(
    operations,
    st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    st.sampled_from([1e-6, 0.1]),
    st.sampled_from([1.0, 1e6]),
    st.sampled_from([1e-3, 1.0, 50.0]),
    st.sampled_from(["max_seen", "max_stored"]),
)
def test_probabilities_are_those_of_the_formula(steps, alpha, eps, clip, initial, new_priority):
    fast = Proportional(
        N_SLOTS,
        alpha=alpha,
        eps=eps,
        td_error_clip=clip,
        initial_priority=initial,
        new_priority=new_priority,
    )
    naive = NaiveProportional(N_SLOTS, alpha, eps, clip, initial, new_priority)

    drive_both(fast, naive, steps)

    assert fast.largest_priority == naive.largest_seen
    if naive.inserted():
        np.testing.assert_allclose(fast.probabilities(ALL_SLOTS), naive.probabilities(), rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0])
def test_alpha_is_applied_once_to_new_slots_and_to_updated_ones(alpha):
    proportional = Proportional(4, alpha=alpha, eps=0.5)
    proportional.insert(np.array([0, 1]))
    proportional.update(np.array([0, 1]), np.array([7.5, 0.5]))

    proportional.insert(np.array([2]))

    weights = np.array([8.0**alpha, 1.0, 8.0**alpha, 0.0])
    np.testing.assert_allclose(proportional.probabilities(np.arange(4)), weights / weights.sum())


def test_errors_of_either_sign_count_alike():
    proportional = Proportional(2)
    proportional.insert(np.array([0, 1]))

    proportional.update(np.array([0, 1]), np.array([-3.0, 3.0]))

    assert proportional.probabilities(np.array([0, 1])).tolist() == [0.5, 0.5]


def test_max_seen_remembers_a_priority_that_is_gone_and_max_stored_does_not():
    shares = {}
    for new_priority in ("max_seen", "max_stored"):
        proportional = Proportional(3, alpha=1.0, eps=1.0, new_priority=new_priority)
        proportional.insert(np.array([0, 1]))
        proportional.update(np.array([0, 1]), np.array([9.0, 1.0]))
        proportional.update(np.array([0]), np.array([2.0]))
        proportional.insert(np.array([2]))
        shares[new_priority] = proportional.probabilities(np.array([2]))[0]

    assert shares == {"max_seen": 10 / (3 + 2 + 10), "max_stored": 3 / (3 + 2 + 3)}


def test_draws_come_with_the_probabilities_of_their_slots():
    proportional = Proportional(8)
    proportional.insert(np.arange(5))
    proportional.update(np.arange(5), np.array([0.1, 5.0, 0.01, 2.0, 1.0]))

    draw = proportional.sample(
        SamplingScheme(), 64, np.random.default_rng(0).random(64), with_smallest=True
    )

    assert (draw.probabilities == proportional.probabilities(draw.slots)).all()
    assert draw.smallest_probability == proportional.probabilities(np.array([2]))[0]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("alpha", -0.1),
        ("alpha", 1.1),
        ("alpha", np.nan),
        ("eps", 0.0),
        ("eps", -1.0),
        ("eps", np.inf),
        ("td_error_clip", 0.0),
        ("td_error_clip", np.nan),
        ("initial_priority", 0.0),
        ("initial_priority", np.inf),
        ("new_priority", "median"),
    ],
)
def test_an_option_out_of_range_is_named_with_its_value(option, value):
    with pytest.raises(ValueError, match=f"{option} must .*{value}"):
        Proportional(4, **{option: value})
