"""The states of torch's global random generators."""

import torch as th


def torch_states() -> list[th.Tensor]:
    """Return the states of torch's generators: the CPU's, then one of each GPU in use."""
    # Any other call would start CUDA, which fails in a process forked from one that uses it.
    has_cuda = th.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [th.get_rng_state(), *(th.cuda.get_rng_state_all() if has_cuda else [])]
