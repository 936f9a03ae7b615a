"""
Recorders that count. The CPU's is a CUDA graph's double: it repeats operators on the same memory.

Like a CUDA graph, it repeats what torch computed, not what Python did: numbers, branches and
addresses are those of the recording. Recording itself changes nothing, and ``.item()`` fails.
"""

from contextlib import nullcontext

import torch as th
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sb3_per.algorithms.graphs import CudaRecorder

WAITING = (th.ops.aten._local_scalar_dense.default, th.ops.aten.nonzero.default)


def tensors_of(*nests):
    return [leaf for leaf in tree_leaves(nests) if isinstance(leaf, th.Tensor)]


def memory_of(tensor):
    return tensor.untyped_storage().data_ptr()


class Operators(TorchDispatchMode):
    """The operators that torch runs, with their arguments and results."""

    def __init__(self):
        super().__init__()
        self.calls, self.n_waits, self._made, self._before = [], 0, set(), {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.n_waits += function in WAITING
        for tensor in tensors_of(args, kwargs):
            address = memory_of(tensor)
            if address not in self._made and address not in self._before:
                storage = tensor.untyped_storage()
                self._before[address] = storage, storage.clone()
        results = function(*args, **kwargs)
        self._made |= {memory_of(t) for t in tensors_of(results)} - self._before.keys()
        self.calls.append((function, args, kwargs, results))
        return results

    def undo(self):
        """Give memory that was there before the recording its values back."""
        for storage, values in self._before.values():
            storage.copy_(values)

    def replay(self):
        with th.no_grad():
            for function, args, kwargs, results in self.calls:
                again = function(*args, **kwargs)
                for old, new in zip(tensors_of(results), tensors_of(again), strict=True):
                    if memory_of(old) != memory_of(new):  # else a view, or changed in place
                        old.copy_(new)


class OperatorRecorder:
    """The methods of ``CudaRecorder`` for the CPU."""

    device = "cpu"

    def __init__(self):
        self.n_recorded = self.n_replayed = 0

    def fits(self, device):
        return device.type == "cpu"

    def aside(self, device):
        return nullcontext()

    def record(self, function):
        operators, state = Operators(), th.get_rng_state()
        try:
            with operators:
                output = function()
            if operators.n_waits > 0:
                raise RuntimeError("operation not permitted when stream is capturing")
        finally:
            operators.undo()
            th.set_rng_state(state)
        self.n_recorded += 1

        def replay():
            self.n_replayed += 1
            operators.replay()

        return replay, output


class CountingRecorder(CudaRecorder):
    """CUDA graphs, counted as ``OperatorRecorder`` counts its own."""

    device = "cuda"

    def __init__(self):
        self.n_recorded = self.n_replayed = 0

    def record(self, function):
        graph, output = super().record(function)
        self.n_recorded += 1

        def replay():
            self.n_replayed += 1
            graph()

        return replay, output
