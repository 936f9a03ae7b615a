"""Loss-adjusted prioritization: P(i) ~ max(abs(TD error), threshold)^alpha."""

import sys
from typing import Any

from sb3_per.prioritization.base import DEFAULT_EPS, LARGEST_TD_ERROR
from sb3_per.prioritization.proportional import Proportional
from sb3_per.rules import require, require_positive


class LossAdjusted(Proportional):
    """
    LAP, loss-adjusted prioritized replay (Fujimoto et al. 2020, https://arxiv.org/abs/2007.06049,
    section 4): the priority is max(abs(TD error), threshold).

    LAP belongs to a Huber loss with the same threshold and to no correction: set beta to 0.
    ``PERDQN``'s loss has the threshold 1; with ``loss="huber"``, the loss of actor-critics has this
    one. Where abs(TD error) is below the threshold the loss is quadratic and sampling uniform;
    above it the loss is linear and sampling prioritized. The paper has alpha 0.4.

    :param n_slots: Number of slots.
    :param threshold: Lower bound of priorities, and the threshold of the loss, > 0.
    :param options: As for ``Proportional``. ``eps`` is below the threshold and cannot matter, so
        another value than the default raises an error.
    """

    def __init__(self, n_slots: int, *, threshold: float = 1.0, **options: Any) -> None:
        rule = f"eps must stay at {DEFAULT_EPS} with prioritization='lap', which has a threshold"
        require(options.get("eps", DEFAULT_EPS) == DEFAULT_EPS, rule, options.get("eps"))
        is_finite = "be positive and finite in float32"
        require_positive("threshold", threshold, LARGEST_TD_ERROR, is_finite)
        initial_priority = max(threshold, options.pop("initial_priority", 1.0))
        # The smallest number above 0 changes no TD error that it is added to.
        options |= {"initial_priority": initial_priority, "eps": sys.float_info.min}
        super().__init__(n_slots, **options)
        self.floor = float(threshold)
