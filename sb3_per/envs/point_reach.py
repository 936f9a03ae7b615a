"""PointReach-v0: a point must reach a goal, and every step outside of the goal costs 1."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_per.rules import require_bool, require_whole

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
        require_bool("discrete", discrete)
        require_whole("max_steps", max_steps)
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
