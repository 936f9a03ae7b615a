"""Calls of a function on the nodes of a Ray cluster; lost calls are repeated."""

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any, NamedTuple

from sb3_per.experiments.common.ray_connection import RayError, RayOptions, one_line

SAME_EVERYWHERE = ("sb3-per", "stable-baselines3", "torch")
# Calls that no node can take wait silently in Ray's queue: look for nodes after so many seconds.
SILENCE_S = 10


class Started(NamedTuple):
    """A call runs on a node."""

    key: Any
    node: str


class Lost(NamedTuple):
    """A call was lost with its process or node, and is repeated."""

    key: Any
    reason: str


class Refused(NamedTuple):
    """A node gets no more calls, because it has other versions than the driver."""

    node: str
    reason: str


class Waiting(NamedTuple):
    """No node of the cluster has what a call needs; Ray waits until there is one."""

    reason: str


class Returned(NamedTuple):
    """A call has returned."""

    key: Any
    value: Any


class Failed(NamedTuple):
    """A call has raised, or was lost too often."""

    key: Any
    error: str


Event = Started | Lost | Refused | Waiting | Returned | Failed


class _Call(NamedTuple):
    key: Any
    payload: bytes
    n_lost: int = 0


class RayPool:
    """
    Calls a function on the cluster that this process is connected to.

    :param work: The function; all nodes must be able to import it.
    :param options: ``cpus``, ``gpus`` and ``retries`` apply to each call.
    """

    def __init__(self, work: Callable[..., Any], options: RayOptions) -> None:
        import ray

        self._ray, self._work, self._options = ray, work, options
        self._remote = ray.remote(_generator(_versions()))
        self._calls: dict[Any, _Call] = {}
        self._events: deque[Event] = deque()
        self._refused: dict[str, str] = {}  # why, by the node's ID
        self._has_told_of_waiting = False

    def submit(self, key: Any, *arguments: Any) -> None:
        """
        Give one call to Ray, which starts it on a node that has free CPUs.

        :param key: The key of the call in its events.
        """
        payload = pickle.dumps((self._work, arguments))
        self._start(_Call(key, payload))

    def collect(self) -> Event:
        """
        Wait for the next event of the calls that were submitted.

        :raises RayError: if no node is left that could take a call.
        """
        while not self._events:
            # Objects stay where they are until ray.get: they may be larger than the free memory.
            ready, _ = self._ray.wait([*self._calls], fetch_local=False, timeout=SILENCE_S)
            if ready:
                self._take(ready[0])
            else:
                self._look_for_nodes()
        return self._events.popleft()

    def _start(self, call: _Call) -> None:
        refused = ",".join(sorted(self._refused))
        stream = self._remote.options(
            num_cpus=self._options.cpus,
            num_gpus=self._options.gpus,
            num_returns="streaming",
            max_retries=0,  # Ray would try again without end where memory is short
            label_selector={"ray.io/node-id": f"!in({refused})"} if refused else None,
        ).remote(call.payload)
        self._calls[stream] = call

    def _take(self, stream: Any) -> None:
        """Turn the next thing that a call yields, or its end, into an event."""
        call = self._calls[stream]
        try:
            kind, *values = self._ray.get(next(stream))
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, self._ray.exceptions.RayError):  # the object store is full
                self._lose(stream, one_line(error.cause))
            else:
                self._end(stream, Failed(call.key, str(error)))
        except (self._ray.exceptions.RayError, StopIteration) as error:
            self._lose(stream, one_line(error))
        else:
            if kind == "started":
                self._events.append(Started(call.key, values[0]))
            elif kind == "returned":
                self._end(stream, Returned(call.key, values[0]))
            else:
                self._refuse(stream, *values)

    def _end(self, stream: Any, event: Event) -> None:
        del self._calls[stream]
        self._events.append(event)

    def _lose(self, stream: Any, reason: str) -> None:
        call = self._calls[stream]
        if call.n_lost == self._options.retries:
            error = f"lost {call.n_lost + 1} times, --retries is {call.n_lost}; at last: {reason}"
            self._end(stream, Failed(call.key, error))
            return
        tries = f"try {call.n_lost + 2} of {self._options.retries + 1}"
        self._end(stream, Lost(call.key, f"{reason}; {tries}"))
        self._start(call._replace(n_lost=call.n_lost + 1))

    def _refuse(self, stream: Any, node_id: str, node: str, found: dict[str, str]) -> None:
        call = self._calls.pop(stream)
        if node_id not in self._refused:
            self._refused[node_id] = f"{node}: {_difference(found)}"
            self._events.append(Refused(node, _difference(found)))
        self._look_for_nodes()
        self._start(call)

    def _look_for_nodes(self) -> None:
        """Raise RayError if no node can take the calls; tell if the cluster may still start one."""
        if self._usable_nodes() - self._refused.keys():
            self._has_told_of_waiting = False
        elif self._refused:
            reasons = "; ".join(dict.fromkeys(self._refused.values()))
            raise RayError(f"no node of the cluster can be used; {reasons}")
        else:
            cpus, gpus = self._options.cpus, self._options.gpus
            reason = f"no node has {cpus:g} CPUs and {gpus:g} GPUs, which a run needs"
            if self._options.address is None:
                raise RayError(reason)
            if not self._has_told_of_waiting:
                self._has_told_of_waiting = True
                self._events.append(Waiting(f"{reason}; Ray waits for one"))

    def _usable_nodes(self) -> set[str]:
        """Return the IDs of the nodes that are large enough for a call."""
        return {
            node["NodeID"]
            for node in self._ray.nodes()  # type: ignore[no-untyped-call]  # as Ray ships it
            if node["Alive"]
            and node["Resources"].get("CPU", 0) >= self._options.cpus
            and node["Resources"].get("GPU", 0) >= self._options.gpus
        }


def _generator(expected: dict[str, str]) -> Callable[[bytes], Iterator[tuple[Any, ...]]]:
    """
    Return what runs on a node.

    A node with another sb3-per may lack our modules. So the function is a closure, which Ray sends
    as a whole, and unpickles ours only where the versions are the same.
    """

    def call(payload: bytes) -> Iterator[tuple[Any, ...]]:
        import pickle
        import socket
        from importlib import metadata

        import ray

        found = {}
        for package in expected:
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                found[package] = "none"
        host = socket.gethostname()
        if found != expected:
            yield "refused", ray.get_runtime_context().get_node_id(), host, found
            return
        yield "started", host
        work, arguments = pickle.loads(payload)
        yield "returned", work(*arguments)

    return call


def _versions() -> dict[str, str]:
    return {package: metadata.version(package) for package in SAME_EVERYWHERE}


def _difference(found: dict[str, str]) -> str:
    pairs = [
        f"{package} is {found[package]} there and {here} here"
        for package, here in _versions().items()
        if found[package] != here
    ]
    return f"{'; '.join(pairs)}. Install the same version on all nodes"
