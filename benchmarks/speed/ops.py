"""
Time of sampling, updating and adding: all contestants in one process, turn by turn.

Before its turn, each contestant waits for a gradient step of the same small network, which is not
timed. So its turn begins with the caches that training leaves. Back to back, the previous
contestant would decide what the caches hold.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch as th

from benchmarks.rows import Row, quartiles
from benchmarks.speed.contestants import Contestant, Workload, buffers
from benchmarks.speed.peers import LARGEST, peers

N_ADDS = 4  # DQN adds four transitions from update to update by default
UNIFORM = "SB3 uniform"


def enter(workload: Workload, only: Sequence[str] = ()) -> dict[str, Contestant]:
    """
    Return the full contestants by name; those whose package cannot be imported are left out.

    :param only: Names of those to measure; empty for all.
    """
    made = {name: make() for name, make in buffers(workload) if name in only or not only}
    if workload.capacity > LARGEST or workload.observations.dtype == np.uint8:
        return made  # others need minutes to be filled, or take no images as they are
    for name, make in peers(workload):
        if name in only or not only:
            try:
                made[name] = make()
            except ImportError as error:
                print(f"{name} is left out: {error}")
    return made


def measure(
    workload: Workload, entered: dict[str, Contestant], batches: Sequence[int], n_rounds: int
) -> list[Row]:
    """
    Return times in microseconds. A step is one sample, one update and four additions.

    In a round each contestant makes one step with each batch size, in random order.
    """
    random, network = np.random.default_rng(0), Network()
    names = list(entered)
    times: dict[tuple[int, str], list[tuple[float, ...]]] = {
        (batch, name): [] for batch in batches for name in names
    }
    for _ in range(n_rounds):
        for batch in batches:
            td_errors = random.exponential(size=batch).astype(np.float32)
            for i in random.permutation(len(names)):
                network.step(batch)
                times[batch, names[i]].append(_step(entered[names[i]], batch, td_errors))
    rows = []
    for batch in batches:
        arrays = {name: np.array(times[batch, name]).T for name in names}  # (3, n_rounds)
        key = {"stored": workload.name, "capacity": workload.capacity, "batch": batch}
        rows += [{**key, "name": name, **_costs(name, arrays)} for name in names]
    return rows


class Network:
    """Two layers of 64 units and fused Adam, as PERDQN trains them by default."""

    def __init__(self) -> None:
        sizes = (8, 64, 64, 4)
        layers = [th.nn.Linear(*pair) for pair in pairwise(sizes)]
        self._module = th.nn.Sequential(layers[0], th.nn.ReLU(), layers[1], th.nn.ReLU(), layers[2])
        self._optimizer = th.optim.Adam(self._module.parameters(), fused=True)

    def step(self, batch: int) -> None:
        """Take a gradient step on random observations, shape (B, 8)."""
        self._optimizer.zero_grad()
        self._module(th.rand(batch, 8)).square().mean().backward()
        self._optimizer.step()


def _step(contestant: Contestant, batch: int, td_errors: Any) -> tuple[float, ...]:
    """Return the microseconds of one sample, one update and one addition."""
    start = time.perf_counter()
    drawn = contestant.sample(batch)
    sampled = time.perf_counter()
    contestant.update(drawn, td_errors)
    updated = time.perf_counter()
    for _ in range(N_ADDS):
        contestant.add()
    added = time.perf_counter()
    seconds = (sampled - start, updated - sampled, (added - updated) / N_ADDS)
    return tuple(1e6 * second for second in seconds)


def _costs(name: str, arrays: dict[str, Any]) -> Row:
    sample, update, add = (float(np.median(times)) for times in arrays[name])
    costs: Row = {"sample": sample, "update": update, "add": add}
    costs |= quartiles("step", _step_times(arrays[name]))
    if UNIFORM in arrays and name != UNIFORM:
        ratios = _step_times(arrays[name]) / _step_times(arrays[UNIFORM])
        costs |= quartiles("step / SB3", ratios)
    return costs


def _step_times(array: Any) -> Any:
    sample, update, add = array
    return sample + update + N_ADDS * add
