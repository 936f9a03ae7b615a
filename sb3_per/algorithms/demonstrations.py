"""Demonstrations: a second buffer, from which a share of each batch is sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecTransposeImage, unwrap_vec_wrapper

from sb3_per._utils import map_arrays, select
from sb3_per.buffers.prioritized import PrioritizedReplayBuffer, PrioritizedReplayBufferSamples
from sb3_per.buffers.storage import library_class, rows_in_order

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm

Transitions = Mapping[str, Any]  # arrays (n, ...), or dicts of arrays for Dict observations
FLAT = ("actions", "rewards", "terminations", "truncations")  # never dicts


class WithDemonstrations:
    """
    A model's buffer and its demonstrations, sampled as one (Ball et al. 2023,
    https://arxiv.org/abs/2302.02948).

    Slots of demonstrations come after those of the buffer. The weights of each part correct for its
    own priorities, not for the share.
    """

    def __init__(
        self, buffer: PrioritizedReplayBuffer, demonstrations: PrioritizedReplayBuffer, share: float
    ) -> None:
        self._buffer, self._demonstrations, self._share = buffer, demonstrations, share

    def sample(self, batch_size: int, env: Any = None) -> PrioritizedReplayBufferSamples:
        """Return a batch whose last rows are demonstrations; all are, until the agent plays."""
        n = round(self._share * batch_size) if self._buffer.n_sampleable > 0 else batch_size
        parts = [self._buffer.sample(batch_size - n, env)] if n < batch_size else []
        if n > 0:
            for name in ("device", "n_steps", "gamma", "beta"):  # of the moment
                setattr(self._demonstrations, name, getattr(self._buffer, name))
            shown = self._demonstrations.sample(n, env)
            parts.append(shown._replace(slots=shown.slots + self._buffer.n_slots))
        return PrioritizedReplayBufferSamples._make(map(_joined, *parts))

    def update_priorities(self, slots: Any, td_errors: Any) -> None:
        is_agents = slots < self._buffer.n_slots
        self._buffer.update_priorities(slots[is_agents], td_errors[is_agents])
        shown = slots[~is_agents] - self._buffer.n_slots
        self._demonstrations.update_priorities(shown, td_errors[~is_agents])


def _joined(*parts: Any) -> Any:
    if parts[0] is None:
        return None
    join: Any = np.concatenate if isinstance(parts[0], np.ndarray) else th.cat
    return map_arrays(lambda *arrays: join(arrays), *parts)


def buffer_of(model: PrioritizedAlgorithm, *sources: Any) -> PrioritizedReplayBuffer:
    """
    Return a buffer that holds the transitions of sources; see ``add_demonstrations``.

    :raises ValueError: for another source, and if there is no transition.
    """
    pieces = [(source, piece) for source in sources for piece in _pieces_of(model, source)]
    n = sum(len(piece["rewards"]) for _, piece in pieces)
    if n == 0:
        raise ValueError("demonstrations must have at least one transition, got none")
    # The row at the write head of full memory-optimised storage could not be sampled.
    buffer = model._new_buffer(n + model.optimize_memory_usage, n_envs=1)
    for source, piece in pieces:
        # An `add` of the user's has changed what is in our buffers already.
        is_ours = isinstance(source, PrioritizedReplayBuffer)
        kind = library_class(buffer) if is_ours else type(buffer)
        ends = np.array(piece["terminations"], dtype=bool)
        cuts = np.array(piece["truncations"], dtype=bool) & ~ends
        cuts[-1:] |= ~ends[-1:]  # another piece may follow
        names = "observations", "next_observations", "actions", "rewards"
        for i in range(len(ends)):
            info = {"TimeLimit.truncated": cuts[i], **select(piece.get("infos", {}), i)}
            row: Any = [select(piece[name], np.s_[i : i + 1]) for name in names]
            row += [ends[i] | cuts[i], [info]]
            kind.add(buffer, *row)
    return buffer


def _pieces_of(model: PrioritizedAlgorithm, source: Any) -> Iterator[Transitions]:
    """Yield consecutive transitions, as the agent's are stored."""
    if isinstance(source, ReplayBuffer):
        rows, next_observations, next_rows = rows_in_order(source)
        for env in range(source.n_envs):
            yield {
                "observations": select(source.observations, (rows, env)),
                "actions": source.actions[rows, env],
                "rewards": source.rewards[rows, env],
                "next_observations": select(next_observations, (next_rows, env)),
                "terminations": (source.dones > source.timeouts)[rows, env],
                "truncations": source.timeouts[rows, env],
                "infos": select(getattr(source, "info_arrays", {}), (rows, env)),
            }
    elif isinstance(source, Mapping):
        yield _scaled_and_transposed(model, source)
    elif hasattr(source, "iterate_episodes"):
        for episode in source.iterate_episodes():
            observations = map_arrays(np.asarray, episode.observations)
            piece = {name: getattr(episode, name) for name in FLAT}
            piece["observations"] = select(observations, np.s_[:-1])
            piece["next_observations"] = select(observations, np.s_[1:])
            yield _scaled_and_transposed(model, piece)
    else:
        raise ValueError(
            "demonstrations must be a dict of arrays (np.load of a file), a ReplayBuffer, or a "
            f"Minari dataset, got {type(source).__name__}"
        )


def _scaled_and_transposed(model: PrioritizedAlgorithm, piece: Transitions) -> Transitions:
    """Return transitions of an environment with actions scaled and images transposed."""
    piece = dict(piece)
    lengths = {name: len(piece[name]) for name in FLAT}
    if len({*lengths.values()}) > 1:
        raise ValueError(f"demonstrations must have arrays of one length, got {lengths}")
    images = None if model.env is None else unwrap_vec_wrapper(model.env, VecTransposeImage)
    for name in ("observations", "next_observations"):
        if images is not None:
            piece[name] = images.transpose_observations(piece[name])
    if isinstance(model.action_space, spaces.Box):
        actions = np.asarray(piece["actions"]).reshape(-1, *model.action_space.shape)
        piece["actions"] = model.policy.scale_action(actions)
    return piece
