"""The command line of ``sb3-per compare``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import yaml
from pydantic import ValidationError

from sb3_per._utils import install, require_whole
from sb3_per.compare.run import RayOptions, make_runs
from sb3_per.compare.suite import Suite, from_options, load

TEMPLATE = Path(__file__).with_name("template.yml")
STEPS = 100_000  # of a run that the command line describes
PREFIX = "Value error, "  # of pydantic, before a message of ours


def main() -> None:
    """
    Run the command in ``sys.argv``.

    :raises SystemExit: with a message if it cannot run; with 1 if a run has failed.
    """
    arguments = _parser().parse_args()
    try:
        arguments.command(arguments)
    except ValidationError as error:
        lines = []
        for found in error.errors():
            place = ".".join(map(str, found["loc"]))  # empty for a rule of the whole suite
            lines.append(f"{place}: {found['msg']}" if place else found["msg"].removeprefix(PREFIX))
        raise SystemExit("\n".join(["sb3-per compare: the suite is not valid", *lines])) from error
    except gym.error.UnregisteredEnv as error:
        name = arguments.env or "MyEnv-v0"  # or in a suite
        hint = f"If a module of yours registers it, write my_module:{name}"
        raise SystemExit(f"sb3-per compare: {error} {hint}") from error
    except (ValueError, OSError, ImportError, yaml.YAMLError, gym.error.Error) as error:
        raise SystemExit(f"sb3-per compare: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command continues with the rest") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sb3-per compare",
        description="Train variants of algorithms on tasks and seeds, and report on the runs.",
    )
    commands = parser.add_subparsers(required=True, metavar="new | run | report")
    new = commands.add_parser("new", help="write a suite to start from, with comments")
    new.add_argument("file", type=Path, help="a new YAML file")
    new.set_defaults(command=_new)
    _add_run(commands)
    report = commands.add_parser("report", help="write a table and learning curves")
    report.add_argument("results", type=Path, help="run folder")
    report.add_argument("--out", type=Path, help="folder of the report (default: RESULTS/report)")
    report.add_argument(
        "--variants", nargs="+", default=(), help="variants in the figure (default: all)"
    )
    report.add_argument(
        "--format", choices=("svg", "pdf", "png"), default="svg", help="of the figure"
    )
    report.set_defaults(command=_report)
    return parser


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="make the runs of a suite that are not finished yet",
        allow_abbrev=False,  # --seed would be read as --seeds
    )
    run.add_argument("suite", nargs="?", type=Path, help="YAML file")
    run.add_argument("--env", help="without a YAML file: the environment")
    run.add_argument(
        "--algos",
        nargs="+",
        help="its algorithms, such as dqn per_dqn per_dqn:paper; the first one is the baseline",
    )
    run.add_argument("--steps", type=int, help=f"its steps, a multiple of 20 (default: {STEPS})")
    run.add_argument("--seeds", type=int, help="number of seeds (default: the suite's, or 5)")
    run.add_argument("--jobs", type=int, help="runs at a time (default: 1; with Ray no limit)")
    run.add_argument("--out", type=Path, help="run folder (default: runs/NAME)")
    run.add_argument("--device", default="cpu", help="torch's device (default: cpu)")
    run.add_argument("--engine", choices=("local", "ray"), default="local", help="who makes runs")
    ray = run.add_argument_group("with --engine ray")
    ray.add_argument("--address", help="cluster to join (default: start Ray on this machine)")
    ray.add_argument("--cpus-per-run", type=float, dest="cpus", help="default: 1")
    ray.add_argument("--gpus-per-run", type=float, dest="gpus", help="default: 0")
    ray.add_argument("--retries", type=int, help="tries to make a lost run again (default: 3)")
    run.set_defaults(command=_run)


def _new(arguments: argparse.Namespace) -> None:
    with arguments.file.open("x", encoding="utf-8") as file:
        file.write(TEMPLATE.read_text(encoding="utf-8"))
    sys.stdout.write(f"Next: sb3-per compare run {arguments.file}\n")


def _run(arguments: argparse.Namespace) -> None:
    for name in ("seeds", "jobs"):
        if (number := getattr(arguments, name)) is not None:
            require_whole(f"--{name}", number)
    suite = _suite(arguments)
    folder = arguments.out or Path("runs", suite.name)
    failed = make_runs(suite, folder, arguments.jobs, arguments.device, _ray_options(arguments))
    sys.stdout.write(f"Next: sb3-per compare report {folder}\n")
    if failed:
        raise SystemExit(f"{len(failed)} runs failed; the same command tries them again")


def _suite(arguments: argparse.Namespace) -> Suite:
    if arguments.suite is not None:
        for name in ("env", "algos", "steps"):
            if getattr(arguments, name) is not None:
                raise ValueError(f"--{name} must not be given with a suite: change the suite")
        suite = load(arguments.suite)
        return suite.model_copy(update={"seeds": arguments.seeds}) if arguments.seeds else suite
    if not (arguments.env and arguments.algos):
        raise ValueError("name a suite, or --env and --algos")
    algorithms = [name for text in arguments.algos for name in text.split(",") if name]
    steps = STEPS if arguments.steps is None else arguments.steps
    suite = from_options(arguments.env, algorithms, steps, arguments.seeds or 5)
    sys.stdout.write(f"{suite.about}\n")
    return suite


def _ray_options(arguments: argparse.Namespace) -> RayOptions | None:
    names = RayOptions._fields
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.engine == "local":
        if given:
            options = "--address, --cpus-per-run, --gpus-per-run and --retries"
            raise ValueError(f"{options} need --engine ray")
        return None
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ValueError(f"--engine ray needs the package ray: {install('ray')}") from error
    return RayOptions(**given)


def _report(arguments: argparse.Namespace) -> None:
    from sb3_per.compare.results import read

    try:
        from sb3_per.compare import report  # it needs SciPy and Matplotlib, and `run` does not
    except ImportError as error:
        raise ValueError(f"report needs the package {error.name}: {install('plots')}") from error

    out = arguments.out or arguments.results / "report"
    rows = report.write(read(arguments.results), out, arguments.variants, arguments.format)
    sys.stdout.write(f"{rows}\n\n{out / 'report.md'}\n")
