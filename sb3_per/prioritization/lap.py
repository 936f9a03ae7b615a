"""Loss-adjusted prioritization: P(i) ~ max(abs(TD error), threshold)^alpha."""

import sys
from typing import Any

from sb3_per.prioritization.base import DEFAULT_EPS, require_priority
from sb3_per.prioritization.proportional import Proportional
from sb3_per.rules import require


class LossAdjusted(Proportional):
    """
    LAP, loss-adjusted prioritized replay (Fujimoto et al. 2020, https://arxiv.org/abs/2007.06049,
    section 4): the priority is max(abs(TD error), threshold).

    LAP needs a Huber loss with the same threshold, and no correction: set beta to 0. The loss of
    ``PERDQN`` has the threshold 1; actor-critics with ``loss="huber"`` use LAP's threshold. While
    abs(TD error) is below the threshold, the loss is quadratic and sampling is uniform; above it,
    the loss is linear and sampling is prioritized. The paper uses alpha 0.4.

    :param n_slots: Number of slots.
    :param threshold: Lower bound of priorities, and the threshold of the loss, > 0.
    :param options: As for ``Proportional``. ``eps`` is below the threshold and has no effect, so
        any value except the default raises an error. ``td_error_clip`` must be above the threshold.
    """

    def __init__(self, n_slots: int, *, threshold: float = 1.0, **options: Any) -> None:
        rule = f"eps must stay at {DEFAULT_EPS} with prioritization='lap': it has no effect there"
        require(options.get("eps", DEFAULT_EPS) == DEFAULT_EPS, rule, options.get("eps"))
        require_priority("threshold", threshold)
        initial_priority = options.get("initial_priority", 1.0)
        require_priority("initial_priority", initial_priority)
        clip = options.get("td_error_clip")
        if clip is not None:
            require_priority("td_error_clip", clip)
            rule = f"td_error_clip must be above LAP's threshold {threshold}, or all priorities "
            rule += "would be equal (LAP needs no td_error_clip)"
            require(clip > threshold, rule, clip)
        # The smallest number above 0 changes no TD error that it is added to.
        options |= {
            "initial_priority": max(threshold, initial_priority),
            "eps": sys.float_info.min,
        }
        super().__init__(n_slots, **options)
        self.floor = float(threshold)
