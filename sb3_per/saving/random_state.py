"""All random streams that a training run draws from: read, and put back."""

import random
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

_TORCH = "streams/torch"


def streams_of(model: BaseAlgorithm) -> tuple[dict[str, Any], dict[str, NDArray[np.uint8]]]:
    """
    States of Python's, NumPy's and torch's global streams, the action space's and those of the
    environments that have one.

    :return: What fits into JSON, and torch's states as arrays by name.
    """
    plain = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002  # what SB3 draws from
        "action_space": model.action_space.np_random.bit_generator.state,
        "environments": [
            None if generator is None else generator.bit_generator.state
            for generator in _generators(model.get_env())
        ],
    }
    # Asking would start CUDA, which a process forked from one that uses it cannot.
    has_cuda = th.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    devices = th.cuda.get_rng_state_all() if has_cuda else []
    states = [th.get_rng_state(), *devices]
    return plain, {f"{_TORCH}_{i}": state.cpu().numpy() for i, state in enumerate(states)}


def restore_streams(
    model: BaseAlgorithm, plain: dict[str, Any], arrays: dict[str, NDArray[np.uint8]]
) -> None:
    """
    Let all streams go on from states of ``streams_of``.

    A GPU that was not there then, or is not here now, is passed over, and so is an environment
    without a stream.
    """
    env = model.get_env()
    if env is not None:
        env.unwrapped._reset_seeds()  # they wait for a reset, and would start the streams anew
        # Stored without an environment, a model has no states of theirs.
        pairs = zip(_generators(env), plain["environments"], strict=False)
        for i, (generator, state) in enumerate(pairs):
            if generator is not None and state is not None:
                generator.bit_generator.state = state
                env.set_attr("np_random", generator, indices=i)
    version, internal, gauss = plain["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(plain["numpy"])  # noqa: NPY002  # what SB3 draws from
    model.action_space.np_random.bit_generator.state = plain["action_space"]
    states = [th.from_numpy(arrays[f"{_TORCH}_{i}"]) for i in range(len(arrays))]
    th.set_rng_state(states[0])
    n_devices = th.cuda.device_count() if th.cuda.is_available() else 0
    for device, state in zip(range(n_devices), states[1:], strict=False):
        th.cuda.set_rng_state(state, device)


def _generators(env: VecEnv | None) -> list[np.random.Generator | None]:
    """The generator of each environment, or a copy of it; None where there is none."""
    if env is None:
        return []
    try:
        found = env.get_attr("np_random")
    except (AttributeError, EOFError, OSError):  # of another make, or its process has died
        return [None] * env.num_envs
    return [one if isinstance(one, np.random.Generator) else None for one in found]
