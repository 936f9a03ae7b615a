"""What fits an environment: the buffer's class, and whether it stores each frame once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
    unwrap_vec_wrapper,
)
from stable_baselines3.her import HerReplayBuffer

from sb3_per.buffers.her import PrioritizedHerReplayBuffer, require_goals
from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm

# SB3's classes of buffers, which stand for ours, as in a model that SB3 has saved.
WITHOUT_PRIORITIES = (ReplayBuffer, DictReplayBuffer, NStepReplayBuffer)
# Wrappers after which observations are still stacks of the same frames.
_KEEP_FRAMES = (VecTransposeImage, VecMonitor, VecNormalize, VecCheckNan, VecVideoRecorder)


def resolve_buffer_class(
    named: type[Any] | None, observation_space: spaces.Space[Any]
) -> type[PrioritizedReplayBuffer]:
    """
    Return the buffer class for these observations.

    :param named: The user's choice; None for the default. Files of RL-Zoo name SB3's
        ``HerReplayBuffer``, which stands for ours.
    :raises ValueError: for a class without priorities, or one for other observations.
    """
    has_dict = isinstance(observation_space, spaces.Dict)
    default = PrioritizedDictReplayBuffer if has_dict else PrioritizedReplayBuffer
    if named is HerReplayBuffer:
        named = PrioritizedHerReplayBuffer
    if named in (None, PrioritizedReplayBuffer, *WITHOUT_PRIORITIES):
        return default
    if issubclass(named, PrioritizedHerReplayBuffer):
        require_goals(observation_space)
    if not issubclass(named, default) or issubclass(named, PrioritizedDictReplayBuffer) != has_dict:
        raise ValueError(
            f"replay_buffer_class must be sb3_per.{default.__name__} or a subclass of it for these "
            f"observations, got {named}"
        )
    return named


def require_matching_buffer(buffer: ReplayBuffer, model: OffPolicyAlgorithm) -> None:
    """
    Check that a model can learn from the transitions of a buffer.

    :raises ValueError: if spaces or the number of environments differ.
    """
    for name in ("n_envs", "observation_space", "action_space"):
        value, got = getattr(model, name), getattr(buffer, name)
        if got != value:
            raise ValueError(f"the buffer's {name} must equal the model's {value}, got {got}")


def n_stack_by_default(model: PrioritizedAlgorithm, kind: type[PrioritizedReplayBuffer]) -> int:
    """
    Return the buffer's ``n_stack``, and print what it means.

    It is the number of frames in a stack if each is stored once, and 1 if whole stacks are stored.
    """
    stack = None if model.env is None else unwrap_vec_wrapper(model.env, VecFrameStack)
    if stack is None or not is_image_space(stack.observation_space):
        return 1
    obstacle = changes_frames(model.env)
    if model.optimize_memory_usage:
        obstacle = "optimize_memory_usage"
    if kind is not PrioritizedReplayBuffer:
        obstacle = kind.__name__
    if model.verbose >= 1:
        how = "stacked frames once" if obstacle is None else f"whole stacks because of {obstacle}"
        print(f"Storing {how} in the replay buffer.")  # noqa: T201  # as SB3 says how it wraps
    return int(stack.stacked_obs.n_stack) if obstacle is None else 1


def changes_frames(env: VecEnv | None) -> str | None:
    """Return the class of a wrapper around ``VecFrameStack`` that may change frames, or None."""
    while isinstance(env, VecEnvWrapper) and not isinstance(env, VecFrameStack):
        if type(env) not in _KEEP_FRAMES:
            return type(env).__name__
        env = env.venv
    return None
