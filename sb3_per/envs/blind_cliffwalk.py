"""BlindCliffwalk-v0: the task on which Schaul et al. (2016) show what prioritized replay gains."""

from collections.abc import Callable
from numbers import Real
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_per.rules import require, require_whole

# Noise with mean 0 and standard deviation 1. The skewed kind is 3 one time in ten and -1/3
# otherwise: its large TD errors are rare and mean nothing, but prioritization prefers them.
NOISES: dict[str, Callable[[np.random.Generator], float]] = {
    "none": lambda random: 0.0,
    "gaussian": lambda random: random.normal(),
    "skewed": lambda random: 3.0 if random.random() < 0.1 else -1 / 3,
}


class BlindCliffwalk(gym.Env[Any, Any]):
    """
    A walk of ``n`` steps along a cliff, blindfolded (Schaul et al. 2016, section 3.1).

    There are two actions. The right one leads to the next state; the wrong one ends the episode.
    Which action is right alternates from state to state. The last of n right actions in a row is
    rewarded with 1, all others with 0. Random actions earn the reward once in 2^n episodes.

    :param n: Number of states, at least 1.
    :param observations: ``"one-hot"``: a vector of n floats; ``"integer"``: the state's number.
    :param noise: Added to every reward, one of ``NOISES``; its mean is 0, so true values stay.
    :param noise_scale: Standard deviation of the noise, at least 0.
    :param render_mode: Accepted, since SB3 and RL-Zoo pass one, but there is nothing to see.
    :raises ValueError: for an option out of its range.
    """

    # A plain dict, as gymnasium declares it; the class does not change it.
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        n: int = 12,
        observations: Literal["one-hot", "integer"] = "one-hot",
        noise: str = "none",
        noise_scale: float = 1.0,
        render_mode: str | None = None,
    ) -> None:
        require_whole("n", n)
        kinds = ("one-hot", "integer")
        require(observations in kinds, f"observations must be one of {kinds}", observations)
        require(noise in (*NOISES,), f"noise must be one of {(*NOISES,)}", noise)
        is_number = isinstance(noise_scale, Real) and 0 <= noise_scale < np.inf
        require(is_number, "noise_scale must be a number of at least 0", noise_scale)
        self.n = int(n)
        self.noise = noise
        self.noise_scale = noise_scale
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(2)
        self.observation_space = (
            spaces.Discrete(self.n)
            if observations == "integer"
            else spaces.Box(0.0, 1.0, (self.n,), np.float32)
        )
        self._state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return to the first state; ``seed`` seeds the noise, and there are no options."""
        super().reset(seed=seed)
        self._state = 0
        return self.observation(0), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; the step that ends an episode does not change the state."""
        next_state, reward = outcome(self.n, self._state, int(action))
        self._state = self._state if next_state is None else next_state
        noise = self.noise_scale * NOISES[self.noise](self.np_random)
        return self.observation(self._state), reward + noise, next_state is None, False, {}

    def observation(self, state: int) -> NDArray[np.float32] | int:
        """Return the observation of a state."""
        if isinstance(self.observation_space, spaces.Discrete):
            return state
        one_hot = np.zeros(self.n, dtype=np.float32)
        one_hot[state] = 1.0
        return one_hot


def right_action(state: int) -> int:
    """Return the action that does not end the episode."""
    return state % 2


def outcome(n: int, state: int, action: int) -> tuple[int | None, float]:
    """Return the next state, None where the episode ends, and the reward without noise."""
    if action != right_action(state):
        return None, 0.0
    return (state + 1, 0.0) if state + 1 < n else (None, 1.0)
