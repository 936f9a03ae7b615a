"""The connection to Ray: a driver starts Ray on its machine, or joins a cluster."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sb3_per.experiments.common.processes import ONE_THREAD

STARTS = 3  # how often the start of Ray on this machine is tried
TOO_SLOW = "timed out during startup"
BY_HAND = "start Ray with `ray start --head` and join it with --address auto"


class RayError(RuntimeError):
    """Raised if Ray cannot be used; the message says what is wrong and what to do."""


class RayOptions(NamedTuple):
    """
    The resources that a pool needs from Ray.

    :param address: Address of the cluster to join; None starts Ray on this machine.
    :param cpus: Ray's logical CPUs for each call.
    :param gpus: Ray's logical GPUs for each call.
    :param retries: How often a lost call is tried again.
    :param dashboard: Whether Ray's dashboard starts with Ray; None for where it is installed.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    retries: int = 3
    dashboard: bool | None = None


@contextmanager
def connected(options: RayOptions) -> Iterator[str]:
    """
    Start Ray on this machine or join a cluster; leave it at the end.

    At the end, a Ray that was started here stops; in a cluster, Ray stops this driver's calls.

    :return: The dashboard's address; empty without a dashboard.
    :raises RayError: if Ray cannot be started or joined, or stops meanwhile.
    """
    import ray

    context = _started(options)
    try:
        yield f"http://{context.dashboard_url}" if context.dashboard_url else ""
    except ray.exceptions.RayError as error:
        raise RayError(f"Ray has stopped: {one_line(error)}") from error
    finally:
        ray.shutdown()


def _started(options: RayOptions, n_starts: int = STARTS) -> Any:
    """
    Call ``ray.init``, and again if Ray is too slow.

    A node of Ray ends if its agents, which are Python programs, need more than 15 seconds to start.
    No setting changes that (ray-project/ray#65983), but a second start is faster: their files have
    just been read.
    """
    import ray

    try:
        return ray.init(
            address=options.address or "local",
            include_dashboard=None if options.address else options.dashboard,
            runtime_env={"env_vars": ONE_THREAD},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray raises a bare one where its start takes too long
        ray.shutdown()
        is_slow = TOO_SLOW in str(error)
        if is_slow and n_starts > 1:
            return _started(options, n_starts - 1)
        advice = f" End other programs on this machine, or {BY_HAND}." if is_slow else ""
        raise RayError(f"Ray could not be started or joined: {error}{advice}") from error


def one_line(error: BaseException) -> str:
    """Return an error's type and the first line of what it says."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
