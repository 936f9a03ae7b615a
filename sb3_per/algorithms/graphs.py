"""
Gradient steps and actions as CUDA graphs.

The gradient step of a small network launches 100 to 300 kernels of a few microseconds each, and the
GPU waits for Python in between. A CUDA graph is recorded once; one call replays all of its kernels.

A graph reads and writes fixed memory, so its inputs are copied into static tensors. What Python
does while a function is recorded (branches, numbers, attributes) is part of the graph. So each call
of ``learn`` records again, and so does a change of the settings that ``facts_of`` lists.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch as th
from numpy.typing import NDArray

from sb3_per._utils import map_arrays

if TYPE_CHECKING:
    from sb3_per.algorithms.dqn import PERDQN

ADAMS = th.optim.Adam, th.optim.AdamW
# Calls before a function is recorded: torch prepares memory in them.
N_EAGER = 3


@cache
def _side_stream(device_index: int) -> th.cuda.Stream:
    return th.cuda.Stream(device_index)  # type: ignore[no-untyped-call]  # torch leaves it untyped


class CudaRecorder:
    """All that needs a GPU. Tests on a CPU have another recorder with the same methods."""

    def fits(self, device: th.device) -> bool:
        """Return whether functions on a device can be recorded."""
        return device.type == "cuda"

    @contextmanager
    def aside(self, device: th.device) -> Iterator[None]:
        """Run what follows on the stream on which graphs are recorded."""
        with th.cuda.device(device):
            stream = _side_stream(th.cuda.current_device())
            stream.wait_stream(th.cuda.current_stream())
            with th.cuda.stream(stream):
                yield
            th.cuda.current_stream().wait_stream(stream)

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """
        Record a function within ``aside``.

        :return: What replays it, and what it returned, which each replay fills again.
        """
        graph = th.cuda.CUDAGraph()
        # Other threads may use CUDA meanwhile.
        how: Any = {"stream": th.cuda.current_stream(), "capture_error_mode": "thread_local"}
        collects = gc.isenabled()
        gc.disable()  # the deletion of an older graph would end the capture
        # So that the graph has a workspace of cuBLAS in its own memory. Recent versions of torch
        # free that of a stream with any graph of the stream (pytorch#193402).
        th._C._cuda_clearCublasWorkspaces()
        try:
            with th.cuda.graph(graph, **how):
                output = function()
        finally:
            th._C._cuda_clearCublasWorkspaces()
            if collects:
                gc.enable()
        return graph.replay, output


RECORDER = CudaRecorder()


class Recording:
    """
    A function of batches, observations or tensors, which becomes a CUDA graph.

    :param inputs: Examples of the function's arguments.
    """

    def __init__(self, function: Callable[..., Any], device: th.device, *inputs: Any) -> None:
        self._function, self._device, self._n_calls = function, device, 0
        self._replay: Callable[[], None] | None = None
        static = (th.empty_like(tensor, device=device) for tensor in tensors_in(inputs))
        self._inputs = with_tensors(inputs, static)

    def __call__(self, *inputs: Any) -> Any:
        """Return what the function returns; from a graph, the same tensors each time."""
        for static, tensor in zip(tensors_in(self._inputs), tensors_in(inputs), strict=True):
            static.copy_(tensor, non_blocking=True)
        if self._replay is None:
            with RECORDER.aside(self._device):
                self._n_calls += 1
                if self._n_calls <= N_EAGER:
                    return self._function(*self._inputs)
                try:
                    recorded = RECORDER.record(lambda: self._function(*self._inputs))
                except Exception as error:
                    advice = "this cannot be recorded as a CUDA graph, use cuda_graphs=False"
                    raise RuntimeError(f"{advice}: {error}") from error
                self._replay, self._output = recorded
        self._replay()
        return self._output


class Graphs:
    """
    The graphs of a model, and when they are recorded and dropped.

    A copy of the model, or one that was pickled, records its own.
    """

    def __init__(self) -> None:
        self.drop()

    def __reduce__(self) -> tuple[Any, ...]:
        return Graphs, ()

    def drop(self) -> None:
        """Forget all graphs."""
        self._facts: Any = None
        self.compute_gradients: Recording | None = None
        self._optimize: Recording | None = None
        self.choose: Recording | None = None

    def prepare(self, model: PERDQN, batch: Any) -> None:
        """
        With ``cuda_graphs=True``, make new recordings if those there are do not fit any more.

        :raises ValueError: for an optimizer that cannot be recorded, and under autocast.
        """
        if not (model.cuda_graphs and RECORDER.fits(model.device)):
            return
        facts = kinds_of(batch), facts_of(model)
        if facts == self._facts:
            return
        self.drop()
        require_recordable(model.policy.optimizer, model.device)
        self._facts = facts
        policy, optimizer = model.policy, model.policy.optimizer

        def step(*rates: th.Tensor) -> None:
            with _capturable(optimizer, rates):
                optimizer.step()

        def choose(observations: Any) -> th.Tensor:
            policy.set_training_mode(False)
            with th.no_grad():
                return policy._predict(observations, deterministic=False)

        device, rates = model.device, _rates_of(optimizer)
        self.compute_gradients = Recording(model._compute_gradients, device, batch)
        self._optimize = Recording(step, device, *rates)
        if model._last_obs is not None:  # else `train` was called without a rollout
            observations = map_arrays(th.from_numpy, model._last_obs)
            self.choose = Recording(choose, device, observations)

    def optimize(self, optimizer: th.optim.Optimizer) -> None:
        """Take the optimizer's step."""
        if self._optimize is None:
            optimizer.step()
        else:
            self._optimize(*_rates_of(optimizer))

    def actions(self, observations: Any) -> NDArray[Any]:
        """Return the actions for observations of all environments, (n_envs,)."""
        choose: Any = self.choose
        actions: NDArray[Any] = choose(map_arrays(th.from_numpy, observations)).cpu().numpy()
        return actions


@contextmanager
def _capturable(optimizer: th.optim.Optimizer, rates: tuple[th.Tensor, ...]) -> Iterator[None]:
    """Replace an optimizer's learning rates by tensors while it is recorded."""
    # Not later: options are saved with a model, and on a CPU Adam refuses these.
    before = [dict(group) for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group.update(capturable=True, lr=rate)
    try:
        yield
    finally:
        for group, options in zip(optimizer.param_groups, before, strict=True):
            group.update(options)


def _rates_of(optimizer: th.optim.Optimizer) -> tuple[th.Tensor, ...]:
    rates = [group["lr"] for group in optimizer.param_groups]
    return th.tensor(rates, dtype=th.float32).unbind()


def require_recordable(optimizer: th.optim.Optimizer, device: th.device) -> None:
    """Raise ValueError unless a graph computes what eager steps compute."""
    is_fused = type(optimizer) in ADAMS and all(g["fused"] for g in optimizer.param_groups)
    if not is_fused or th.is_autocast_enabled(device.type):
        raise ValueError(
            "cuda_graphs=True needs torch's fused Adam or AdamW, and no autocast, got "
            f"{type(optimizer).__name__}"
        )


def facts_of(model: PERDQN) -> Any:
    """Return the numbers and objects that are recorded with a gradient step."""
    optimizer = model.policy.optimizer
    numbers = model.gamma, model.double_q, model.max_grad_norm, model.loss_threshold
    options = [
        {name: value for name, value in group.items() if name not in ("params", "lr")}
        for group in optimizer.param_groups
    ]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    tensors = [*parameters, *(t for p in parameters for t in tensors_in(optimizer.state.get(p)))]
    addresses = [(tensor.data_ptr(), tensor.requires_grad) for tensor in tensors]
    networks = optimizer, model.q_net, model.q_net_target, type(model)
    is_autocast = th.is_autocast_enabled(model.device.type)
    return numbers, options, addresses, networks, model.device, is_autocast


def tensors_in(nest: Any) -> list[th.Tensor]:
    """Return the tensors of a batch, or of observations, in order."""
    if isinstance(nest, th.Tensor):
        return [nest]
    parts = nest.values() if isinstance(nest, dict) else nest if isinstance(nest, tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def with_tensors(nest: Any, tensors: Iterator[th.Tensor]) -> Any:
    """Return a batch, or observations, with other tensors."""
    if isinstance(nest, th.Tensor):
        return next(tensors)
    if isinstance(nest, dict):
        return {key: with_tensors(part, tensors) for key, part in nest.items()}
    if isinstance(nest, tuple):
        parts = [with_tensors(part, tensors) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else tuple(parts)
    return nest


def kinds_of(nest: Any) -> Any:
    """Return what a graph's inputs must have in common with those that it was recorded with."""
    if isinstance(nest, th.Tensor):
        return nest.shape, nest.dtype
    if isinstance(nest, dict):
        return tuple((key, kinds_of(part)) for key, part in nest.items())
    # By field, since another field may have the same shape.
    return tuple(map(kinds_of, nest)) if isinstance(nest, tuple) else None
