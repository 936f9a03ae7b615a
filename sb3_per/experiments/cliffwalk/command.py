"""``sb3-per cliffwalk``: run what is missing, then show all there is."""

import argparse
import pathlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tqdm import tqdm

from sb3_per.experiments.cliffwalk import methods, report, results
from sb3_per.experiments.cliffwalk.cells import Family
from sb3_per.experiments.common.command_line import Distinct, locked_folder, whole_number
from sb3_per.experiments.common.processes import SPAWN, end_with_parent


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Rerun the paper's Figures 1 and 2, or the same with networks.

    :param arguments: By default those of this process.
    """
    asked = _parser().parse_args(arguments)
    family = _family(asked)
    default = "cliffwalk_networks" if asked.networks else "cliffwalk"
    folder = asked.out or pathlib.Path("runs", default)
    with locked_folder(folder, "sb3-per cliffwalk"):
        run(family, folder, asked.jobs)
    report.show(folder)


def run(family: Family, folder: pathlib.Path, n_jobs: int) -> None:
    """
    Make the runs whose outcomes the folder does not hold yet; each is written when it is done.

    :param n_jobs: How many processes.
    """
    known = results.read(folder)
    missing = [cell for cell in family.cells() if cell not in known]
    with ProcessPoolExecutor(n_jobs, SPAWN, end_with_parent) as executor:
        futures = {executor.submit(family.run, *cell): cell for cell in missing}
        try:
            for future in tqdm(as_completed(futures), total=len(missing), unit="run", leave=False):
                known[futures[future]] = future.result()
                results.write(folder, known)
        finally:
            executor.shutdown(cancel_futures=True)


def _family(asked: argparse.Namespace) -> Family:
    """The family that is asked for, or the part of it."""
    if asked.networks:
        from sb3_per.experiments.cliffwalk import (
            networks,  # torch takes seconds, which tables do not need
        )

        family = networks.FAMILY
    else:
        family = methods.FAMILY
    given = {name: getattr(asked, name) for name in ("learners", "methods", "sizes", "n_seeds")}
    for name in ("learners", "methods"):
        unknown = {*(given[name] or ())} - {*getattr(family, name)}
        if unknown:
            choices = " ".join(getattr(family, name))
            raise SystemExit(f"--{name} must be of {choices}, got {' '.join(sorted(unknown))}")
    return family._replace(**{name: value for name, value in given.items() if value})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sb3-per cliffwalk",
        description="How many updates each kind of replay needs to learn BlindCliffwalk: Figures 1 "
        "and 2 of Schaul et al. (2016). Runs that the folder holds already are not made again.",
    )
    parser.add_argument(
        "--networks", action="store_true", help="DQN against PERDQN, rather than tables"
    )
    parser.add_argument(
        "--n",
        dest="sizes",
        type=whole_number(2, 20),
        nargs="+",
        action=Distinct,
        help="numbers of states",
    )
    parser.add_argument("--seeds", dest="n_seeds", type=whole_number(1), help="how many seeds")
    for option in ("--learners", "--methods"):
        parser.add_argument(option, nargs="+", action=Distinct, help="by default all")
    parser.add_argument("--jobs", type=whole_number(1), default=1, help="how many processes")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        help="folder of results and figures (default: runs/cliffwalk; runs/cliffwalk_networks)",
    )
    return parser
