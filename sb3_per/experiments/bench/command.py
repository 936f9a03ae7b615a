"""The command line of ``sb3-per bench``."""

import argparse
import importlib.util
import json
import platform
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch as th

from sb3_per.experiments.bench import (
    gradient_steps,
    image_memory,
    ops,
    plot,
    profile,
    slot_memory,
    train,
)
from sb3_per.experiments.common.command_line import Distinct, make_folder, whole_number
from sb3_per.experiments.common.devices import device_that_is_here
from sb3_per.experiments.common.versions import installed
from sb3_per.extras import install
from sb3_per.prioritization.names import PRIORITIZATIONS

PACKAGES = (
    "sb3-per",
    "stable-baselines3",
    "torch",
    "numpy",
    "numba",
    "cpprb",
    "tianshou",
    "torchrl",
)


def main() -> None:
    """Run the measurement that ``sys.argv`` names, on one thread."""
    asked = _parser().parse_args()
    if asked.out is not None:
        make_folder(asked.out)
    th.set_num_threads(1)
    asked.run(asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sb3-per bench",
        description="Measure what the buffer and training cost, next to other libraries.",
    )
    commands = parser.add_subparsers(required=True, metavar="WHAT")

    of_ops = commands.add_parser("ops", help="time of sample, update and add; in microseconds")
    for option, nargs, numbers, what in (
        ("--capacities", "*", ops.CAPACITIES, "slots of 8 floats, all in use"),
        ("--batches", "+", ops.BATCHES, "batch sizes"),
    ):
        listed = " ".join(map(str, numbers))
        of_ops.add_argument(
            option,
            type=whole_number(1),
            nargs=nargs,
            action=Distinct,
            default=numbers,
            help=f"{what} (default: {listed})",
        )
    of_ops.add_argument(
        "--images",
        type=whole_number(0),
        default=ops.IMAGES,
        help=f"images stored; 0 for none (default: {ops.IMAGES})",
    )
    of_ops.add_argument(
        "--rounds", type=whole_number(1), default=1000, help="rounds of measuring (default: 1000)"
    )
    of_ops.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="buffers to measure (default: all)"
    )
    of_ops.set_defaults(run=_run_ops)

    of_train = commands.add_parser("train", help="steps a second of PERDQN and DQN")
    of_train.add_argument(
        "--rounds", type=whole_number(1), default=36, help="rounds of measuring (default: 36)"
    )
    of_train.add_argument(
        "--device",
        type=device_that_is_here,
        default="cpu",
        help="cpu: in CPU time; cuda: in wall-clock time",
    )
    of_train.set_defaults(run=_run_train)

    of_steps = commands.add_parser(
        "gradient-steps", help="time of a gradient step of each algorithm and of its base"
    )
    of_steps.add_argument(
        "--rounds", type=whole_number(1), default=60, help="rounds of measuring (default: 60)"
    )
    of_steps.add_argument(
        "--algorithms",
        nargs="+",
        action=Distinct,
        choices=gradient_steps.bases(),
        default=[*gradient_steps.bases()],
        help="which of them (default: all)",
    )
    of_steps.set_defaults(run=_run_gradient_steps)

    of_profile = commands.add_parser("profile", help="where the time of a training step goes")
    of_profile.add_argument(
        "--steps", type=whole_number(1), default=4000, help="steps of training (default: 4000)"
    )
    of_profile.set_defaults(run=_run_profile)

    of_memory = commands.add_parser("memory", help="bytes a slot, and growth while in use")
    of_memory.add_argument(
        "--capacity", type=whole_number(1), default=1_000_000, help="slots (default: 1000000)"
    )
    of_memory.add_argument(
        "--steps", type=whole_number(1), default=1_000_000, help="steps in use (default: 1000000)"
    )
    of_memory.add_argument(
        "--images",
        type=whole_number(0),
        default=ops.IMAGES,
        help=f"images stored; 0 for none (default: {ops.IMAGES})",
    )
    of_memory.set_defaults(run=_run_memory)

    of_engines = commands.add_parser(
        "engines", help="time of many short runs, with and without Ray"
    )
    of_engines.add_argument(
        "--runs", type=whole_number(1), default=64, help="runs in a grid (default: 64)"
    )
    of_engines.add_argument(
        "--workers",
        type=whole_number(1),
        nargs="+",
        action=Distinct,
        default=[1, 2],
        help="runs at a time (default: 1 2)",
    )
    of_engines.add_argument(
        "--engines",
        nargs="+",
        action=Distinct,
        choices=("local", "ray"),
        default=["local", "ray"],
        help="engines to measure (default: both)",
    )
    of_engines.set_defaults(run=_run_engines)

    for each in (of_train, of_profile):
        each.add_argument(
            "--tasks",
            nargs="+",
            action=Distinct,
            choices=train.TASKS,
            default=[*train.TASKS],
            help="which of them (default: all)",
        )
    for each in (of_ops, of_train, of_steps, of_profile, of_memory, of_engines):
        each.add_argument("--out", type=Path, help="folder for JSON and plots")
    return parser


def _run_ops(asked: argparse.Namespace) -> None:
    costs: list[ops.Cost] = []
    for workload in ops.workloads(asked.capacities, asked.images):
        _say(f"\n## {workload.name}, {workload.capacity:,} stored\n")
        try:
            entered, left_out = ops.enter(workload, asked.only)
        except ValueError as error:
            raise SystemExit(f"sb3-per bench ops: {error}") from None
        for name, reason in left_out.items():
            _say(f"{name} is left out: {reason}")
        costs += (found := ops.measure(workload, entered, asked.batches, asked.rounds))
        for batch in asked.batches:
            of_batch = [cost for cost in found if cost.batch == batch]
            _say(f"\nBatch of {batch}\n\n{ops.summary(of_batch)}")
    _save(asked, "ops", [cost._asdict() for cost in costs])
    if asked.out is not None:
        _say(f"\n{plot.against_capacity(costs, asked.out / 'ops')}")


def _run_train(asked: argparse.Namespace) -> None:
    for name in _possible(asked.tasks):
        paces = train.measure(name, asked.rounds, asked.device)
        _say(f"\n{train.summary(paces)}")
        _save(asked, f"train_{name.lower()}", [pace._asdict() for pace in paces])


def _run_gradient_steps(asked: argparse.Namespace) -> None:
    costs = [gradient_steps.measure(name, asked.rounds) for name in asked.algorithms]
    _say(f"\n{gradient_steps.summary(costs)}")
    _save(asked, "gradient_steps", [cost._asdict() for cost in costs])


def _run_profile(asked: argparse.Namespace) -> None:
    for name in _possible(asked.tasks):
        jobs = profile.profile(name, asked.steps)
        _say(f"\n{profile.summary(name, jobs)}")
        _save(asked, f"profile_{name.lower()}", jobs)


def _run_memory(asked: argparse.Namespace) -> None:
    found: list[Any] = [
        slot_memory.measure(name, asked.capacity, asked.steps) for name in PRIORITIZATIONS
    ]
    _say(f"\n{slot_memory.summary(found)}")
    _save(asked, "memory", [one._asdict() for one in found])
    if asked.images and importlib.util.find_spec("psutil") is None:
        _say(f"\nImages are left out without the package psutil: {install('bench')}")
    elif asked.images:
        of_images = image_memory.measure(asked.images)
        _say(f"\n{image_memory.summary(of_images)}")
        _save(asked, "memory_of_images", [one._asdict() for one in of_images])
        if asked.out is not None:
            _say(f"\n{image_memory.draw(of_images, asked.out / 'memory')}")


def _run_engines(asked: argparse.Namespace) -> None:
    if importlib.util.find_spec("ray") is None:
        raise SystemExit(f"sb3-per bench engines needs the package ray: {install('ray')}")
    from sb3_per.experiments.bench import engines  # RL-Zoo, which it needs, takes seconds

    empty, grids = engines.measure_empty(asked.runs), []
    for engine, n_workers in product(asked.engines, asked.workers):
        grid = engines.measure_grid(engine, n_workers, asked.runs)
        _say(f"{engine}, {n_workers} at a time: {grid.seconds:.0f} seconds")
        grids.append(grid)
        _save(asked, "engines", [empty._asdict(), *(grid._asdict() for grid in grids)])
    _say(f"\n{engines.summary(empty, grids)}")
    if asked.out is not None:
        _say(f"\n{engines.draw(grids, asked.out / 'engines')}")


def _possible(tasks: Sequence[str]) -> Sequence[str]:
    for name in tasks:
        package = train.missing(train.TASKS[name])
        if package is not None:
            _say(f"{name} is left out: {package} is not installed")
    return [name for name in tasks if train.missing(train.TASKS[name]) is None]


def _save(asked: argparse.Namespace, name: str, results: Any) -> None:
    if asked.out is None:
        return
    about = {"python": platform.python_version(), "machine": platform.machine()}
    about |= installed(PACKAGES)
    options = {key: value for key, value in vars(asked).items() if key not in ("run", "out")}
    contents = {"versions": about, "options": options, "results": results}
    (asked.out / f"{name}.json").write_text(json.dumps(contents, indent=1) + "\n")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
