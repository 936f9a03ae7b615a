"""
Small environments of our own: BlindCliffwalk (Schaul et al. 2016) and a sparse task with goals.

``gym.make("benchmarks.environments:sb3_per/BlindCliffwalk-v0")`` imports this module, which
registers them, and SB3's BitFlippingEnv.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class BlindCliffwalk(gym.Env[Any, Any]):
    """
    A walk of ``n`` steps along a cliff, blindfolded (Schaul et al. 2016, section 3.1).

    There are two actions. The right one leads to the next state; the wrong one ends the episode.
    Which action is right alternates from state to state. The last of n right actions in a row is
    rewarded with 1, all others with 0. Random actions earn the reward once in 2^n episodes.

    :param n: Number of states, at least 1.
    :param render_mode: Accepted, since SB3 and RL-Zoo pass one, but there is nothing to see.
    """

    # A plain dict, as gymnasium declares it; the class does not change it.
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, n: int = 12, render_mode: str | None = None) -> None:
        self.n = n
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0.0, 1.0, (n,), np.float32)
        self._state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return to the first state."""
        super().reset(seed=seed)
        self._state = 0
        return self.observation(0), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step; the step that ends an episode does not change the state."""
        next_state, reward = outcome(self.n, self._state, int(action))
        if next_state is not None:
            self._state = next_state
        return self.observation(self._state), reward, next_state is None, False, {}

    def observation(self, state: int) -> NDArray[np.float32]:
        """Return the observation of a state: a one-hot vector."""
        one_hot = np.zeros(self.n, dtype=np.float32)
        one_hot[state] = 1.0
        return one_hot


def right_action(state: int) -> int:
    """Return the action that does not end the episode."""
    return state % 2


def outcome(n: int, state: int, action: int) -> tuple[int | None, float]:
    """Return the next state, None where the episode ends, and the reward."""
    if action != right_action(state):
        return None, 0.0
    return (state + 1, 0.0) if state + 1 < n else (None, 1.0)


STEP, RADIUS = 0.1, 0.1
# What the discrete actions do: right, left, up, down, stay.
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]], np.float32)

Observation = dict[str, NDArray[np.float32]]


class PointReach(gym.Env[Observation, Any]):
    """
    Move a point in the square [-1, 1]^2 to a goal. Start and goal are uniform in the square.

    Each step costs 1, unless the point is within 0.1 of the goal afterwards. The task resembles the
    Fetch environments, without physics: rewards are sparse, and episodes end only by the time
    limit.

    :param discrete: Five actions (right, left, up, down, stay) instead of a step in [-0.1, 0.1]^2.
    :param max_steps: Number of steps after which an episode is truncated.
    :param render_mode: Accepted, since SB3 and RL-Zoo pass one, but there is nothing to see.
    """

    # A plain dict, as gymnasium declares it; the class does not change it.
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self, discrete: bool = False, max_steps: int = 50, render_mode: str | None = None
    ) -> None:
        place = spaces.Box(-1, 1, (2,), np.float32)
        parts = ("observation", "achieved_goal", "desired_goal")
        self.observation_space: spaces.Space[Any] = spaces.Dict(dict.fromkeys(parts, place))
        self.action_space: spaces.Space[Any] = (
            spaces.Discrete(len(MOVES)) if discrete else spaces.Box(-1, 1, (2,), np.float32)
        )
        self.discrete = discrete
        self.max_steps = max_steps
        self.render_mode = render_mode
        self._n_steps = 0
        self._place = self._goal = np.zeros(2, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode at a random place, with a random goal."""
        super().reset(seed=seed)
        self._n_steps = 0
        self._place, self._goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move the point, and return the reward: 0 at the goal, -1 elsewhere."""
        move = MOVES[int(action)] if self.discrete else np.clip(action, -1, 1)
        self._place = np.clip(self._place + STEP * move, -1, 1).astype(np.float32)
        self._n_steps += 1
        reward = float(self.compute_reward(self._place, self._goal, {}))
        is_over = self._n_steps == self.max_steps
        return self._observation(), reward, False, is_over, {"is_success": reward == 0}

    def compute_reward(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], infos: Any
    ) -> NDArray[np.float32]:
        """Return 0 for reached goals and -1 for others; goals have shape (2,) or (B, 2)."""
        distances = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return np.where(distances <= RADIUS, 0, -1).astype(np.float32)

    def _observation(self) -> Observation:
        return {
            "observation": self._place.copy(),
            "achieved_goal": self._place.copy(),
            "desired_goal": self._goal.copy(),
        }


for name, entry_point in {
    "BlindCliffwalk": "benchmarks.environments:BlindCliffwalk",
    "PointReach": "benchmarks.environments:PointReach",
    "BitFlipping": "stable_baselines3.common.envs:BitFlippingEnv",  # SB3 does not register it
}.items():
    gym.register(f"sb3_per/{name}-v0", entry_point=entry_point)
