"""Prioritized replay buffers for Stable-Baselines3: draws, weights and the random stream."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch as th
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.draws import Draw, Scheme
from sb3_per.priorities import LARGEST_TD_ERROR, Prioritization, importance_weights, require
from sb3_per.proportional import Proportional
from sb3_per.rank_based import RankBased
from sb3_per.slot_buffers import SlotDictReplayBuffer, SlotReplayBuffer
from sb3_per.sum_tree import FloatArray, IntArray

PRIORITIZATIONS: dict[str, Callable[..., Prioritization]] = {
    "proportional": Proportional,
    "rank": RankBased,
}

# What `_draw_state` says of a slot: no draw waits for its TD error; one does; one did when the slot
# was overwritten.
_SETTLED, _AWAITED, _OVERWRITTEN = 0, 1, 2

# So many batches without a single update are no accident (two samples before one update may be).
_BATCHES_BEFORE_WARNING = 10


class PrioritizedReplayBufferSamples(NamedTuple):
    """SB3's samples, with what prioritized replay adds. Dict observations are dicts of tensors."""

    observations: th.Tensor | TensorDict
    actions: th.Tensor
    next_observations: th.Tensor | TensorDict
    dones: th.Tensor  # (B, 1)
    rewards: th.Tensor  # (B, 1), the n-step return for n_steps > 1
    discounts: th.Tensor | None  # (B, 1), gamma^(steps in the return); None for n_steps = 1
    weights: th.Tensor  # (B, 1) float32
    slots: IntArray  # (B,), to be handed to `update_priorities`; on the host, whatever the device


class PrioritizedReplayBuffer(SlotReplayBuffer):
    """
    A ``ReplayBuffer`` that draws transitions by priority (Schaul et al. 2016,
    https://arxiv.org/abs/1511.05952).

    A transition lives in a slot: ``row * n_envs + env``. Invariant: a slot that must not be drawn
    (never written, or the write head of memory-optimised storage) has probability 0.

    The order within a batch means nothing, but stratified batches come sorted by slot: shuffle
    before splitting one.

    :param args: As for ``ReplayBuffer``: buffer_size, observation_space, action_space, device,
        n_envs, ...
    :param kwargs: As for ``SlotReplayBuffer``: ``n_steps`` and ``gamma``, and the rest of
        ``ReplayBuffer``'s.
    :param prioritization: ``"proportional"``: P(i) from abs(TD error)^alpha; ``"rank"``: from its
        rank; or a class of your own that obeys ``sb3_per.priorities.Prioritization``, called with
        the number of slots and the options below up to ``new_priority``.
    :param alpha: How much prioritization, in [0, 1]; 0 is uniform sampling.
    :param beta: Exponent of the importance-sampling weights, in [0, 1]; an attribute that the
        algorithm moves.
    :param eps: Added to abs(TD error), > 0.
    :param td_error_clip: Upper bound of abs(TD error), before eps.
    :param initial_priority: Priority of the first transitions, until a TD error is known, > 0.
    :param new_priority: New transitions get the largest priority ever seen (``"max_seen"``), or the
        largest of those stored now (``"max_stored"``).
    :param weight_normalization: Divide the weights by the largest of the ``"batch"``, by the
        largest that any stored transition could have (``"buffer"``), or not at all (``"none"``).
        Mind ``"buffer"`` as beta nears 1: one transition with a TD error near 0 makes all other
        weights vanish, and learning stops.
    :param stratified: One draw from each of B equal slices of the probability, or else B
        independent draws.
    :param replacement: Whether a batch may hold a transition twice. If not, weights come from the
        probability of being in the batch; see ``sb3_per.draws.Scheme``.
    :raises ValueError: for an option out of its range.
    """

    def __init__(
        self,
        *args: Any,
        prioritization: str | Callable[..., Prioritization] = "proportional",
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
        td_error_clip: float | None = None,
        initial_priority: float = 1.0,
        new_priority: Literal["max_seen", "max_stored"] = "max_seen",
        weight_normalization: Literal["batch", "buffer", "none"] = "batch",
        stratified: bool = True,
        replacement: bool = True,
        **kwargs: Any,
    ) -> None:
        require(
            callable(prioritization) or prioritization in PRIORITIZATIONS,
            f"prioritization must be one of {[*PRIORITIZATIONS]} or a class",
            prioritization,
        )
        kind = (
            PRIORITIZATIONS[prioritization] if isinstance(prioritization, str) else prioritization
        )
        normalizations = ("batch", "buffer", "none")
        require(
            weight_normalization in normalizations,
            f"weight_normalization must be one of {normalizations}",
            weight_normalization,
        )
        self.beta = beta
        super().__init__(*args, **kwargs)
        self.weight_normalization = weight_normalization
        self.scheme = Scheme(stratified, replacement)
        self.prioritization = kind(
            self.n_slots,
            alpha=alpha,
            eps=eps,
            td_error_clip=td_error_clip,
            initial_priority=initial_priority,
            new_priority=new_priority,
            track_smallest=weight_normalization == "buffer",
        )
        # SB3 seeds NumPy's global state and nothing else that a buffer can see; a stream of our own
        # can be pickled.
        self.generator = np.random.default_rng(np.random.randint(2**32, size=4, dtype=np.uint64))  # noqa: NPY002
        self._draw_state = np.zeros(self.n_slots, dtype=np.int8)
        self._batches_without_update: int | None = 0

    @property
    def beta(self) -> float:
        """Exponent of the importance-sampling weights: 0 corrects nothing, 1 everything."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        require(0 <= beta <= 1, "beta must lie in [0, 1]", beta)
        self._beta = float(beta)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Store one transition of every environment, as ``ReplayBuffer.add``; O(n_envs log N)."""
        row = self.pos
        super().add(*args, **kwargs)
        slots = self.slots_of(row)
        draw_state = self._draw_state[slots[0] : slots[-1] + 1]
        draw_state[draw_state == _AWAITED] = _OVERWRITTEN
        self.prioritization.insert(slots)
        barred = self.barred_row
        if barred is not None:
            self.prioritization.remove(self.slots_of(barred))

    def reset(self) -> None:
        """Empty the buffer. The random stream goes on."""
        super().reset()
        self.prioritization.clear()
        self._draw_state[:] = _SETTLED

    def sample(  # type: ignore[override]  # SB3's six fields come first, but a NamedTuple cannot be extended
        self, batch_size: int, env: VecNormalize | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        Draw a batch by priority; O(B log N).

        :param batch_size: B, how many transitions.
        :param env: Normalizes observations and rewards, if given.
        :return: The batch, with ``weights`` for the loss and ``slots`` for ``update_priorities``.
        :raises ValueError: if the buffer holds too few transitions; nothing has changed then.
        """
        n_drawable = self.n_drawable
        require(batch_size >= 1, "batch_size must be at least 1", batch_size)
        require(n_drawable > 0, "a sample needs at least one drawable transition", n_drawable)
        require(
            self.scheme.replacement or n_drawable >= batch_size,
            f"replacement=False needs at least batch_size={batch_size} drawable transitions",
            n_drawable,
        )
        uniforms = self.generator.random(self.scheme.n_uniforms(batch_size))
        draw = self.prioritization.draw(self.scheme, batch_size, uniforms)
        self._draw_state[draw.slots] = _AWAITED
        self._warn_without_updates()
        weights = self._weights(draw, n_drawable).astype(np.float32).reshape(-1, 1)
        return PrioritizedReplayBufferSamples(
            *self.gather(draw.slots, env), self._tensor(weights), draw.slots
        )

    def update_priorities(
        self, slots: ArrayLike | th.Tensor, td_errors: ArrayLike | th.Tensor
    ) -> None:
        """
        Give sampled transitions the priorities of their new TD errors; O(B log N).

        Of a slot named twice the last TD error counts. A TD error that comes too late, when the
        ring has put a newer transition in the place of the sampled one, is dropped, and so is one
        for the write head of memory-optimised storage.

        :param slots: The ``slots`` of a batch, or any slots that hold a transition, shape (B,) or
            (B, 1).
        :param td_errors: Target minus current Q, the sign does not matter, shape (B,) or (B, 1).
        :raises ValueError: before anything has changed, for slots that hold no transition, TD
            errors that are not finite in float32, or unequal lengths.
        """
        slots, td_errors = _as_slots(slots), _as_td_errors(td_errors)
        self._check_update(slots, td_errors)
        in_time = self._draw_state[slots] != _OVERWRITTEN
        barred = self.barred_row
        if barred is not None:
            in_time &= slots // self.n_envs != barred
        self._draw_state[slots] = _SETTLED
        self._batches_without_update = None
        self.prioritization.update(slots[in_time], td_errors[in_time])

    def _check_update(self, slots: IntArray, td_errors: FloatArray) -> None:
        same_length = len(slots) == len(td_errors)
        require(same_length, f"{len(slots)} slots need as many TD errors", len(td_errors))
        bad_slots = (slots < 0) | (slots >= self.n_stored)
        if bad_slots.any():
            rule = f"a slot must lie in [0, {self.n_stored}), where transitions are"
            raise ValueError(f"{rule}, got {slots[bad_slots.argmax()]}")
        bad_errors = ~(np.abs(td_errors) <= LARGEST_TD_ERROR)
        if bad_errors.any():
            first = bad_errors.argmax()
            rule = "a TD error must be finite in float32"
            raise ValueError(f"{rule}, got {td_errors[first]} for slot {slots[first]}")

    def _weights(self, draw: Draw, n_drawable: int) -> FloatArray:
        weights = importance_weights(draw.probabilities, n_drawable, self.beta)
        if self.weight_normalization == "batch":
            weights /= weights.max()
        elif self.weight_normalization == "buffer":
            weights /= importance_weights(draw.smallest_probability, n_drawable, self.beta)
        return weights

    def _warn_without_updates(self) -> None:
        if self._batches_without_update is None:
            return
        self._batches_without_update += 1
        if self._batches_without_update == _BATCHES_BEFORE_WARNING:
            warnings.warn(
                f"{_BATCHES_BEFORE_WARNING} batches were drawn, but update_priorities was never "
                "called, so every transition keeps its first priority. Plain DQN neither weights "
                "its loss nor updates priorities: use sb3_per.PERDQN, or multiply the loss by "
                "batch.weights and call buffer.update_priorities(batch.slots, td_errors) after "
                "each gradient step.",
                stacklevel=3,
            )


class PrioritizedDictReplayBuffer(  # type: ignore[misc]  # sample: see PrioritizedReplayBuffer
    PrioritizedReplayBuffer, SlotDictReplayBuffer
):
    """A ``PrioritizedReplayBuffer`` for Dict observations, with the same options."""


def _as_slots(slots: ArrayLike | th.Tensor) -> IntArray:
    array = _flat(
        slots.detach().cpu().numpy() if isinstance(slots, th.Tensor) else np.asarray(slots), "slots"
    )
    require(array.dtype.kind in "iu" or array.size == 0, "slots must be whole numbers", array.dtype)
    return array.astype(np.int64)


def _as_td_errors(td_errors: ArrayLike | th.Tensor) -> FloatArray:
    if isinstance(td_errors, th.Tensor):
        td_errors = td_errors.detach().cpu().double().numpy()
    return _flat(np.asarray(td_errors, dtype=np.float64), "td_errors")


def _flat(array: NDArray[Any], name: str) -> NDArray[Any]:
    is_flat = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)
    require(is_flat, f"{name} must have shape (B,) or (B, 1)", array.shape)
    return array.ravel()
