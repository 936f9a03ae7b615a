"""Prioritized replay buffers for Stable-Baselines3: draws, weights and the random stream."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch as th
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers.arguments import as_slots, as_td_errors, check_update, refuse_sample
from sb3_per.buffers.storage import SlotDictReplayBuffer, SlotReplayBuffer
from sb3_per.prioritization.base import Prioritization, importance_weights, smallest
from sb3_per.prioritization.names import kind_of
from sb3_per.prioritization.pending_updates import DrawLog
from sb3_per.prioritization.sampling import Draw, Scheme
from sb3_per.prioritization.sum_tree import IntArray
from sb3_per.rules import fixed, require, require_bool, require_fraction
from sb3_per.signatures import keyword_only, spliced

# So many batches without an update are no accident (two samples before one update may be).
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

    The order within a batch means nothing, but stratified batches are in some order, by slot or by
    rank: shuffle before splitting one.

    :param args: As for ``ReplayBuffer``: buffer_size, observation_space, action_space, device,
        n_envs, ...
    :param kwargs: As for ``SlotReplayBuffer``: ``n_steps`` and ``gamma``, and the rest of
        ``ReplayBuffer``'s.
    :param prioritization: ``"proportional"``: P(i) from abs(TD error)^alpha; ``"rank"``: from its
        rank; or a class of your own that obeys ``sb3_per.prioritization.base.Prioritization``,
        called with the number of slots, the options below up to ``new_priority``, and
        ``track_smallest``: whether draws have to tell the smallest probability of all.
    :param alpha: How much prioritization, in [0, 1]; 0 is uniform sampling.
    :param beta: Exponent of the importance-sampling weights, in [0, 1]; an attribute that the
        algorithm moves.
    :param eps: Added to abs(TD error), > 0.
    :param td_error_clip: Upper bound of abs(TD error), before eps.
    :param initial_priority: Priority of the first transitions, until a TD error is known, > 0.
    :param new_priority: New transitions get the largest priority ever seen (``"max_seen"``), or the
        largest of those stored now (``"max_stored"``), the ones that they overwrite included.
    :param weight_normalization: Divide the weights by the largest of the ``"batch"``, by the
        largest that any stored transition could have (``"buffer"``), or not at all (``"none"``).
        Mind ``"buffer"`` as beta nears 1: one transition with a TD error near 0 makes all other
        weights vanish, and learning stops.
    :param stratified: One draw from each of B equal slices of the probability, or else B
        independent draws.
    :param replacement: Whether a batch may hold a transition twice. If not, weights come from the
        probability of being in the batch; see ``sb3_per.prioritization.sampling.Scheme``.
    :raises ValueError: for an option out of its range.
    """

    weight_normalization: Literal["batch", "buffer", "none"] = fixed("weight_normalization")

    # For files of 0.1.0, which have it by another name.
    _n_batches_without_update = 0

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
        kind = kind_of(prioritization)
        normalizations = ("batch", "buffer", "none")
        require(
            weight_normalization in normalizations,
            f"weight_normalization must be one of {normalizations}",
            weight_normalization,
        )
        require_bool("stratified", stratified)
        require_bool("replacement", replacement)
        self.beta = beta
        super().__init__(*args, **kwargs)
        self.weight_normalization = weight_normalization
        self.scheme = Scheme(bool(stratified), bool(replacement))
        self.scheme.compile_kernels()
        self.prioritization_options: dict[str, Any] = {
            "alpha": alpha,
            "eps": eps,
            "td_error_clip": td_error_clip,
            "initial_priority": initial_priority,
            "new_priority": new_priority,
        }
        track_smallest = weight_normalization == "buffer"
        options = {**self.prioritization_options, "track_smallest": track_smallest}
        self._prioritization = kind(self.n_slots, **options)
        # SB3 seeds NumPy's global state and nothing else that a buffer can see; a stream of our own
        # can be pickled.
        self.generator = np.random.default_rng(np.random.randint(2**32, size=4, dtype=np.uint64))  # noqa: NPY002
        self._draw_log = DrawLog(self.n_slots)
        self._n_new_rows = 0
        self._n_batches_without_update = 0

    def __getstate__(self) -> dict[str, Any]:
        # The buffer's next owner has to be warned as well (see `_warn_without_updates`).
        return {**self.__dict__, "_n_batches_without_update": 0}

    @property
    def beta(self) -> float:
        """Exponent of the importance-sampling weights: 0 corrects nothing, 1 everything."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        require_fraction("beta", beta)
        self._beta = float(beta)

    @property
    def alpha(self) -> float:
        """How much prioritization: it stays what it is."""
        return float(self.prioritization_options["alpha"])

    @alpha.setter
    def alpha(self, alpha: float) -> None:
        require(alpha == self.alpha, f"alpha stays {self.alpha}: make a new buffer", alpha)

    @property
    def prioritization(self) -> Prioritization:
        """Who is drawn how often."""
        self._let_in()
        return self._prioritization

    def _advance(self) -> None:
        super()._advance()
        self._n_new_rows += 1

    def storage(self) -> dict[str, NDArray[Any]]:
        """Views of all that is kept by row or slot: transitions, and draws without TD errors."""
        self._let_in()
        return {**super().storage(), "draw_log": self._draw_log.states}

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs beside storage and prioritization: plain values, as JSON has."""
        return {
            "pos": self.pos,
            "full": self.full,
            "beta": self.beta,
            "generator": self.generator.bit_generator.state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state, in a new buffer; what ``storage`` views has to be filled in then."""
        require(0 <= state["pos"] < self.buffer_size, "pos must be a row", state["pos"])
        self.pos, self.full, self.beta = state["pos"], state["full"], state["beta"]
        self.generator.bit_generator.state = state["generator"]

    def options(self) -> dict[str, Any]:
        """What prioritization was asked to be, but for its kind and beta."""
        return {
            "weight_normalization": self.weight_normalization,
            **self.scheme._asdict(),
            **self.prioritization_options,
        }

    def reset(self) -> None:
        """Empty the buffer. The random stream goes on; TD errors that are awaited will be late."""
        super().reset()
        self._n_new_rows = 0
        self._draw_log.overwrite(np.arange(self.n_slots))
        self._prioritization.clear()

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
        n_needed = 1 if self.scheme.replacement else batch_size
        if batch_size < 1 or n_drawable < n_needed:
            most = self.n_slots - self.n_envs * self.optimize_memory_usage
            refuse_sample(batch_size, n_drawable, most, self.scheme.replacement)
        self._let_in()
        uniforms = self.generator.random(self.scheme.n_uniforms(batch_size))
        draw = self._prioritization.draw(self.scheme, batch_size, uniforms)
        self._draw_log.draw(draw.slots)
        self._n_batches_without_update += 1
        if self._n_batches_without_update == _BATCHES_BEFORE_WARNING:
            self._warn_without_updates()
        weights = self._tensor(self._weights(draw, n_drawable))
        return PrioritizedReplayBufferSamples(*self.gather(draw.slots, env), weights, draw.slots)

    def update_priorities(
        self, slots: ArrayLike | th.Tensor, td_errors: ArrayLike | th.Tensor
    ) -> None:
        """
        Give sampled transitions the priorities of their new TD errors; O(B log N).

        Of a slot named twice the last TD error counts. A TD error that comes too late, when the
        ring has put a newer transition in the place of the sampled one, or the buffer was reset, is
        dropped, and so is one for the write head of memory-optimised storage. Of a slot that was
        drawn again meanwhile, TD errors count as those of its latest draw.

        :param slots: The ``slots`` of a batch, shape (B,) or (B, 1). Or any slots that hold a
            transition; but for one whose former transition was drawn, and overwritten before its TD
            error came, the next one is taken for that.
        :param td_errors: Target minus current Q, the sign does not matter, shape (B,) or (B, 1).
        :raises ValueError: before anything has changed, for slots that hold no transition, TD
            errors that are not finite in float32, or unequal lengths.
        """
        slots, td_errors = as_slots(slots), as_td_errors(td_errors)
        check_update(slots, td_errors, self.n_stored, self._draw_log.are_late)
        self._let_in()
        self._n_batches_without_update = 0
        in_time, n_late = self._draw_log.settle(slots)
        barred = self.barred_row
        if barred is not None:
            in_time &= slots // self.n_envs != barred
        if n_late > 0 or barred is not None:
            slots, td_errors = slots[in_time], td_errors[in_time]
        self._prioritization.update(slots, td_errors)

    def _let_in(self) -> None:
        """Tell the prioritization of what was added: once for all rows, since each call costs."""
        n_rows = min(self._n_new_rows, self.buffer_size)
        if n_rows == 0:
            return
        last = self.pos * self.n_envs
        slots = np.arange(last - n_rows * self.n_envs, last)
        if slots[0] < 0:
            slots %= self.n_slots
        self._draw_log.overwrite(slots)
        self._prioritization.insert(slots)
        barred = self.barred_row
        if barred is not None:
            self._prioritization.remove(self.slots_of(barred))
        self._n_new_rows = 0

    def _weights(self, draw: Draw, n_drawable: int) -> NDArray[np.float32]:
        reference, divided_by = 1 / n_drawable, self.weight_normalization
        if divided_by == "batch":
            reference = smallest(draw.probabilities)
        elif divided_by == "buffer":
            reference = draw.smallest_probability
        return importance_weights(draw.probabilities, reference, self.beta)

    def _warn_without_updates(self) -> None:
        warnings.warn(
            f"{_BATCHES_BEFORE_WARNING} batches were sampled, but update_priorities was not "
            "called, so priorities are out of date. SB3's algorithms neither weight their loss nor "
            "update priorities: use the algorithm of sb3_per in their place (sb3_per.PERDQN for "
            "DQN), or multiply the loss by batch.weights and call "
            "buffer.update_priorities(batch.slots, td_errors) after each gradient step.",
            stacklevel=3,
        )


class PrioritizedDictReplayBuffer(  # type: ignore[misc]  # sample: see PrioritizedReplayBuffer
    PrioritizedReplayBuffer, SlotDictReplayBuffer
):
    """A ``PrioritizedReplayBuffer`` for Dict observations, with the same options."""


# The options that prioritization adds to those of ``ReplayBuffer``.
OPTION_NAMES = [each.name for each in keyword_only(PrioritizedReplayBuffer.__init__)]

# What help() and editors show. Of the constructor: a class would pass it on to its subclasses.
PrioritizedReplayBuffer.__init__.__signature__ = spliced(  # type: ignore[attr-defined]  # see there
    ReplayBuffer.__init__, SlotReplayBuffer.__init__, PrioritizedReplayBuffer.__init__
)
