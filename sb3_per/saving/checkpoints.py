"""Checkpoints: all that a run needs to continue, in one file, and the callback that saves them."""

import io
import os
import random
import re
import sys
import warnings
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common import callbacks
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from sb3_per._utils import require_whole
from sb3_per.algorithms.base import (
    PrioritizedAlgorithm,
    refuse_misplaced,
    require_matching_buffer,
    torch_states,
)
from sb3_per.algorithms.dqn import PERDQN
from sb3_per.saving.buffers import (
    BIT_GENERATORS,
    as_json,
    generator_from,
    generator_state,
    open_archive,
    pack_buffer,
    unpack_buffer,
    write_archive,
)

# The checkpoint decides these arguments: it stores the buffer with its options, and a resumed run
# starts a new episode.
_DECIDED = (
    "buffer_size",
    "force_reset",
    "optimize_memory_usage",
    "replay_buffer_class",
    "replay_buffer_kwargs",
)

Algorithm = TypeVar("Algorithm", bound=PrioritizedAlgorithm)


def save_checkpoint(model: PrioritizedAlgorithm, path: str | os.PathLike[str]) -> None:
    """
    Save networks, optimizer, counters, replay buffer, random generators and ``VecNormalize``.

    The file is replaced as a whole or not at all. The environment itself is not stored: the resumed
    run starts a new episode. If an episode ended at the checkpoint and all episodes start alike,
    the resumed run samples the same batches as an uninterrupted run.

    :param model: A prioritized algorithm, between two rollouts or outside of ``learn``.
    :param path: The file, with its suffix.
    :raises ValueError: for an algorithm of SB3, for a buffer that ``save_buffer`` cannot store, and
        for a buffer that no longer fits the model (its gamma was changed, for example).
    """
    write_archive(path, "checkpoint", *_contents_of(model))


def load_checkpoint(
    path: str | os.PathLike[str],
    env: GymEnv,
    device: th.device | str = "auto",
    algorithm: type[Algorithm] = PERDQN,  # type: ignore[assignment]  # mypy has no defaults here
    *,
    restore_environments: bool = True,
    **options: Any,
) -> Algorithm:
    """
    Load the model of a checkpoint.

    Continue with ``model.learn(n_steps_left, reset_num_timesteps=False)``. The networks are in
    SB3's format, parts of which are pickles: load only files that you trust.

    :param path: A file of ``save_checkpoint``.
    :param env: As many environments, with the same wrappers, as the run had.
    :param device: The device of networks and batches.
    :param algorithm: The class of the model.
    :param restore_environments: Whether to restore the random generators of the environments. Pass
        False if their ``np_random`` cannot be set.
    :param options: As for ``PERDQN.load``, without options of the buffer, which is stored.
    :raises ValueError: for a file that is damaged or of another kind, environments that do not
        fit, and options that the checkpoint decides.
    """
    if env is None or isinstance(env, str):
        raise ValueError(f"env must be an environment, such as gym.make returns it, got {env!r}")
    refuse_misplaced(algorithm, options)
    for name in _DECIDED:
        if name in options:
            raise ValueError(f"{name} comes from the checkpoint: leave it out")
    with open_archive(path, "checkpoint") as archive:
        header = archive.header
        if header["algorithm"] not in [kind.__name__ for kind in algorithm.__mro__]:
            rule = f"algorithm must be {header['algorithm']} or a subclass of it"
            raise ValueError(f"{rule}, got {algorithm.__name__}")
        networks = io.BytesIO(archive.members.read("model.zip"))
        # The smallest buffer, since the stored one replaces it.
        model = algorithm.load(networks, env=env, device=device, buffer_size=1, **options)
        model.buffer_size = header["buffer_size"]
        prioritization: Any = model.replay_buffer_kwargs.get("prioritization")
        own_class = prioritization if callable(prioritization) else None  # a name is in the file
        storage_dir = model.replay_buffer_kwargs.get("storage_dir")
        buffer = unpack_buffer(archive, model.device, own_class, storage_dir)
        model.use_replay_buffer(buffer)
        _restore_normalization(model.get_vec_normalize_env(), header["normalization"] or {})
        torch = [archive.array(name) for name in header["torch"]]
        _restore_random(model, header["random"], torch, restore_environments)
    return model


def latest_checkpoint(folder: str | os.PathLike[str], name_prefix: str = "rl_model") -> Path | None:
    """
    Return the checkpoint of ``CheckpointCallback`` with the most steps, or None.

    A file that cannot be read (after a power cut) is skipped, with a warning that names it.

    :param folder: The callback's ``save_path``.
    :param name_prefix: The callback's ``name_prefix``.
    """
    for path in reversed(_checkpoints(Path(folder), name_prefix)):
        try:
            # Not `is_zipfile`: the end of a file that was cut off may look like that of the model's
            # archive within it.
            with open_archive(path, "checkpoint"):
                return path
        except ValueError as error:
            warnings.warn(f"taking an earlier checkpoint: {error}", stacklevel=2)
    return None


class CheckpointCallback(callbacks.CheckpointCallback):
    """
    Save a checkpoint every ``save_freq`` calls of ``env.step()``, and one when training ends.

    The arguments are those of SB3's ``CheckpointCallback``, and ``keep``. Each checkpoint is one
    file, ``<save_path>/<name_prefix>_<steps>_steps.ckpt``, from which ``load_checkpoint`` continues
    the run.

    SB3's callback saves in the middle of a step. This one waits until the rollout has ended and all
    its transitions are stored and trained on. (If another callback ends training in the middle of a
    step, SB3 drops that step, so the resumed run differs from an uninterrupted one.)

    :param save_freq: Save every so many calls of ``env.step()``, as in SB3: with several
        environments, each call is ``n_envs`` steps.
    :param save_path: The folder, a different one for each run.
    :param name_prefix: The beginning of the files' names.
    :param save_replay_buffer: Without effect: the buffer is always in the checkpoint.
    :param save_vecnormalize: Without effect, for the same reason.
    :param verbose: 2 to log what was saved.
    :param keep: How many checkpoints to keep; older ones are deleted once a new one is written.
    :raises ValueError: when training starts, if the model cannot be stored, or if the folder
        has checkpoints of a run that got further; at the first step, if the callback is
        within another callback, such as ``EveryNTimesteps``, which hides the rollouts from it.
    """

    def __init__(
        self,
        save_freq: int,
        save_path: str | os.PathLike[str],
        name_prefix: str = "rl_model",
        save_replay_buffer: bool = True,
        save_vecnormalize: bool = True,
        verbose: int = 0,
        *,
        keep: int = 2,
    ) -> None:
        require_whole("save_freq", save_freq)
        require_whole("keep", keep)
        super().__init__(
            save_freq, str(save_path), name_prefix, save_replay_buffer, save_vecnormalize, verbose
        )
        self.keep = keep

    def _on_training_start(self) -> None:
        # Refuse what cannot be continued before hours are spent.
        _require_storable(self.model)
        self._n_saved = self.model.num_timesteps
        self._is_due = self._saw_rollout_start = False
        self._error_before = sys.exc_info()[1]  # if training runs in an `except` block
        latest = latest_checkpoint(self.save_path, self.name_prefix)
        if latest is not None and _n_steps(latest) > self._n_saved:
            raise ValueError(
                f"{self.save_path} must not hold checkpoints beyond step {self._n_saved}: continue "
                "from them (with learn(..., reset_num_timesteps=False)), or move them, got "
                f"{latest.name}"
            )

    def _on_step(self) -> bool:
        if not self._saw_rollout_start:
            raise ValueError(
                "CheckpointCallback must be given to learn itself, alone or in a list of "
                f"callbacks, got one within {type(self.parent).__name__}"
            )
        self._is_due |= self.n_calls % self.save_freq == 0
        return True

    def _on_rollout_start(self) -> None:
        self._saw_rollout_start = True
        if self._is_due:
            self._save()

    def _on_training_end(self) -> None:
        # RL-Zoo calls this after an error, too; a state that has led to an error is not saved.
        has_failed = sys.exc_info()[1] is not self._error_before
        if self.model.num_timesteps > self._n_saved and not has_failed:
            self._save()

    def _save(self) -> None:
        path = Path(self._checkpoint_path(extension="ckpt"))
        save_checkpoint(self.model, path)  # type: ignore[arg-type]  # it says what it needs
        self._is_due, self._n_saved = False, self.model.num_timesteps
        for old in _checkpoints(Path(self.save_path), self.name_prefix)[: -self.keep]:
            old.unlink()
        if self.verbose >= 2:
            self.logger.info(f"Saved {path}")


def _n_steps(path: Path) -> int:
    """Return the number of steps in the name of a checkpoint."""
    return int(path.stem.split("_")[-2])


def _checkpoints(folder: Path, name_prefix: str) -> list[Path]:
    """Return the checkpoints in the order of their steps; none if the folder is missing."""
    # Not by a pattern alone: "*" would also match what belongs to another prefix.
    name = re.compile(rf"{re.escape(name_prefix)}_\d+_steps\.ckpt")
    found = [path for path in folder.glob("*_steps.ckpt") if name.fullmatch(path.name)]
    return sorted(found, key=_n_steps)


def _contents_of(model: BaseAlgorithm) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Return header and members of a checkpoint; arrays are views.

    :raises ValueError: for an algorithm of SB3, and a buffer that cannot be stored.
    """
    if not isinstance(model, PrioritizedAlgorithm):
        rule = "the model must be of a prioritized algorithm, such as PERDQN"
        raise ValueError(f"{rule}, got {type(model).__name__}")
    require_matching_buffer(model.replay_buffer, model)
    buffer, arrays = pack_buffer(model.replay_buffer)
    networks = io.BytesIO()
    model.save(networks)
    # With gSDE, torch's states before the noise of this rollout: a resumed run samples it, too.
    torch = model.torch_states_before_rollout or torch_states()
    states = {f"torch/{i}": state.cpu().numpy() for i, state in enumerate(torch)}
    means = _running_means(model.get_vec_normalize_env())
    ours = [kind for kind in type(model).__mro__ if kind.__module__.startswith("sb3_per.")]
    header = {
        "algorithm": ours[0].__name__,
        "num_timesteps": model.num_timesteps,
        "buffer_size": model.buffer_size,
        "random": _random_states(model),
        "torch": [*states],
        "normalization": {key: vars(running) for key, running in means.items()} or None,
        "buffer": buffer,
    }
    return header, {"model.zip": networks.getvalue(), **states, **arrays}


def _require_storable(model: BaseAlgorithm) -> None:
    """
    Warn if the random generators of the environments cannot be restored.

    :raises ValueError: for a model that cannot be stored.
    """
    header, _ = _contents_of(model)
    as_json(header)
    env = model.get_env()
    states = header["random"]["environments"]
    problem = "np_random cannot be read" if None in states else ""
    try:
        if env is not None:
            _restore_environments(env, states)  # to what they are
    except ValueError as error:
        problem = str(error)
    if problem:
        warnings.warn(
            f"the random generators of the environments cannot be restored ({problem}), so a run "
            "that continues from a checkpoint sees other random numbers in them",
            stacklevel=2,
        )


# Random generators.


def _random_states(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the states of the generators of Python, NumPy, the action space and environments."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002  # SB3 uses this generator
        "action_space": generator_state(model.action_space.np_random),
        "environments": [
            None if generator is None else generator_state(generator)
            for generator in _generators(model.get_env())
        ],
    }


def _restore_random(
    model: BaseAlgorithm,
    states: dict[str, Any],
    torch: list[NDArray[np.uint8]],
    restore_environments: bool,
) -> None:
    """
    Let all random generators continue from stored states.

    GPUs that only one of the two machines has are skipped, and so are environments without a
    generator.
    """
    env = model.get_env()
    if env is not None:
        _forget_seeds(env)  # else the next reset would seed the generators again
        if restore_environments:
            _restore_environments(env, states["environments"])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(states["numpy"])  # noqa: NPY002  # SB3 uses this generator
    model.action_space.np_random.bit_generator.state = states["action_space"]
    th.set_rng_state(th.from_numpy(torch[0]))
    n_devices = th.cuda.device_count() if th.cuda.is_available() else 0
    for device, state in zip(range(n_devices), torch[1:], strict=False):
        th.cuda.set_rng_state(th.from_numpy(state), device)


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
        try:
            env.set_attr("np_random", restored, indices=i)
        except Exception as error:
            raise ValueError(
                f"np_random of environment {i} must be an attribute that can be set (or load with "
                f"restore_environments=False): {error}"
            ) from error


def _generators(env: VecEnv | None) -> list[np.random.Generator | None]:
    """Return the generator of each environment, or a copy of it; None for one without."""
    if env is None:
        return []
    try:
        found = env.get_attr("np_random")
    except Exception:  # vectorized environments of other libraries raise whatever they like
        return [None] * env.num_envs
    return [value if _is_known(value) else None for value in found]


def _is_known(value: Any) -> bool:
    is_generator = isinstance(value, np.random.Generator)
    return is_generator and type(value.bit_generator).__name__ in BIT_GENERATORS


def _forget_seeds(env: VecEnv) -> None:
    # Not `env.unwrapped`: wrappers of other libraries return something else there.
    while isinstance(env, VecEnvWrapper):
        env = env.venv
    if isinstance(env, VecEnv):
        env._reset_seeds()


# VecNormalize.


def _restore_normalization(env: VecNormalize | None, stored: dict[str, Any]) -> None:
    """
    Let a ``VecNormalize`` continue from its statistics.

    :raises ValueError: before anything has changed, if only the saved or only the present run has a
        ``VecNormalize``, or if it normalizes other observations.
    """
    means = _running_means(env)
    shapes = {key: np.shape(running.mean) for key, running in means.items()}
    if shapes != {key: np.shape(values["mean"]) for key, values in stored.items()}:
        raise ValueError(
            "the environment must be wrapped in the same VecNormalize as when saved, got "
            f"statistics of {[*means]} instead of {[*stored]}"
        )
    for key, running in means.items():
        running.mean, running.var = (np.array(stored[key][name]) for name in ("mean", "var"))
        running.count = stored[key]["count"]


def _running_means(env: VecNormalize | None) -> dict[str, RunningMeanStd]:
    """Return the running means of returns and observations, the latter by the keys of a Dict."""
    if env is None:
        return {}
    means = {"returns": env.ret_rms}
    if env.norm_obs:
        of_keys = env.obs_rms if isinstance(env.obs_rms, dict) else {"": env.obs_rms}
        means |= {f"observations/{key}": running for key, running in of_keys.items()}
    return means
