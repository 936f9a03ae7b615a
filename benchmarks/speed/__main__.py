"""Measure what prioritization costs: ``python -m benchmarks.speed ops --help``."""

import argparse
import sys
from pathlib import Path

import pandas as pd
import torch as th

from benchmarks.rows import Row, as_text, save
from benchmarks.speed import contestants, memory, ops, rainbow, train

CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000)
IMAGES = 20_000


def main(arguments: list[str] | None = None) -> None:
    """Run one measurement on one thread; None for the arguments of this process."""
    asked = _parser().parse_args(arguments)
    th.set_num_threads(1)
    if asked.results is None:
        rows = pd.DataFrame(asked.measure(asked))
    else:
        rows = pd.read_json(asked.results, lines=True)
    sys.stdout.write(f"{as_text(rows)}\n")
    if asked.out:
        save(rows.to_dict("records"), asked.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    commands = parser.add_subparsers(required=True)

    ops = commands.add_parser("ops", help="time of sample, update and add, in microseconds")
    ops.add_argument("--capacities", type=int, nargs="*", default=CAPACITIES, help="stored floats")
    ops.add_argument("--images", type=int, default=IMAGES, help="images stored; 0 for none")
    ops.add_argument("--batches", type=int, nargs="+", default=(32, 256, 1024), help="batch sizes")
    ops.add_argument("--rounds", type=int, default=1000)
    ops.add_argument("--only", nargs="+", default=(), help="names of buffers (default: all)")
    ops.set_defaults(measure=_ops)

    train = commands.add_parser("train", help="steps a second of PERDQN and DQN")
    train.add_argument("--tasks", nargs="+", default=("CartPole", "LunarLander", "images"))
    train.add_argument("--rounds", type=int, default=36)
    train.add_argument("--device", default="cpu", help="cpu: in CPU time; cuda: wall-clock time")
    train.set_defaults(measure=_train)

    rainbow = commands.add_parser("rainbow", help="Rainbow, DQN, PERDQN and Tianshou's Rainbow")
    rainbow.add_argument("--rounds", type=int, default=60)
    rainbow.set_defaults(measure=_rainbow)

    slots = commands.add_parser("memory", help="bytes a slot, and growth while in use")
    slots.add_argument("--capacity", type=int, default=1_000_000)
    slots.add_argument("--steps", type=int, default=1_000_000, help="steps in use")
    slots.set_defaults(measure=_slots)

    images = commands.add_parser("image-memory", help="bytes of a transition of Atari's images")
    images.add_argument("--images", type=int, default=IMAGES, help="images stored")
    images.set_defaults(measure=_images)

    for command in (ops, train, rainbow, slots, images):
        command.add_argument("--out", type=Path, help="write the results into this .jsonl.gz file")
        command.add_argument("--results", type=Path, help="print this file, and measure nothing")
    return parser


def _ops(asked: argparse.Namespace) -> list[Row]:
    workloads = [contestants.flat(capacity) for capacity in asked.capacities]
    if asked.images:
        workloads.append(contestants.images(asked.images))
    rows: list[Row] = []
    for workload in workloads:
        rows += ops.measure(workload, ops.enter(workload, asked.only), asked.batches, asked.rounds)
    return rows


def _train(asked: argparse.Namespace) -> list[Row]:
    return [row for name in asked.tasks for row in train.measure(name, asked.rounds, asked.device)]


def _rainbow(asked: argparse.Namespace) -> list[Row]:
    return rainbow.measure(asked.rounds)


def _slots(asked: argparse.Namespace) -> list[Row]:
    kinds = ("proportional", "rank")
    return [memory.measure_slots(kind, asked.capacity, asked.steps) for kind in kinds]


def _images(asked: argparse.Namespace) -> list[Row]:
    return memory.measure_images(asked.images)


if __name__ == "__main__":
    main()
