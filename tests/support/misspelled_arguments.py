"""Mistakes that mypy must find: ``make check`` fails if one of these errors is missing."""

from gymnasium import spaces

from sb3_per import (
    PERDQN,
    PERSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
)
from sb3_per.options import ReplayBufferKwargs

SPACE = spaces.Discrete(2)

PERDQN("MlpPolicy", "CartPole-v1", lerning_rate=1e-3)  # type: ignore[call-arg]
PERDQN("MlpPolicy", "CartPole-v1", learning_rate="1e-3")  # type: ignore[arg-type]
PERSAC("MlpPolicy", "Pendulum-v1", lerning_rate=1e-3)  # type: ignore[call-arg]
PERSAC("MlpPolicy", "Pendulum-v1", learning_rate="1e-3")  # type: ignore[arg-type]
PERSAC("MlpPolicy", "Pendulum-v1", alpha=0.5)  # type: ignore[call-arg]
PrioritizedReplayBuffer(10, SPACE, SPACE, aplha=3)  # type: ignore[call-arg]
PrioritizedReplayBuffer(10, SPACE, SPACE, alpha="3")  # type: ignore[arg-type]
PrioritizedDictReplayBuffer(10, SPACE, SPACE, aplha=3)  # type: ignore[call-arg]
PrioritizedHerReplayBuffer(10, SPACE, SPACE, None, aplha=3)  # type: ignore[arg-type, call-arg]
ReplayBufferKwargs(aplha=3)  # type: ignore[typeddict-unknown-key]
