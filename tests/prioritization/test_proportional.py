import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import NaiveProportional, check_same, operations

from sb3_per.prioritization.proportional import LossAdjusted, Proportional


@given(
    operations(20),
    st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    st.sampled_from([1e-6, 0.1]),
    st.sampled_from([1.0, 1e6]),
    st.sampled_from([1e-3, 1.0, 50.0]),
    st.sampled_from(["max_seen", "max_stored"]),
)
def test_probabilities_are_those_of_the_formula(steps, alpha, eps, clip, initial, new_priority):
    options = {"td_error_clip": clip, "initial_priority": initial, "new_priority": new_priority}
    fast = Proportional(20, alpha=alpha, eps=eps, **options)
    check_same(fast, NaiveProportional(20, alpha, eps, clip, initial, new_priority), steps)


@pytest.mark.parametrize("threshold", [0.5, 1.0])
def test_lap_has_the_papers_probabilities(threshold):
    td_errors = np.array([-0.1, 0.7, 1.0, -8.0, 0.0])
    lap = LossAdjusted(5, threshold=threshold, alpha=0.4)
    lap.insert(np.arange(5))

    lap.update(np.arange(5), td_errors)

    powers = np.maximum(np.abs(td_errors), threshold) ** 0.4
    np.testing.assert_allclose(lap.probabilities(np.arange(5)), powers / powers.sum())
    assert lap.largest_priority == 8.0
