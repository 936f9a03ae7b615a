"""``sb3-per cliffwalk``: make the missing runs, then show all results."""

import argparse
import pathlib
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing

from tqdm import tqdm

from sb3_per.experiments.cliffwalk import measurements, methods, overview
from sb3_per.experiments.cliffwalk.trials import Family, Trial, UpdatesNeeded
from sb3_per.experiments.common.command_line import Distinct, locked_folder, whole_number
from sb3_per.experiments.common.engine_options import add_engine_options, ray_options
from sb3_per.experiments.common.processes import SPAWN, end_with_parent
from sb3_per.experiments.common.ray_connection import RayError, RayOptions, connected
from sb3_per.experiments.common.ray_pool import Failed, RayPool, Returned, Started


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Rerun the paper's Figures 1 and 2, or the same with networks.

    :param arguments: The arguments; None for those of this process.
    """
    asked = _parser().parse_args(arguments)
    family = _family(asked)
    default = "cliffwalk_networks" if asked.networks else "cliffwalk"
    folder = asked.out or pathlib.Path("runs", default)
    options = ray_options(asked)
    with locked_folder(folder, "sb3-per cliffwalk"):
        try:
            run(family, folder, asked.jobs, options)
        except RayError as error:
            raise SystemExit(f"sb3-per cliffwalk: {error}") from error
    overview.show(folder)


def run(
    family: Family, folder: pathlib.Path, n_jobs: int | None, options: RayOptions | None = None
) -> None:
    """
    Make the runs that the folder does not hold yet; each is written when it is done.

    :param n_jobs: How many at a time; None for one, or as many as Ray's nodes can run.
    :param options: What to ask of Ray; None for processes on this machine.
    :raises SystemExit: at the end, if runs have failed on Ray.
    """
    known = measurements.read(folder)
    missing = [trial for trial in family.trials() if trial not in known]
    if options is None or not missing:
        finished = _made_here(family, missing, n_jobs or 1)
    else:
        finished = _made_on_ray(family, missing, n_jobs or len(missing), options)
    with closing(finished):
        for trial, updates_needed in tqdm(finished, total=len(missing), unit="run", leave=False):
            known[trial] = updates_needed
            measurements.write(folder, known)


Finished = Generator[tuple[Trial, UpdatesNeeded], None, None]


def _made_here(family: Family, missing: Sequence[Trial], n_jobs: int) -> Finished:
    with ProcessPoolExecutor(n_jobs, SPAWN, end_with_parent) as executor:
        futures = {executor.submit(family.run, *trial): trial for trial in missing}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            executor.shutdown(cancel_futures=True)


def _made_on_ray(
    family: Family, missing: Sequence[Trial], n_jobs: int, options: RayOptions
) -> Finished:
    waiting = deque(missing)
    failed = []
    with connected(options) as dashboard:
        tqdm.write(f"Ray's dashboard: {dashboard or 'none'}")
        pool = RayPool(family.run, options)
        n_running = 0
        while waiting or n_running:
            while waiting and n_running < n_jobs:
                trial = waiting.popleft()
                pool.submit(trial, *trial)
                n_running += 1
            event = pool.collect()
            n_running -= isinstance(event, Returned | Failed)
            if isinstance(event, Returned):
                yield Trial(*event.key), event.value
            elif isinstance(event, Failed):
                failed.append(f"{event.key}: {event.error}")
            elif not isinstance(event, Started):
                tqdm.write(" ".join(map(str, event)))
    if failed:
        raise SystemExit("\n".join([f"{len(failed)} runs have failed:", *failed]))


def _family(asked: argparse.Namespace) -> Family:
    """Return the family of runs that the arguments name, or a part of it."""
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
        "--networks", action="store_true", help="compare DQN and PERDQN instead of tables"
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
        parser.add_argument(option, nargs="+", action=Distinct, help="which of them (default: all)")
    parser.add_argument(
        "--jobs",
        type=whole_number(1),
        help="runs at a time (default: 1; with --engine ray as many as its nodes can run)",
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        help="folder of results and figures (default: runs/cliffwalk; runs/cliffwalk_networks)",
    )
    add_engine_options(parser)
    return parser
