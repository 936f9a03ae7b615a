"""The states of all random generators of a training run: read and restored."""

import random
import warnings
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from sb3_per.rules import require
from sb3_per.saving.structure import (
    ANYTHING,
    OBJECT,
    Kind,
    check_structure,
    one_of,
    refusing,
    whole,
)
from sb3_per.torch_streams import torch_states

_TORCH = "streams/torch"
_BIT_GENERATORS: dict[str, type[np.random.BitGenerator]] = {
    kind.__name__: kind
    for kind in (
        np.random.MT19937,
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.Philox,
        np.random.SFC64,
    )
}
# A generator's position in its buffer, and its limit: NumPy reads there without a check.
_POSITIONS = {"MT19937": ("state", "pos", 624), "Philox": (None, "buffer_pos", 4)}

STREAMS_STRUCTURE = {
    "python": [ANYTHING],
    "numpy": {"bit_generator": one_of(["MT19937"]), "state": {"pos": whole(0, 624)}},
    "action_space": OBJECT,
    "environments": [Kind("an object or null", lambda value: isinstance(value, dict | None))],
}


def state_of(generator: np.random.Generator) -> dict[str, Any]:
    """
    Return the state of a random generator, which names its kind.

    :raises ValueError: for a kind that is not NumPy's.
    """
    state = dict(generator.bit_generator.state)
    generator_from(state)
    return state


def generator_from(state: Any) -> np.random.Generator:
    """
    Return a random generator that continues from a state of ``state_of``, as JSON holds it.

    :raises ValueError: for what cannot be a state of one of NumPy's generators.
    """
    kind = one_of([*_BIT_GENERATORS])
    check_structure(state, {"bit_generator": kind}, "the state of a random generator")
    name = state["bit_generator"]
    with refusing(f"the state of a random generator must be one of {name}"):
        if name in _POSITIONS:
            part, position, most = _POSITIONS[name]
            within = {position: whole(0, most)}
            check_structure(state[part] if part else state, within, f"the state of {name}")
        bit_generator = _BIT_GENERATORS[name](0)
        bit_generator.state = _with_arrays(state)
    return np.random.Generator(bit_generator)


def _with_arrays(state: Any) -> Any:
    """Return a state with arrays in place of JSON's lists, as NumPy needs it."""
    if isinstance(state, dict):
        return {name: _with_arrays(part) for name, part in state.items()}
    if isinstance(state, list):
        return np.array(state, dtype=np.uint64)
    return state


def streams_of(model: BaseAlgorithm) -> tuple[dict[str, Any], dict[str, NDArray[np.uint8]]]:
    """
    Return the states of all random generators of a run.

    These are the global generators of Python, NumPy and torch, the action space's generator, and
    the environments' if they are NumPy's. At the start of a rollout with gSDE, torch's states are
    those before its noise was sampled, because a resumed run samples it, too.

    :return: States for JSON, and torch's states as arrays by name.
    """
    plain = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002  # SB3 uses this generator
        "action_space": state_of(model.action_space.np_random),
        "environments": [
            None if generator is None else state_of(generator)
            for generator in _generators(model.get_env())
        ],
    }
    states = getattr(model, "torch_states_before_rollout", None) or torch_states()
    return plain, {f"{_TORCH}_{i}": state.cpu().numpy() for i, state in enumerate(states)}


def restore_streams(
    model: BaseAlgorithm,
    plain: dict[str, Any],
    arrays: dict[str, NDArray[np.uint8]],
    restore_environments: bool,
) -> None:
    """
    Let all generators continue from states of ``streams_of``.

    GPUs that only one of the two machines has are skipped, and so are environments without a
    generator.

    :param restore_environments: Whether to restore the generators of environments.
    :raises ValueError: before anything has changed, for invalid states.
    """
    python, numpy, torch = _try(plain, arrays)
    env = model.get_env()
    if env is not None:
        _forget_seeds(env)  # else the next reset would seed the generators again
        if restore_environments:
            _restore_environments(env, plain["environments"])
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002  # SB3 uses this generator
    with refusing("the action space must have the same kind of random generator as when saved"):
        action_space = generator_from(plain["action_space"]).bit_generator.state
        model.action_space.np_random.bit_generator.state = action_space
    th.set_rng_state(torch[0])
    n_devices = th.cuda.device_count() if th.cuda.is_available() else 0
    for device, state in zip(range(n_devices), torch[1:], strict=False):
        th.cuda.set_rng_state(state, device)


def _try(
    plain: Any, arrays: dict[str, NDArray[np.uint8]]
) -> tuple[tuple[Any, ...], dict[str, Any], list[th.Tensor]]:
    """Return the states of Python, NumPy and torch after trying them on new generators."""
    check_structure(plain, STREAMS_STRUCTURE, "random states")
    for state in (plain["action_space"], *filter(None, plain["environments"])):
        generator_from(state)
    names = [f"{_TORCH}_{i}" for i in range(len(arrays))]
    fits = len(names) > 0 and sorted(arrays) == sorted(names)
    require(fits, f"random states of torch must have the names {names}", sorted(arrays))
    with refusing("random states must be those of Python, NumPy and torch"):
        version, internal, gauss = plain["python"]
        python = (version, tuple(internal), gauss)
        random.Random().setstate(python)
        np.random.RandomState().set_state(plain["numpy"])
        torch = [th.from_numpy(arrays[name]) for name in names]
        th.Generator().set_state(torch[0])
    return python, plain["numpy"], torch


def _restore_environments(env: VecEnv, states: list[dict[str, Any] | None]) -> None:
    # There are no states if the model was saved without an environment.
    for i, (generator, state) in enumerate(zip(_generators(env), states, strict=False)):
        if generator is None or state is None:
            continue
        restored = generator_from(state)
        if type(generator.bit_generator) is type(restored.bit_generator):
            generator.bit_generator.state = restored.bit_generator.state
            if _generators(env)[i] is generator:  # in this process, so its state is set now
                continue
        rule = (
            f"np_random of environment {i} must be an attribute that can be set (or load with "
            "restore_environments=False)"
        )
        with refusing(rule):
            env.set_attr("np_random", restored, indices=i)


def warn_of_lost_generators(env: VecEnv | None) -> None:
    """Warn once, when training starts, if checkpoints cannot hold the environments' generators."""
    if env is not None and None in _generators(env):
        warnings.warn(
            "the random generators of the environments cannot be read (np_random), so a run that "
            "continues from a checkpoint sees other random numbers in them",
            stacklevel=2,
        )


def _forget_seeds(env: VecEnv) -> None:
    # Not `env.unwrapped`: wrappers of other libraries return something else there.
    while isinstance(env, VecEnvWrapper):
        env = env.venv
    if isinstance(env, VecEnv):
        env._reset_seeds()


def _generators(env: VecEnv | None) -> list[np.random.Generator | None]:
    """Return the generator of each environment, or a copy of it; None for one without."""
    if env is None:
        return []
    try:
        found = env.get_attr("np_random")
    except Exception:  # vectorized environments of other libraries raise whatever they like
        return [None] * env.num_envs
    return [one if _is_known(one) else None for one in found]


def _is_known(generator: Any) -> bool:
    is_generator = isinstance(generator, np.random.Generator)
    return is_generator and type(generator.bit_generator).__name__ in _BIT_GENERATORS
