"""Mistakes that mypy must find: ``make check`` fails if one of these errors is missing."""

from gymnasium import spaces

import sb3_per
from sb3_per import (
    PAPER,
    PERDQN,
    PERSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    Rainbow,
    ReplayBufferKwargs,
)
from sb3_per.prioritization.rank_based import RankBased

SPACE = spaces.Discrete(2)

sb3_per.PERDQM  # type: ignore[attr-defined]  # noqa: B018
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
PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs={"alhpa": 1})  # type: ignore[arg-type]
PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs={"alpha": "x"})  # type: ignore[arg-type]
PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs={"prioritization": "ranked"})  # type: ignore[arg-type]
Rainbow("MlpPolicy", "CartPole-v1", policy_kwargs={"n_atom": 51})  # type: ignore[arg-type]
Rainbow("MlpPolicy", "CartPole-v1", policy_kwargs={"noisy": "no"})  # type: ignore[arg-type]

# What mypy must accept.
Rainbow("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [64], "n_atoms": 1})
PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=PAPER)
PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs={**PAPER, "alpha": 0.5, "n_stack": 4})
PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs={"prioritization": RankBased})
