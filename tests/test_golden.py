"""
Golden digests: the results of a seed stay the same, bit by bit, while code is moved.

Each case digests what a buffer or an algorithm gives through the public API: batches, weights,
priorities, networks. The digests in ``support/golden.json`` only say that nothing has changed;
whether results are right is the matter of the other tests. A deliberate change of results
regenerates the file with ``python tests/test_golden.py``; the commit says what changed and why.

Rounding differs between processors and between versions of the libraries. So the digests hold for
one kind of processor and the pinned versions, described under ``machine`` in the file; elsewhere,
these tests are skipped. CONTRIBUTING.md says when numba keeps kernels of older code.
"""

import hashlib
import json
import math
from functools import partial
from importlib.metadata import version
from itertools import islice, product
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv

import sb3_per

FILE = Path(__file__).parent / "support" / "golden.json"
PACKAGES = ["numpy", "numba", "torch", "gymnasium", "stable-baselines3", "sb3-contrib"]
# All options are given, since defaults may change.
OPTIONS = {"prioritization": "proportional", "alpha": 0.6, "beta": 0.5, "td_error_clip": None}
OPTIONS |= {"uniform_share": 0.0, "weight_normalization": "batch", "new_priority": "max_seen"}
OPTIONS |= {"stratified": True, "replacement": True}
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
STACKED_FRAMES = spaces.Box(0, 255, (6, 5, 4), np.uint8)
DICT = spaces.Dict({"image": STACKED_FRAMES, "vector": VECTOR})
HER = "PrioritizedHerReplayBuffer"


def grid(bases=({},), **values):
    """Return each combination of the values (a tuple holds several), added to each base."""
    several = [value if isinstance(value, tuple) else (value,) for value in values.values()]
    chosen = [dict(zip(values, combination, strict=True)) for combination in product(*several)]
    return [{**base, **combination} for base in bases for combination in chosen]


def buffer_cases():
    """Return what differs from ``OPTIONS`` and from a plain buffer of one environment."""
    kinds, both, shares = ("proportional", "rank", "lap"), (True, False), (0.0, 0.5)
    schemes = grid(stratified=both, uniform_share=shares) + grid(stratified=both, replacement=False)
    shapes = {"n_envs": (1, 3), "n_steps": (1, 3)}
    optimized = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    each_kind = grid(prioritization=kinds, uniform_share=shares)
    return [
        *grid(schemes, prioritization=kinds, **shapes),
        *grid(schemes, weight_normalization=("buffer", "mean", "none")),
        *grid(each_kind, new_priority="max_stored", n_envs=(1, 3)),
        *grid(each_kind, td_error_clip=2.0),
        *grid(each_kind, **optimized, n_envs=(1, 3)),
        *grid(schemes, **optimized, new_priority="max_stored"),
        *grid(buffer="PrioritizedDictReplayBuffer", uniform_share=shares, **shapes),
        *grid(n_stack=4, uniform_share=shares, **shapes),
        *grid(each_kind, buffer=HER, n_envs=(1, 2)),
        *grid(schemes, buffer=HER, new_priority="max_stored"),
        *grid(buffer=HER, goal_selection_strategy=("final", "episode"), n_envs=(1, 2)),
    ]


def algorithm_cases():
    """Return the name of the algorithm, and what differs from the paper's settings."""
    mixture = {"td_error_clip": "loss", "uniform_share": 0.5, "weight_normalization": "mean"}
    lap = {"prioritization": "lap", "alpha": 0.4, "beta": 0.0}
    return [
        *grid(algorithm=("DQN", "QRDQN", "SAC", "TD3", "DDPG", "TQC", "CrossQ")),
        {"algorithm": "DQN", **mixture},
        {"algorithm": "DQN", "prioritization": "rank"},
        {"algorithm": "DQN", "double_q": True, "n_steps": 3, "n_envs": 2},
        *grid(algorithm=("SAC", "TD3", "DDPG", "CrossQ"), **lap),
        *grid(algorithm=("QRDQN", "TQC"), uniform_share=0.5),
        {"algorithm": "SAC", "replay_buffer_class": HER},
    ]


def build(algorithm_name, env, options, **kwargs):
    """Make a model; ``options`` are those of replay."""
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    return getattr(sb3_per, algorithm_name)(policy, env, replay_buffer_kwargs=options, **kwargs)


def digest(results):
    """Return a short digest of arrays, tensors, texts and None, and of dicts and series of them."""
    hashed = hashlib.sha256()

    def add(value):
        if value is None or isinstance(value, str):
            hashed.update(repr(value).encode())
        elif isinstance(value, np.ndarray | th.Tensor):
            array = np.asarray(value)
            hashed.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            for part in value.items() if isinstance(value, dict) else value:
                add(part)

    add(results)
    return hashed.hexdigest()[:16]


def fields_of(batch):
    names = "observations actions next_observations dones rewards discounts weights slots"
    return [getattr(batch, name) for name in names.split()]


def for_kinds(function, *observations):
    """Apply a function to observations, or to each key of Dict observations."""
    if not isinstance(observations[0], dict):
        return function(*observations)
    return {key: function(*(one[key] for one in observations)) for key in observations[0]}


def transitions(space, n_envs):
    """Yield the arguments of ``add``: random episodes of some seven steps, some cut off."""
    random = np.random.default_rng(1)

    def next_of(before):
        if before.dtype == np.float32:
            return random.normal(size=before.shape).astype(np.float32)
        if before.dtype == np.int8:
            return random.integers(2, size=before.shape, dtype=np.int8)
        frame = random.integers(1, 256, size=(*before.shape[:-1], 1), dtype=np.uint8)
        return np.concatenate([before[..., 1:], frame], axis=-1)

    nothing = for_kinds(lambda part: np.zeros((n_envs, *part.shape), part.dtype), space.sample())
    now = for_kinds(next_of, nothing)
    while True:
        after, start = for_kinds(next_of, now), for_kinds(next_of, nothing)
        dones = random.random(n_envs) < 0.15
        infos = [{"TimeLimit.truncated": bool(done) and random.random() < 0.5} for done in dones]
        rewards = random.normal(size=n_envs) * 10.0 ** random.integers(-2, 3, size=n_envs)
        yield now, after, random.integers(2, size=n_envs), rewards, dones, infos
        now = for_kinds(lambda a, b, ended=dones: np.where(ended, b.T, a.T).T, after, start)


def results_of_buffer(case):
    options = {"buffer": "PrioritizedReplayBuffer", "n_envs": 1, **OPTIONS, **case}
    kind = getattr(sb3_per, options.pop("buffer"))
    space = STACKED_FRAMES if "n_stack" in case else DICT if "Dict" in kind.__name__ else VECTOR
    set_random_seed(0)
    if kind.__name__ == HER:
        env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=3)] * options["n_envs"])
        space, options["env"] = env.observation_space, env  # it computes rewards
    buffer = kind(210, space, spaces.Discrete(2), device="cpu", **options)
    buffer.generator = np.random.default_rng(0)
    rows = transitions(space, buffer.n_envs)

    def add(n_rows):
        for row in islice(rows, n_rows):
            buffer.add(*row)

    add(50)
    for update in range(60):
        add(3)
        batches = [buffer.sample(32)]
        if update % 6 == 5:  # most transitions are replaced before their TD errors come
            batches.append(buffer.sample(32))
            add(buffer.buffer_size * 3 // 4)
        for batch in batches:
            yield fields_of(batch)
            slots, rewards = batch.slots, batch.rewards.numpy().ravel().astype(np.float64)
            # Of either sign, over eight orders of magnitude.
            td_errors = np.where(slots % 3, rewards, -rewards) * 10.0 ** ((slots + update) % 8 - 4)
            if update % 3 == 0:  # a second TD error for some slots
                slots = np.concatenate([slots, slots[::3]])
                td_errors = np.concatenate([td_errors, td_errors[::3] / 7])
            buffer.update_priorities(slots, td_errors)
    yield buffer.probabilities(np.arange(buffer.buffer_size * buffer.n_envs))


def small_model(**network):
    th.set_num_threads(1)
    sizes = {"buffer_size": 100, "batch_size": 32, "learning_starts": 60, "train_freq": 1}
    return {**sizes, "policy_kwargs": {"net_arch": [16], **network}, "seed": 0, "device": "cpu"}


def results_of_algorithm(case):
    kwargs = {**OPTIONS, "beta": (0.4, 1.0), **case}
    options = {name: kwargs.pop(name) for name in OPTIONS}
    name, n_envs, env_name = kwargs.pop("algorithm"), kwargs.pop("n_envs", 1), "Pendulum-v1"
    if "DQN" in name:
        env_name, kwargs["target_update_interval"] = "CartPole-v1", 40
    if "replay_buffer_class" in kwargs:
        kwargs["replay_buffer_class"] = getattr(sb3_per, kwargs["replay_buffer_class"])
        env_name = "benchmarks.environments:sb3_per/PointReach-v0"
    network = {"n_quantiles": 10} if name in ("QRDQN", "TQC") else {}
    env = DummyVecEnv([lambda: gym.make(env_name)] * n_envs)
    model = build(f"PER{name}", env, options, **small_model(**network), **kwargs).learn(300)
    buffer = model.replay_buffer
    yield model.policy.state_dict()
    yield buffer.probabilities(np.arange(buffer.buffer_size * buffer.n_envs))
    yield fields_of(buffer.sample(32))


def machine():
    """Return the versions of packages, and how this machine rounds, without this library."""
    numbers = np.random.default_rng(0).uniform(0.01, 10, 1000)
    functions = [np.exp, np.log1p, lambda x: np.expm1(-x), lambda x: x**0.6, np.cumsum]
    rounded = [f(x) for f in functions for x in (numbers, numbers.astype(np.float32))]
    of_c = np.array([(x**0.6, math.log1p(x), math.expm1(-x)) for x in numbers.tolist()])
    model = DQN("MlpPolicy", "CartPole-v1", **small_model()).learn(150)
    results = rounded, of_c, model.policy.state_dict()
    return {"rounding": digest(results), **{name: version(name) for name in PACKAGES}}


@pytest.fixture(scope="module")
def golden():
    """The stored digests; on another machine, the tests are skipped."""
    stored, current = json.loads(FILE.read_text()), machine()
    if stored["machine"] != current:
        pytest.skip(f"the digests hold for {stored['machine']}, and this machine is {current}")
    return stored["digests"]


def named(run, cases):
    return {",".join(f"{k}={v}" for k, v in case.items()): partial(run, case) for case in cases}


BUFFERS = named(results_of_buffer, buffer_cases())
ALGORITHMS = named(results_of_algorithm, algorithm_cases())
CASES = {**BUFFERS, **ALGORITHMS}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]


@pytest.mark.parametrize("name", [*BUFFERS, *SLOW])
def test_seed_gives_the_same_results_as_before(golden, name):
    assert digest(CASES[name]()) == golden[name]


if __name__ == "__main__":
    digests = {name: digest(results()) for name, results in CASES.items()}
    FILE.write_text(json.dumps({"machine": machine(), "digests": digests}, indent=1) + "\n")
