"""Options on command lines that choose where runs are made."""

import argparse
import importlib.util
import math
from collections.abc import Callable

from sb3_per.experiments.common.command_line import whole_number
from sb3_per.experiments.common.ray_connection import RayOptions
from sb3_per.extras import install

_ONLY_WITH_RAY = ("address", "cpus_per_run", "gpus_per_run", "retries")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--engine`` and the options of Ray."""
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="processes on this machine, or Ray on this machine or a cluster (default: local)",
    )
    ray = parser.add_argument_group("with --engine ray")
    ray.add_argument("--address", help="cluster to join (default: start Ray on this machine)")
    ray.add_argument(
        "--cpus-per-run",
        type=_share(above_zero=True),
        help="Ray's logical CPUs for each run (default: 1)",
    )
    ray.add_argument(
        "--gpus-per-run",
        type=_share(above_zero=False),
        help="Ray's logical GPUs for each run (default: 0)",
    )
    ray.add_argument(
        "--retries",
        type=whole_number(0),
        help="how often a run is tried again if its process or node is lost (default: 3)",
    )


def ray_options(asked: argparse.Namespace) -> RayOptions | None:
    """
    Return the options of Ray; None with ``--engine local``.

    :raises SystemExit: with a message, if options for Ray are given without it, or it is missing.
    """
    given = {name: getattr(asked, name) for name in _ONLY_WITH_RAY}
    given = {name: value for name, value in given.items() if value is not None}
    if asked.engine == "local":
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise SystemExit(f"{names} must be used with --engine ray, got --engine local")
        return None
    if importlib.util.find_spec("ray") is None:
        raise SystemExit(f"--engine ray needs the package ray: {install('ray')}")
    address = given.get("address")
    if address is not None and address.startswith("ray://"):
        raise SystemExit(
            "--address must name a cluster of which this machine is a node, such as auto or "
            f"HOST:6379, got {address!r}. Run the command on a node, or by `ray job submit`"
        )
    default = RayOptions()
    return RayOptions(
        address,
        given.get("cpus_per_run", default.cpus),
        given.get("gpus_per_run", default.gpus),
        given.get("retries", default.retries),
    )


def _share(*, above_zero: bool) -> Callable[[str], float]:
    """Return a parser of amounts as Ray takes them: parts of one, or whole numbers."""
    rule = f"must be a number {'above 0' if above_zero else 'from 0'}, whole if above 1"

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        in_range = 0 < number < math.inf or (number == 0 and not above_zero)
        if not in_range or (number > 1 and not number.is_integer()):
            raise argparse.ArgumentTypeError(f"{rule}, got {text!r}")
        return number

    return parse
