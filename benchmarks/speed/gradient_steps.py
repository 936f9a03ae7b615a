"""A gradient step of every algorithm against its base on SB3's uniform buffer."""

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from benchmarks.rows import Row, quartiles
from sb3_per.algorithms import ALGORITHMS
from sb3_per.zoo import BASES

N_STORED = 20_000
STEPS_IN_A_SLICE = 40


class Noise(gym.Env[NDArray[np.float32], Any]):
    """Random observations of 17 floats, as in HalfCheetah; its steps take no time."""

    observation_space = spaces.Box(-np.inf, np.inf, (17,), np.float32)

    def __init__(self, discrete: bool) -> None:
        self.action_space = spaces.Discrete(6) if discrete else spaces.Box(-1, 1, (6,), np.float32)

    def reset(self, **kwargs: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
        return np.zeros(17, np.float32), {}


def bases() -> dict[str, Any]:
    """Return the base of each of our algorithms except Rainbow, by our name."""
    from rl_zoo3 import ALGOS  # it replaces gymnasium's TimeLimit, which other commands measure

    return {name: ALGOS[base] for name, base in BASES.items() if name != "rainbow"}


def make(algorithm: type[OffPolicyAlgorithm], discrete: bool) -> OffPolicyAlgorithm:
    """Return a model with the algorithm's defaults, and a buffer that is filled."""
    # Adam's kernel is a default of PERDQN alone; here neither side has it.
    of_dqn = {"policy_kwargs": {"optimizer_kwargs": {"fused": False}}}
    options: dict[str, Any] = of_dqn if issubclass(algorithm, DQN) else {}
    env, policy = Noise(discrete), "MlpPolicy"
    model = algorithm(policy, env, buffer_size=N_STORED, seed=0, device="cpu", **options)
    model._setup_learn(1_000_000)
    _fill(model, discrete)
    return model


def _fill(model: OffPolicyAlgorithm, discrete: bool) -> None:
    random, buffer = np.random.default_rng(0), model.replay_buffer
    if buffer is None:
        raise RuntimeError(f"{type(model).__name__} made no replay buffer")
    for _ in range(N_STORED):
        observations = random.normal(size=(2, 1, 17)).astype(np.float32)
        action = random.integers(6, size=1) if discrete else random.uniform(-1, 1, (1, 6))
        reward, done = random.normal(size=1), random.random(1) < 0.01
        buffer.add(observations[0], observations[1], action, reward, done, [{}])


def measure(name: str, n_rounds: int) -> Row:
    """
    Measure an algorithm and its base in alternating slices, by the time of this process.

    :param name: One of ``bases()``.
    :param n_rounds: In each round, every model takes one slice, in a new random order.
    :return: Milliseconds of a gradient step, the ratio in paired slices, and the same ratio for a
        second model of the base, which shows the noise.
    """
    base = bases()[name]
    discrete = name in ("per_dqn", "per_qrdqn")
    contestants = {"base": base, "again": base, "ours": ALGORITHMS[name]}
    models = {contestant: make(kind, discrete) for contestant, kind in contestants.items()}
    for model in models.values():
        model.train(STEPS_IN_A_SLICE, model.batch_size)  # through every kernel once
    times: dict[str, list[float]] = {contestant: [] for contestant in models}
    random, names = np.random.default_rng(0), [*models]
    for _ in range(n_rounds):
        for contestant in (names[i] for i in random.permutation(len(names))):
            start, model = time.process_time(), models[contestant]
            model.train(STEPS_IN_A_SLICE, model.batch_size)
            times[contestant].append(1e3 * (time.process_time() - start) / STEPS_IN_A_SLICE)
    base_times, again, ours = (
        np.array(times[contestant]) for contestant in ("base", "again", "ours")
    )
    return {
        "algorithm": name,
        "base, ms": float(np.median(base_times)),
        "ours, ms": float(np.median(ours)),
        **quartiles("ratio", ours / base_times),
        **quartiles("base again", again / base_times),
    }
