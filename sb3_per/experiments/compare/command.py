"""The command line of ``sb3-per compare``."""

import argparse
import math
import sys
from pathlib import Path

from rich.console import Console

from sb3_per.experiments.common.command_line import Distinct, locked_folder, whole_number
from sb3_per.experiments.common.devices import device_that_is_here
from sb3_per.experiments.common.drawing import Output
from sb3_per.experiments.common.engine_options import add_engine_options, ray_options
from sb3_per.experiments.common.ray_connection import RayError, RayOptions, connected
from sb3_per.experiments.compare import run_folder, suite_file
from sb3_per.experiments.compare.engine import EndedCell, Remark, run
from sb3_per.experiments.compare.local import LocalEngine
from sb3_per.experiments.compare.problems import SuiteError
from sb3_per.experiments.compare.progress import RunDisplay
from sb3_per.experiments.compare.ray_engine import RayEngine
from sb3_per.experiments.compare.run_folder import DamagedResult, MixedResults
from sb3_per.experiments.compare.suite import Cell, Suite, cells
from sb3_per.experiments.compare.zoo_check import check_with_zoo


def main() -> None:
    """
    Run the command in ``sys.argv``.

    :raises SystemExit: with a message, if it cannot run; with 1, if a cell has failed.
    """
    asked = _parser().parse_args()
    try:
        asked.command(asked)
    except (SuiteError, MixedResults, DamagedResult, RayError, OSError) as error:
        raise SystemExit(f"sb3-per compare: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command continues with the rest") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sb3-per compare",
        description="Train the variants that a suite declares, and report on them.",
    )
    commands = parser.add_subparsers(required=True, metavar="new | run | report")

    of_new = commands.add_parser("new", help="write a suite to start from, with comments")
    of_new.add_argument("file", type=Path, help="a new file, named .yml or .yaml")
    of_new.set_defaults(command=_new)

    of_run = commands.add_parser(
        "run", help="train the runs of a suite; continues after an interruption"
    )
    of_run.add_argument("suite", help=f"{', '.join(suite_file.names())}, or your own YAML file")
    of_run.add_argument(
        "--seeds",
        type=whole_number(1),
        help="number of seeds (default: the suite's, or the run folder's if that is larger)",
    )
    of_run.add_argument(
        "--jobs",
        type=whole_number(1),
        help="runs at a time (default: 1; with --engine ray as many as its nodes can run)",
    )
    of_run.add_argument("--out", type=Path, help="run folder (default: runs/SUITE)")
    of_run.add_argument("--device", default="cpu", help="torch's device (default: cpu)")
    add_engine_options(of_run)
    of_run.set_defaults(command=_run, refuse=of_run.error)

    of_report = commands.add_parser("report", help="write figures, tables and claims")
    of_report.add_argument("folder", type=Path, help="run folder")
    of_report.add_argument("--out", type=Path, help="folder of the report (default: FOLDER/report)")
    of_report.add_argument(
        "--variants",
        nargs="+",
        action=Distinct,
        default=(),
        help="variants in the figures (default: all)",
    )
    of_report.add_argument(
        "--format",
        nargs="+",
        action=Distinct,
        choices=("svg", "pdf"),
        default=("svg",),
        help="formats of the figures, in addition to PNG, which the report shows (default: svg)",
    )
    of_report.add_argument(
        "--width", type=_inches, help="width of the figures in inches; the text keeps its size"
    )
    of_report.set_defaults(command=_report)
    return parser


def _inches(text: str) -> float:
    try:
        width = float(text)
    except ValueError:
        width = math.nan
    if not 2 <= width <= 40:
        raise argparse.ArgumentTypeError(f"must be a number from 2 to 40, got {text!r}")
    return width


def _new(asked: argparse.Namespace) -> None:
    suite_file.write_template(asked.file)
    sys.stdout.write(f"Next: sb3-per compare run {asked.file}\n")


def _run(asked: argparse.Namespace) -> None:
    options = ray_options(asked)
    _check_device(asked, options)
    suite = suite_file.load(asked.suite)
    check_with_zoo(suite, asked.suite)
    folder = asked.out or Path("runs", suite.name)
    with locked_folder(folder, "sb3-per compare"):
        suite = _with_all_seeds(suite, asked.seeds, folder)
        grid = cells(suite)
        todo = run_folder.unfinished(folder, grid)
        run_folder.check_places(folder, todo)
        suite_file.save(suite, folder / run_folder.SUITE)
        n_done = len(grid) - len(todo)
        if options is None or not todo:
            failed = _train_here(todo, n_done, asked, folder)
        else:
            failed = _train_on_ray(todo, n_done, asked, folder, options)
    n_finished = len(grid) - len(failed)
    sys.stdout.write(f"{n_finished} of {len(grid)} runs are finished.\n")
    n_others = len(run_folder.strangers(folder, grid))
    if n_others:
        sys.stdout.write(f"Results that do not belong to this grid (they are kept): {n_others}.\n")
    sys.stdout.write(f"Next: sb3-per compare report {folder}\n")
    for cell, error in failed:
        sys.stderr.write(f"\n{cell}: {error}\n")
    if failed:
        raise SystemExit(1)


def _with_all_seeds(suite: Suite, asked: int | None, folder: Path) -> Suite:
    """
    Return the suite with as many seeds as asked for.

    :param asked: None for the suite's number, or the run folder's if that is larger.
    :raises SuiteError: if the folder is another suite's.
    """
    kept = folder / run_folder.SUITE
    before = suite_file.load(str(kept)) if kept.is_file() else suite
    if before.name != suite.name:
        raise SuiteError(f"{folder} is the run folder of {before.name!r}, not of {suite.name!r}")
    return suite.model_copy(update={"seeds": asked or max(suite.seeds, before.seeds)})


def _check_device(asked: argparse.Namespace, options: RayOptions | None) -> None:
    """Check that this machine has the device; with Ray, only the nodes need it."""
    if options is None:
        try:
            asked.device = device_that_is_here(asked.device)
        except argparse.ArgumentTypeError as error:
            asked.refuse(f"argument --device: {error}")
    elif asked.device.startswith("cuda") and not options.gpus:
        asked.refuse(f"--device {asked.device} needs --gpus-per-run above 0 with --engine ray")


def _train_here(
    todo: list[Cell], n_done: int, asked: argparse.Namespace, folder: Path
) -> list[EndedCell]:
    with RunDisplay(todo, n_done, Console()) as display:
        return run(todo, LocalEngine(folder, asked.device), asked.jobs or 1, display)


def _train_on_ray(
    todo: list[Cell], n_done: int, asked: argparse.Namespace, folder: Path, options: RayOptions
) -> list[EndedCell]:
    with connected(options) as dashboard, RunDisplay(todo, n_done, Console()) as display:
        if dashboard:
            display.show(Remark(f"Ray's dashboard: {dashboard}"))
        engine = RayEngine(folder, asked.device, options)
        return run(todo, engine, asked.jobs or len(todo), display)


def _report(asked: argparse.Namespace) -> None:
    # Imports SciPy and Matplotlib, for which `run` would wait nearly two seconds.
    from sb3_per.experiments.compare import report

    out = asked.out or asked.folder / "report"
    output = Output(("png", *asked.format), asked.width)
    for line in report.write(asked.folder, out, asked.variants, output):
        sys.stdout.write(f"{line}\n")
