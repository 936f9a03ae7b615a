"""Gradient steps and whole training steps of Rainbow, DQN and PERDQN, and of Tianshou's Rainbow."""

import importlib.util
import time
from collections.abc import Iterator
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN

from benchmarks.rows import Row, quartiles
from sb3_per import PERDQN, Rainbow
from sb3_per.algorithms.networks import ConvExtractor

STOCK = "DQN"
N_STORED, BATCH_SIZE, TRAIN_FREQ, N_ATOMS = 20_000, 32, 4, 51
NETWORK: dict[str, Any] = {
    "features_extractor_class": ConvExtractor,
    "features_extractor_kwargs": {"layers": [(16, 3, 1)], "channels_last": True},
    "net_arch": [128],
}


class Grids(gym.Env[NDArray[np.uint8], np.int64]):
    """Random observations in the shape of MinAtar's SpaceInvaders; its steps take no time."""

    observation_space = spaces.Box(0, 1, (10, 10, 6), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        shape = (64, *self.observation_space.shape)
        self._grids = (np.random.default_rng(0).random(shape) < 0.1).astype(np.uint8)
        self._n_steps = 0

    def reset(self, **kwargs: Any) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        self._n_steps = 0
        return self._grids[0], {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._n_steps += 1
        reward = float(self._n_steps % 7 == 0)
        return self._grids[self._n_steps % 64], reward, self._n_steps % 200 == 0, False, {}


class Contestant(Protocol):
    """A model in the middle of its training."""

    def update(self, n: int) -> None:
        """Take n gradient steps."""

    def learn(self, n: int) -> None:
        """Take n environment steps, with a gradient step after every fourth."""


class OfSB3:
    """SB3's DQN or one of ours."""

    def __init__(self, algorithm: type[DQN], **options: Any) -> None:
        parts = options.pop("policy_kwargs", {})
        self._model = algorithm(
            "CnnPolicy",
            Grids(),
            buffer_size=N_STORED,
            learning_starts=1000,
            batch_size=BATCH_SIZE,
            train_freq=TRAIN_FREQ,
            seed=0,
            device="cpu",
            policy_kwargs={**NETWORK, **parts},
            **options,
        )
        self._model.learn(1200)

    def update(self, n: int) -> None:
        self._model.train(n, BATCH_SIZE)

    def learn(self, n: int) -> None:
        self._model.learn(n, reset_num_timesteps=False)


class _OfTianshou(th.nn.Module):
    """The same network, made of Tianshou's noisy layers."""

    def __init__(self) -> None:
        from tianshou.utils.net.discrete import NoisyLinear

        super().__init__()
        n_features, n_actions = 1024, int(Grids.action_space.n)
        self.convolutions = ConvExtractor(Grids.observation_space, [(16, 3, 1)], True)
        self.values, self.advantages = (
            th.nn.Sequential(NoisyLinear(n_features, 128), th.nn.ReLU(), NoisyLinear(128, n))
            for n in (N_ATOMS, n_actions * N_ATOMS)
        )

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[th.Tensor, Any]:
        features = self.convolutions(th.as_tensor(obs, dtype=th.float32))
        advantages = self.advantages(features).view(len(features), -1, N_ATOMS)
        values = self.values(features).unsqueeze(1)
        return (values + advantages - advantages.mean(1, keepdim=True)).softmax(2), state


class Tianshou:
    """Tianshou's Rainbow, with its collector and its prioritized buffer."""

    def __init__(self) -> None:
        from tianshou.algorithm.modelfree.c51 import C51Policy
        from tianshou.algorithm.modelfree.rainbow import RainbowDQN
        from tianshou.algorithm.optim import AdamOptimizerFactory
        from tianshou.data import Collector, PrioritizedVectorReplayBuffer
        from tianshou.env import DummyVectorEnv

        policy = C51Policy(_OfTianshou(), Grids.action_space, num_atoms=N_ATOMS)
        self._algorithm = RainbowDQN(
            policy=policy,
            optim=AdamOptimizerFactory(lr=1e-4),
            n_step_return_horizon=3,
            target_update_freq=2500,
        )
        self._buffer = PrioritizedVectorReplayBuffer(N_STORED, 1, alpha=0.5, beta=0.4)
        self._collector = Collector(policy, DummyVectorEnv([Grids]), self._buffer)
        self._collector.reset()
        self._collector.collect(n_step=1200)
        self.update(50)

    def update(self, n: int) -> None:
        from tianshou.algorithm.algorithm_base import policy_within_training_step

        with policy_within_training_step(self._algorithm.policy):
            for _ in range(n):
                self._algorithm.update(self._buffer, BATCH_SIZE)

    def learn(self, n: int) -> None:
        for _ in range(n // TRAIN_FREQ):
            self._collector.collect(n_step=TRAIN_FREQ)
            self.update(1)


def contestants() -> Iterator[tuple[str, Contestant]]:
    """Return the contestants: stock DQN first, and stock DQN again, which shows the noise."""
    quiet = {"policy_kwargs": {"noisy": False}}
    yield STOCK, OfSB3(DQN)
    yield "DQN again", OfSB3(DQN)
    yield "PERDQN", OfSB3(PERDQN)
    yield "Rainbow", OfSB3(Rainbow)
    yield "Rainbow, no noisy layers", OfSB3(Rainbow, **quiet)
    if importlib.util.find_spec("tianshou") is not None:
        yield "Tianshou's Rainbow", Tianshou()


def measure(n_rounds: int) -> list[Row]:
    """
    Measure every contestant by the time of this process, in alternating slices.

    :param n_rounds: In each round, every model takes a slice of each kind, in a random order.
    :return: Milliseconds of a gradient step, and of four environment steps with one, and how many
        times those of stock DQN they are, in paired slices.
    """
    models = dict(contestants())
    slices = {"gradient step": ("update", 10, 10), "training step": ("learn", 40, 10)}
    times: dict[tuple[str, str], list[float]] = {(m, s): [] for m in models for s in slices}
    random, names = np.random.default_rng(0), list(models)
    for _ in range(n_rounds):
        for name in (names[i] for i in random.permutation(len(names))):
            for kind, (method, size, n_updates) in slices.items():
                start = time.process_time()
                getattr(models[name], method)(size)
                times[name, kind].append(1e3 * (time.process_time() - start) / n_updates)
    arrays = {key: np.array(values) for key, values in times.items()}
    rows = []
    for name in models:
        row: Row = {"name": name}
        for kind in slices:
            row[f"{kind}, ms"] = float(np.median(arrays[name, kind]))
            row |= quartiles(f"{kind} over DQN", arrays[name, kind] / arrays[STOCK, kind])
        rows.append(row)
    return rows
