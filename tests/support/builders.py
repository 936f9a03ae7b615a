"""Small spaces and buffers whose contents a reader can check: observation equals row and env."""

import numpy as np
from gymnasium import spaces

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 8, 8), np.uint8)
STACKS = spaces.Box(0, 255, (2, 3, 4), np.uint8)  # four frames
DICT = spaces.Dict({"vector": BOX, "number": spaces.Discrete(1000), "image": IMAGE})
TWO_ACTIONS = spaces.Discrete(2)
MEMORY_OPTIMISED = {"optimize_memory_usage": True, "handle_timeout_termination": False}


def observation(space, step, n_envs):
    """One observation for each environment: (step, env) where the space can hold both."""
    if isinstance(space, spaces.Dict):
        return {key: observation(part, step, n_envs) for key, part in space.items()}
    if isinstance(space, spaces.Discrete):
        return np.full(n_envs, step % space.n)
    if space.dtype == np.uint8:
        return np.full((n_envs, *space.shape), step % 256, dtype=np.uint8)
    return np.array([[step, env] for env in range(n_envs)], dtype=np.float32)


def make_buffer(n_rows=0, *, size=64, n_envs=1, space=BOX, kind=None, **options):
    """Return a buffer for ``size`` rows, to which ``n_rows`` rows were added."""
    has_dict = isinstance(space, spaces.Dict)
    kind = kind or (PrioritizedDictReplayBuffer if has_dict else PrioritizedReplayBuffer)
    buffer = kind(size * n_envs, space, TWO_ACTIONS, "cpu", n_envs, **options)
    return (fill_with_stacks if buffer.n_stack > 1 else fill)(buffer, n_rows)


def fill(buffer, n_rows, *, first=0, done_at=(), truncated_at=()):
    """
    Add rows ``first`` to ``first + n_rows - 1``.

    At step t, environment e sees (t, e), acts (t + e) % 2 and earns t + e / 10.

    :param done_at: (step, env) pairs at which an episode ends.
    :param truncated_at: The same for time limits.
    """
    envs = np.arange(buffer.n_envs)
    for step in range(first, first + n_rows):
        truncated = [(step, env) in truncated_at for env in envs]
        done = [(step, env) in done_at or truncated[env] for env in envs]
        buffer.add(
            observation(buffer.observation_space, step, buffer.n_envs),
            observation(buffer.observation_space, step + 1, buffer.n_envs),
            (step + envs) % 2,
            step + envs / 10,
            np.array(done),
            [{"TimeLimit.truncated": was_cut} for was_cut in truncated],
        )
    return buffer


def fill_with_stacks(buffer, n_rows, *, first=0, episode=3):
    """Add rows of stacked frames, channels last; frames before an episode's first are zeros."""
    n_stack, shape = buffer.n_stack, (buffer.n_envs, *buffer.observation_space.shape)

    def stack(step, start):
        frames = np.arange(step + 1 - n_stack, step + 1)
        return np.broadcast_to(np.where(frames >= start, frames + 1, 0), shape).astype(np.uint8)

    for step in range(first, first + n_rows):
        start, is_last = step - step % episode, step % episode == episode - 1
        zeros = np.zeros(buffer.n_envs)
        dones, infos = np.full(buffer.n_envs, is_last), [{}] * buffer.n_envs
        buffer.add(stack(step, start), stack(step + 1, start), zeros, zeros + step, dones, infos)
    return buffer


def probabilities_in(buffer, slots):
    """P(i) of slots by priority alone, without the uniform share."""
    return buffer.prioritization.probabilities(slots)
