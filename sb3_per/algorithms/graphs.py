"""
Gradient steps and actions as CUDA graphs.

The gradient step of a small network launches 100 to 300 kernels of a few microseconds each, and the
GPU waits for Python in between. A CUDA graph is recorded once; one call replays all of its kernels.

A graph reads and writes fixed memory. So batches are copied into static tensors, gradients and
outputs stay where they were recorded, and the optimizer's learning rate is a tensor. What Python
does while a function is recorded (branches, numbers, attributes) is part of the graph. So a graph
is dropped when a setting of the algorithm or the optimizer changes, or when a tensor or a layer is
replaced. Another attribute that a network of the user's changes between two steps is not noticed.
"""

from __future__ import annotations

import gc
import pickle
import random
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy

if TYPE_CHECKING:
    from sb3_per.algorithms.dqn import PERDQN

ADAMS = th.optim.Adam, th.optim.AdamW
# Methods of an algorithm that its loss comes from, and of a policy that acting graphs replace.
OF_LOSS = "weighted_loss", "td_targets", "next_actions", "double_q_values"
PREDICTING = "predict", "obs_to_tensor"
# Functions from elsewhere are a user's.
LIBRARIES = "sb3_per.", "stable_baselines3."
# Computes the gradients of a batch, and returns its TD errors, (B, 1).
Compute = Callable[[Any], th.Tensor]

# Shapes of observations that were seen this often are worth a graph.
N_SEEN = 10
# A model has at most this many graphs for actions, since each of them takes memory.
N_ACTING = 8
# All graphs are recorded on one stream for each GPU, so only one thread may record at a time.
_RECORDING = threading.RLock()


@cache
def _side_stream(device_index: int) -> th.cuda.Stream:
    return th.cuda.Stream(device_index)  # type: ignore[no-untyped-call]  # torch leaves it untyped


class CudaRecorder:
    """All that needs a GPU. Tests on a CPU have another recorder with the same methods."""

    def fits(self, device: th.device) -> bool:
        """Return whether functions on a device can be recorded."""
        return device.type == "cuda"

    def host_memory(self, n_bytes: int) -> th.Tensor:
        """Return memory from which copies to the device do not wait."""
        return th.empty(n_bytes, dtype=th.uint8, device="cpu", pin_memory=True)

    def host_random_states(self) -> bytes:
        """Return the states of the generators whose numbers a graph would repeat."""
        numpy = np.random.get_state()  # noqa: NPY002  # networks of users may draw from it
        return pickle.dumps((random.getstate(), numpy, th.get_rng_state().numpy()))

    def set_host_random_states(self, states: bytes) -> None:
        """Set the states that ``host_random_states`` returned."""
        of_python, of_numpy, of_torch = pickle.loads(states)
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002  # as above
        th.set_rng_state(th.from_numpy(of_torch))

    def random_state(self, device: th.device) -> th.Tensor:
        """Return the state of the generator whose numbers are new in each replay."""
        return th.cuda.get_rng_state(device)

    def set_random_state(self, state: th.Tensor, device: th.device) -> None:
        """Set the state that ``random_state`` returned."""
        th.cuda.set_rng_state(state, device)

    @contextmanager
    def aside(self, device: th.device) -> Iterator[None]:
        """Run what follows on the stream on which graphs are recorded."""
        with _RECORDING, th.cuda.device(device):
            stream = _side_stream(th.cuda.current_device())
            stream.wait_stream(th.cuda.current_stream())
            try:
                with th.cuda.stream(stream):
                    yield
            finally:
                th.cuda.current_stream().wait_stream(stream)

    def waits(self, function: Callable[[], Any]) -> bool:
        """
        Run a function, and return whether it waits for the GPU, as ``.item()`` does.

        Such a function cannot be recorded, and the attempt would leave torch's generator and
        allocator in a bad state.
        """
        before = th.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # Not "error", which other threads would get as well.
            th.cuda.set_sync_debug_mode("warn")
            try:
                function()
            finally:
                th.cuda.set_sync_debug_mode(before)
        # Not "synchronizing" alone, which torch's notice about this mode has, too.
        return any("called a synchronizing" in str(warning.message) for warning in caught)

    def new_pool(self) -> Any:
        """Return memory that several graphs share."""
        return th.cuda.graph_pool_handle()

    def record(self, function: Callable[[], Any], pool: Any) -> tuple[Callable[[], None], Any]:
        """
        Record a function within ``aside``.

        :return: What replays it, and what it returned, which each replay fills again.
        """
        graph = th.cuda.CUDAGraph()
        # Other threads may use CUDA meanwhile.
        how: Any = {"pool": pool, "capture_error_mode": "thread_local"}
        collects = gc.isenabled()
        gc.disable()  # the deletion of an older graph would end the capture
        # So that the graph has a workspace of cuBLAS in its own memory. Recent versions of torch
        # free that of a stream with any graph of the stream (pytorch#193402).
        th._C._cuda_clearCublasWorkspaces()
        try:
            with th.cuda.graph(graph, stream=th.cuda.current_stream(), **how):
                output = function()
        except BaseException:
            _end_failed_capture(pool)
            raise
        finally:
            th._C._cuda_clearCublasWorkspaces()
            if collects:
                gc.enable()
        return graph.replay, output


def _end_failed_capture(pool: Any) -> None:
    """Take torch's allocator and generator out of a capture, which torch does not do itself."""
    # The second name is that before torch 2.8.
    names = "_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"
    end_allocation = next(getattr(th._C, name) for name in names if hasattr(th._C, name))
    index, stream = th.cuda.current_device(), th.cuda.current_stream()
    with suppress(RuntimeError):  # if the capture ended as it should
        end_allocation(index, pool)
        th._C._cuda_releasePool(index, pool)
    # Another capture, which succeeds, takes the generator out of its state. A new generator would
    # not do: the graphs of other models have this one.
    other: Any = th.cuda.graph(
        th.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"
    )
    with suppress(RuntimeError), other:
        th.zeros(1, device="cuda")


RECORDER = CudaRecorder()


def tensors_in(nest: Any) -> list[th.Tensor]:
    """Return the tensors of a batch, of observations, or of an optimizer's state, in order."""
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
    if isinstance(nest, tuple):  # a named one
        return type(nest)(*(with_tensors(part, tensors) for part in nest))
    return nest


def kinds_of(nest: Any) -> Any:
    """Return what a graph's inputs must have in common with those that it was recorded with."""
    if isinstance(nest, th.Tensor):
        return nest.shape, nest.dtype, nest.device.type
    if isinstance(nest, dict):
        return tuple((key, kinds_of(part)) for key, part in nest.items())
    # By field, since another field may have the same shape.
    return tuple(map(kinds_of, nest)) if isinstance(nest, tuple) else None


class StaticInputs:
    """
    The tensors that a graph reads.

    From the host, all of them are filled with one copy.

    :param example: A batch, or observations.
    """

    def __init__(self, example: Any, device: th.device) -> None:
        sources = tensors_in(example)
        self.kinds = kinds_of(example)
        self._are_on_host = all(tensor.device.type == "cpu" for tensor in sources)
        sizes = [-(-tensor.nbytes // 256) * 256 for tensor in sources]  # aligned for any type
        self._on_device = th.empty(sum(sizes), dtype=th.uint8, device=device)

        def views(memory: th.Tensor) -> list[th.Tensor]:
            parts = zip(th.split(memory, sizes), sources, strict=True)
            return [part[: t.nbytes].view(t.dtype).view(t.shape) for part, t in parts]

        static = self._targets = views(self._on_device)
        if self._are_on_host:
            self._on_host = RECORDER.host_memory(sum(sizes))
            self._targets = views(self._on_host)
        self.nest = with_tensors(example, iter(static))
        self.sources = with_tensors(example, iter(self._targets))  # what is filled first
        self.fill(example)

    def fill(self, nest: Any) -> None:
        """Copy a batch, or observations; parts of it may be in their places already."""
        parts = zip(self._targets, tensors_in(nest), strict=True)
        for target, source in [(t, s) for t, s in parts if t.data_ptr() != s.data_ptr()]:
            target.copy_(source)
        if self._are_on_host:
            self._on_device.copy_(self._on_host, non_blocking=True)


def warm_up(
    function: Callable[[], Any],
    changed: Callable[[], list[th.Tensor]],
    layers: Layers,
    device: th.device,
) -> None:
    """
    Run a function a few times, as torch needs it before a capture, and undo what it changes.

    :param changed: Returns the tensors that it changes; those that it makes become 0.
    :param layers: Those of the network that it runs.
    :raises RuntimeError: for a function that cannot be recorded.
    """
    before = {tensor: tensor.detach().clone() for tensor in changed()}
    state, host_states = RECORDER.random_state(device), RECORDER.host_random_states()
    try:
        function()
        function()
        if RECORDER.waits(function):
            raise RuntimeError("its network waits for the GPU, as .item() and .cpu() do")
        if RECORDER.host_random_states() != host_states:
            raise RuntimeError("its network draws random numbers on the CPU")
    finally:
        is_replaced = layers.restore()
        RECORDER.set_random_state(state, device)
        RECORDER.set_host_random_states(host_states)
        with th.no_grad():
            for tensor in changed():
                if tensor in before:
                    tensor.copy_(before[tensor])
                else:
                    tensor.zero_()
    if is_replaced:
        raise RuntimeError("its network replaces tensors of its layers")


def addresses(tensors: list[th.Tensor]) -> list[Any]:
    """Return what tells whether a graph still reads and writes these tensors."""
    return [(tensor.data_ptr(), tensor.requires_grad) for tensor in tensors]


class Layers:
    """All parameters, buffers and modules of a network, to notice when one is replaced."""

    def __init__(self, network: th.nn.Module) -> None:
        self._parts: list[dict[str, Any]] = [
            part
            for module in network.modules()
            for part in (module._parameters, module._buffers, module._modules)
        ]
        # As long as these are kept, nothing else can get their ids.
        self._kept = [dict(part) for part in self._parts]
        self._ids = self._present_ids()

    def are_the_same(self) -> bool:
        """Return whether nothing was replaced."""
        return self._present_ids() == self._ids

    def restore(self) -> bool:
        """Put back what was replaced, and return whether anything was."""
        is_replaced = False
        for part, kept in zip(self._parts, self._kept, strict=True):
            if any(part.get(name) is not value for name, value in kept.items()):
                part.update(kept)
                is_replaced = True
        return is_replaced

    def _present_ids(self) -> list[list[int]]:
        return [[*map(id, part.values())] for part in self._parts]


class RecordedStep:
    """
    A gradient step as two graphs, since the TD errors reach the host before the optimizer's step.

    It keeps no reference to the model.

    :raises Exception: if they cannot be recorded; nothing has changed then.
    """

    def __init__(self, model: PERDQN, batch: Any) -> None:
        device, optimizer = model.device, model.policy.optimizer
        self._facts, self._optimizer = facts_of(model), optimizer
        self._layers, self._tensors = Layers(model.policy), model._tensors_of_step()
        self._inputs = StaticInputs(batch, device)
        static = self._inputs.nest
        groups = optimizer.param_groups
        self._lr: list[float] = []
        self._lr_on_device = [th.zeros((), dtype=th.float32, device=device) for _ in groups]
        parameters = [parameter for group in groups for parameter in group["params"]]

        def whole_step() -> None:
            model._compute_gradients(static)
            optimizer.step()

        sources = self._inputs.sources
        observations = [*tensors_in(sources.observations), *tensors_in(sources.next_observations)]
        self._places = [tensor.numpy() for tensor in observations if tensor.device.type == "cpu"]
        self._next_places = iter(self._places)

        with RECORDER.aside(device):
            warm_up(whole_step, self._used_tensors, self._layers, device)
            for parameter in parameters:
                parameter.grad = None  # the first graph makes new ones, in its own memory
            pool = RECORDER.new_pool()
            record = RECORDER.record
            self._replay_gradients, self._td_errors = record(
                lambda: model._compute_gradients(static), pool
            )
            with _capturable(optimizer, self._lr_on_device):
                self._replay_optimizer, _ = record(optimizer.step, pool)
        used = self._used_tensors()
        self._addresses = addresses(used)
        # As long as this memory is kept, no other tensor can get its addresses.
        self._kept = [tensor.detach() for tensor in used] + [p.grad for p in parameters]

    def _used_tensors(self) -> list[th.Tensor]:
        # The second part are moments and step counts.
        return [*self._tensors, *tensors_in(self._optimizer.state)]

    def holds(self, facts: Any) -> bool:
        """Return whether the graphs still do what Python would do."""
        same = bool(self._facts == facts) and self._layers.are_the_same()
        return same and addresses(self._used_tensors()) == self._addresses

    def fits(self, batch: Any) -> bool:
        """Return whether a batch has the shapes and types of the recorded one."""
        return bool(kinds_of(batch) == self._inputs.kinds)

    def new_array(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return memory for the next part of the batch's observations, from where it is copied."""
        place = next(self._next_places, None)
        if place is not None and (place.shape, place.dtype) == (shape, dtype):
            return place
        return np.empty(shape, dtype)

    def compute_gradients(self, batch: Any) -> th.Tensor:
        """Compute the gradients of a batch, and return its TD errors."""
        self._next_places = iter(self._places)
        self._inputs.fill(batch)
        self._replay_gradients()
        td_errors: th.Tensor = self._td_errors
        return td_errors

    def optimize(self) -> None:
        """Take the optimizer's step."""
        lr = [group["lr"] for group in self._optimizer.param_groups]
        if lr != self._lr:
            self._lr = lr
            for on_device, value in zip(self._lr_on_device, lr, strict=True):
                on_device.fill_(value)
        self._replay_optimizer()


@contextmanager
def _capturable(optimizer: th.optim.Optimizer, rates: list[th.Tensor]) -> Iterator[None]:
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


class ActingGraph:
    """The choice of actions for observations of one shape as a graph."""

    def __init__(
        self, policy: Any, observations: Any, deterministic: bool, device: th.device
    ) -> None:
        self._network = policy.q_net
        self._layers = Layers(self._network)
        self._tensors = [*self._network.parameters(), *self._network.buffers()]
        self._addresses = addresses(self._tensors)
        self._kept = [tensor.detach() for tensor in self._tensors]
        # The caller may be in inference mode, but tensors made there can be filled only there.
        with th.inference_mode(False), th.no_grad(), RECORDER.aside(device):
            self._inputs = StaticInputs(observations, device)
            static = self._inputs.nest

            def choose() -> th.Tensor:
                actions: th.Tensor = policy._predict(static, deterministic=deterministic)
                return actions

            warm_up(choose, lambda: [*self._network.buffers()], self._layers, device)
            self._replay, self._actions = RECORDER.record(choose, RECORDER.new_pool())

    def holds(self, policy: Any) -> bool:
        """Return whether the graph still reads the weights of the policy."""
        same = policy.q_net is self._network and self._layers.are_the_same()
        return same and addresses(self._tensors) == self._addresses

    def actions(self, observations: Any) -> NDArray[Any]:
        self._inputs.fill(observations)
        self._replay()
        actions: NDArray[Any] = self._actions.to("cpu", copy=True).numpy()
        return actions


class Observations(NamedTuple):
    """Observations as the environments of a model return them."""

    tensors: Any  # on the host, (n, ...); a dict of them for Dict observations
    n: int
    is_single: bool  # without the axis of environments


def plain_observations(observation: Any, space: spaces.Space[Any]) -> Observations | None:
    """Return observations as tensors; None for those that SB3 has to transpose, or to refuse."""
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, dict) or observation.keys() != space.spaces.keys():
            return None
        parts = {}
        for key, part in space.items():
            found = plain_observations(observation[key], part)
            if found is None:
                return None
            parts[key] = found
        first = next(iter(parts.values()))
        if any(part[1:] != first[1:] for part in parts.values()):
            return None
        return first._replace(tensors={key: part.tensors for key, part in parts.items()})
    if not isinstance(observation, np.ndarray):
        return None
    is_single = observation.shape == space.shape
    if not is_single and observation.shape[1:] != space.shape:
        return None
    array = np.ascontiguousarray(observation[None] if is_single else observation)
    return Observations(th.from_numpy(array), len(array), is_single)


class Graphs:
    """
    The graphs of a model, and when they are recorded, replayed and dropped.

    A copy of the model, or one that was pickled, records its own.
    """

    def __init__(self) -> None:
        self._step: RecordedStep | None = None
        self._is_on = False
        self._failure: tuple[Any, str] | None = None  # with which facts, and why
        self._reported = ""
        self._acting: dict[Any, ActingGraph] = {}
        self._n_seen: Counter[Any] = Counter()
        self._lock = threading.RLock()  # threads that share a model must not share inputs

    def __reduce__(self) -> tuple[Any, ...]:
        return Graphs, ()

    @contextmanager
    def in_use(self, model: PERDQN) -> Iterator[None]:
        """
        Take gradient steps with graphs within the ``with`` block, if they can be recorded.

        :raises ValueError: with ``cuda_graphs=True``, if they cannot.
        """
        obstacle = obstacle_to(model)
        if obstacle is None and self._failure is not None and self._failure[0] == facts_of(model):
            obstacle = self._failure[1]
        self._is_on = obstacle is None
        if self._step is not None and not (self._is_on and self._step.holds(facts_of(model))):
            self._step = None
        self._report(model, obstacle)
        buffer = model.replay_buffer
        device = buffer.device
        # One copy takes a batch from the host to the graph's inputs. A class of the user's may
        # compute with tensors on the device.
        if self._is_on and type(buffer).__module__.startswith("sb3_per."):
            buffer.device = th.device("cpu")
            buffer.new_array = None if self._step is None else self._step.new_array
        try:
            yield
        finally:
            buffer.device = device
            buffer.new_array = None

    def functions_of_step(self, model: PERDQN, batch: Any) -> tuple[Compute, Callable[[], Any]]:
        """Return what computes the gradients of a batch, and what takes the optimizer's step."""
        optimizer = model.policy.optimizer
        if not self._is_on:
            return model._compute_gradients, optimizer.step
        if self._step is None or not self._step.fits(batch):
            self._step = None  # first, since it takes memory
            try:
                self._step = RecordedStep(model, batch)
            except Exception as error:  # whatever a network raises
                self._is_on = False
                self._failure = facts_of(model), f"{type(error).__name__}: {error}".splitlines()[0]
                self._report(model, self._failure[1])
                model.replay_buffer.device = model.device
                model.replay_buffer.new_array = None
                moved = with_tensors(batch, (t.to(model.device) for t in tensors_in(batch)))
                return lambda _: model._compute_gradients(moved), optimizer.step
        return self._step.compute_gradients, self._step.optimize

    def _report(self, model: PERDQN, obstacle: str | None) -> None:
        if not obstacle:
            return
        if model.cuda_graphs:
            raise ValueError(f"cuda_graphs=True needs steps that can be recorded, got: {obstacle}")
        if obstacle != self._reported:
            self._reported = obstacle
            if model.verbose >= 1:
                print(f"Gradient steps are not recorded as CUDA graphs: {obstacle}.")  # noqa: T201

    def inputs_of(self, model: PERDQN, observation: Any) -> Observations | None:
        """Return the observations from which a graph may choose actions; None where none does."""
        if not RECORDER.fits(model.device) or model.cuda_graphs is False:
            return None
        methods = ((getattr(model.policy, name), getattr(BasePolicy, name)) for name in PREDICTING)
        is_sb3s = all(getattr(own, "__func__", None) is sb3s for own, sb3s in methods)
        # Python in a user's `_predict` would run only once. Its network may have no `_predict`, so
        # the generator stops at the policy's.
        choosing = (part._predict for part in (model.policy, model.policy.q_net))
        is_known = all(method.__module__.startswith(LIBRARIES) for method in choosing)
        if not is_known and model.cuda_graphs is None:
            return None
        if not is_sb3s or th.is_autocast_enabled(model.device.type):
            return None
        return plain_observations(observation, model.observation_space)

    def actions(self, model: PERDQN, observations: Any, deterministic: bool) -> NDArray[Any] | None:
        """
        Return the actions for observations, (B,); None while their shape has no graph.

        :param observations: Tensors on the host, or a dict of them.
        """
        policy, key = model.policy, (deterministic, kinds_of(observations))
        if policy.training:  # SB3 walks through all modules to set it
            policy.set_training_mode(False)
        with self._lock:
            graph = self._acting.get(key)
            if graph is not None and not graph.holds(policy):
                del self._acting[key], self._n_seen[key]
                graph = None
            if graph is None:
                self._n_seen[key] += 1
                if self._n_seen[key] != N_SEEN or len(self._acting) == N_ACTING:
                    return None
                try:
                    graph = ActingGraph(policy, observations, deterministic, model.device)
                except Exception:  # whatever a network raises; it is not tried again
                    return None
                self._acting[key] = graph
            return graph.actions(observations)


def obstacle_to(model: PERDQN) -> str | None:
    """
    Return why gradient steps cannot be recorded; None if they can.

    The text is empty where nothing needs to be said: on a CPU, and with ``cuda_graphs=False``.
    """
    if not RECORDER.fits(model.device) or model.cuda_graphs is False:
        return ""
    optimizer = model.policy.optimizer
    if type(optimizer) not in ADAMS:
        return f"the optimizer is {type(optimizer).__name__}, not Adam or AdamW"
    if not all(group["fused"] for group in optimizer.param_groups):
        return "the optimizer's option fused is off"
    if th.is_autocast_enabled(model.device.type):
        return "autocast is on"
    for name in OF_LOSS:
        is_ours = getattr(model, name).__module__.startswith(LIBRARIES)
        if not is_ours and model.cuda_graphs is None:
            return f"{name} is overridden (cuda_graphs=True records it, Python's side effects once)"
    return None


def facts_of(model: PERDQN) -> Any:
    """Return the numbers and objects that are recorded with a gradient step."""
    optimizer = model.policy.optimizer
    options = [
        {name: value for name, value in group.items() if name not in ("params", "lr")}
        | {"ids": [*map(id, group["params"])]}
        for group in optimizer.param_groups
    ]
    numbers = model.gamma, model.double_q, model.max_grad_norm, model.loss_threshold
    # Functions in place of the model's own methods, which would keep it alive.
    methods = [
        method.__func__ if getattr(method, "__self__", None) is model else method
        for method in map(model.__getattribute__, OF_LOSS)
    ]
    return numbers, options, methods, optimizer, model.q_net, model.q_net_target
