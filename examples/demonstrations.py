"""Learn to fetch a key and open a door in MiniGrid, with 20 episodes of a planner."""

import argparse
from collections import deque
from typing import Any

import gymnasium as gym
import minigrid  # noqa: F401  # registers the environments
import numpy as np
import torch
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN

LEFT, RIGHT, FORWARD, PICK_UP, TOGGLE = 0, 1, 2, 3, 5
# One-hot vectors of the objects, colors and states that a cell can have.
OBJECTS, COLORS, STATES = (np.eye(n, dtype=np.uint8) for n in (11, 6, 4))
SETTINGS = {
    "learning_rate": 5e-4,
    "buffer_size": 50_000,
    "learning_starts": 500,
    "batch_size": 64,
    "train_freq": 1,
    "n_steps": 5,
    "target_update_interval": 500,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [128, 128]},
    "device": "cpu",
}


class OneHotView(gym.ObservationWrapper):
    """The 7 x 7 cells in front of the agent as one-hot vectors."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(0, 1, (7 * 7 * 21,), np.uint8)

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        objects, colors, states = observation["image"].reshape(-1, 3).T
        return np.hstack([OBJECTS[objects], COLORS[colors], STATES[states]]).ravel()


def make(seed: int) -> gym.Env:
    env = OneHotView(gym.make("MiniGrid-DoorKey-6x6-v0", max_steps=150))
    env.reset(seed=seed)
    return env


class Planner:
    """Walks the shortest way to the key, to the door and to the goal; it sees the whole grid."""

    def __init__(self, env: gym.Env) -> None:
        self.env = env.unwrapped

    def predict(self, observation: Any, deterministic: bool = True) -> tuple[int, None]:
        grid = self.env.grid
        places = {cell.type: i for i, cell in enumerate(grid.grid) if cell is not None}
        if grid.grid[places["door"]].is_open:
            name, action = "goal", FORWARD
        else:
            name, action = ("door", TOGGLE) if self.env.carrying else ("key", PICK_UP)
        y, x = divmod(places[name], grid.width)
        return self.first_action((x, y), action), None

    def first_action(self, target: tuple[int, int], action: int) -> int:
        """Return the first action on the shortest way to a cell; in front of it, the given one."""
        # Breadth-first search over cells and directions.
        start = (*map(int, self.env.agent_pos), int(self.env.agent_dir))
        queue, seen = deque([(start, None)]), {start}
        while True:
            (x, y, turn), first = queue.popleft()
            dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[turn]
            ahead = (x + dx, y + dy)
            if ahead == target:
                return action if first is None else first
            moves = {LEFT: (x, y, (turn - 1) % 4), RIGHT: (x, y, (turn + 1) % 4)}
            cell = self.env.grid.get(*ahead)
            if cell is None or cell.can_overlap():
                moves[FORWARD] = (*ahead, turn)
            for move, state in moves.items():
                if state not in seen:
                    seen.add(state)
                    queue.append((state, move if first is None else first))


def episodes_of_the_planner(n: int, seed: int) -> dict[str, np.ndarray]:
    """Return the transitions of n episodes."""
    env, steps = make(seed), []
    planner, observation = Planner(env), env.reset()[0]
    while n > 0:
        action, _ = planner.predict(observation)
        after, reward, is_over, is_cut, _ = env.step(action)
        steps.append((observation, action, reward, after, is_over, is_cut))
        observation = after
        if is_over or is_cut:
            observation, n = env.reset()[0], n - 1
    names = ["observations", "actions", "rewards", "next_observations"]
    names += ["terminations", "truncations"]
    columns = zip(*steps, strict=True)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}


def success_rate(model: Any) -> float:
    """Return in how many of 50 new episodes the agent reaches the goal, from 0 to 1."""
    returns, _ = evaluate_policy(model, make(20_000), 50, return_episode_rewards=True)
    return float(np.mean(np.array(returns) > 0))


def main(steps: int = 10_000, n_episodes: int = 20, seed: int = 0) -> float:
    model = PERDQN(
        "MlpPolicy",
        make(seed),
        seed=seed,
        double_q=True,
        **SETTINGS,
    )
    if n_episodes > 0:
        model.add_demonstrations(episodes_of_the_planner(n_episodes, 10_000 + seed))
    success = success_rate(model.learn(steps))
    n = 0 if model.demonstrations is None else len(model.demonstrations)
    print(f"{n} demonstrations: {success:.0%} reach the goal")
    return success


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster for small networks
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--n-episodes", type=int, default=20, help="episodes of demonstrations")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
