"""Time of sampling, updating and adding: all contestants in one process, turn by turn."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sb3_per.experiments.bench.contestants import (
    Contestant,
    Workload,
    buffers,
    flat,
    images,
    structures,
)
from sb3_per.experiments.bench.peers import LARGEST, peers
from sb3_per.experiments.bench.quartiles import Quartiles, quartiles_of
from sb3_per.experiments.common.tables import markdown
from sb3_per.rules import require

BATCHES = (32, 256, 1024)
CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000)
IMAGES = 20_000
N_ADDS = 4  # DQN adds four transitions from update to update by default
OPERATIONS = ("sample", "update", "add")
UNIFORM, TREES = "SB3 uniform", "torchrl's trees, bare"


class Cost(NamedTuple):
    """Microseconds of a contestant; a step is one sample, one update and four additions."""

    stored: str
    capacity: int
    batch: int
    name: str
    sample: Quartiles
    update: Quartiles
    add: Quartiles  # of one transition
    step: Quartiles
    step_over_uniform: Quartiles | None  # of each round's step over that of SB3's buffer
    sample_over_trees: Quartiles | None  # the same over torchrl's trees
    update_over_trees: Quartiles | None


def workloads(capacities: Iterable[int], n_images: int) -> list[Workload]:
    """Return the workloads: flat observations at each capacity, then images, if any."""
    return [*map(flat, capacities), *([images(n_images)] if n_images else [])]


def enter(
    workload: Workload, only: Sequence[str] = ()
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """
    Return the full contestants by name, and why each of the others is left out.

    :param only: Names of those to measure; by default all.
    :raises ValueError: for a name that no contestant of this workload has.
    """
    own = dict((*buffers(workload), *structures(workload)))
    others = list(peers(workload))
    names = [*own, *(name for name, *_ in others)]
    for name in only:
        require(name in names, f"contestants of {workload.name} must be among {names}", name)
    entered = {name: make() for name, make in own.items() if name in only or not only}
    left_out = {}
    for name, package, make in others:
        if only and name not in only:
            continue
        if workload.capacity > LARGEST or workload.observations.dtype == np.uint8:
            left_out[name] = f"measured only with 8 floats, up to {LARGEST:,} stored"
            continue
        try:
            entered[name] = make()
        except ImportError as problem:
            left_out[name] = f"{package} cannot be imported: {str(problem).splitlines()[0][:60]}"
    return entered, left_out


def measure(
    workload: Workload, entered: dict[str, Contestant], batches: Sequence[int], n_rounds: int
) -> list[Cost]:
    """
    Medians over rounds. In a round each contestant makes one step with each batch size, in an order
    that is random: the previous contestant decides what the caches hold.

    :param batches: Transitions in a batch.
    """
    random = np.random.default_rng(0)
    names = list(entered)
    times: dict[tuple[int, str], list[tuple[float, ...]]] = {
        (batch, name): [] for batch in batches for name in names
    }
    for _ in range(n_rounds):
        for batch in batches:
            td_errors = random.exponential(size=batch).astype(np.float32)
            for i in random.permutation(len(names)):
                times[batch, names[i]].append(_step(entered[names[i]], batch, td_errors))
    costs = []
    for batch in batches:
        arrays = {name: np.array(times[batch, name]) for name in names}  # (n_rounds, 3)
        costs += [_cost(workload, batch, name, arrays) for name in names]
    return costs


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
    return tuple(1e6 * each for each in seconds)


def _cost(workload: Workload, batch: int, name: str, arrays: dict[str, Any]) -> Cost:
    sample, update, add = arrays[name].T

    def over(reference: str, operation: int | None) -> Quartiles | None:
        if reference not in arrays or name == reference:
            return None
        of_all = [
            _step_times(array) if operation is None else array[:, operation]
            for array in (arrays[name], arrays[reference])
        ]
        return quartiles_of(of_all[0] / of_all[1])

    return Cost(
        stored=workload.name,
        capacity=workload.capacity,
        batch=batch,
        name=name,
        sample=quartiles_of(sample),
        update=quartiles_of(update),
        add=quartiles_of(add),
        step=quartiles_of(_step_times(arrays[name])),
        step_over_uniform=over(UNIFORM, None),
        sample_over_trees=over(TREES, 0),
        update_over_trees=over(TREES, 1),
    )


def _step_times(array: Any) -> Any:
    return array[:, 0] + array[:, 1] + N_ADDS * array[:, 2]


def summary(costs: list[Cost]) -> str:
    """Return the costs of one workload and one batch size as a table."""
    header = ("us", *OPERATIONS, "step", "step/SB3", "low-high")
    over_trees = [
        f"{cost.name}, over {TREES}: sample {_ratio(cost.sample_over_trees)}, "
        f"update {_ratio(cost.update_over_trees)}"
        for cost in costs
        if cost.sample_over_trees and cost.name.startswith("sb3-per") and cost.name.endswith("bare")
    ]
    return "\n".join(
        [markdown(header, [_row(cost) for cost in costs], is_aligned=True), "", *over_trees]
    )


def _row(cost: Cost) -> tuple[str, ...]:
    ratio = cost.step_over_uniform
    medians = (cost.sample.median, cost.update.median, cost.add.median, cost.step.median)
    return (
        cost.name,
        *(f"{median:.3g}" if median < 1000 else f"{median:.0f}" for median in medians),
        _ratio(ratio),
        f"{ratio.low:.2f}-{ratio.high:.2f}" if ratio else "",
    )


def _ratio(quartiles: Quartiles | None) -> str:
    return f"{quartiles.median:.2f}" if quartiles else ""
