"""What mypy has to refuse: ``make check`` fails where one of these errors does not come."""

from gymnasium import spaces

from sb3_per import PERDQN, PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

SPACE = spaces.Discrete(2)

PERDQN("MlpPolicy", "CartPole-v1", lerning_rate=1e-3)  # type: ignore[call-arg]
PERDQN("MlpPolicy", "CartPole-v1", learning_rate="1e-3")  # type: ignore[arg-type]
PrioritizedReplayBuffer(10, SPACE, SPACE, aplha=3)  # type: ignore[call-arg]
PrioritizedReplayBuffer(10, SPACE, SPACE, alpha="3")  # type: ignore[arg-type]
PrioritizedDictReplayBuffer(10, SPACE, SPACE, aplha=3)  # type: ignore[call-arg]
