"""
Prioritized replay buffers for Stable-Baselines3.

What happens to a transition: ``add`` stores it in a slot, ``row * n_envs + env``, and inserts the
slot into the sampler with the largest priority so far. ``sample`` asks the sampler for slots and
their weights, and gathers the transitions. The algorithm computes TD errors and passes them, with
the slots, to ``update_priorities``. The sampler drops those that are stale: their transition was
overwritten in the meantime. The others become priorities, in the leaves of a sum tree.

Transitions that a user writes into the arrays are noticed by ``_sync_sampler``, before the next
sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize
from typing_extensions import Unpack

from sb3_per._utils import (
    generator_from,
    generator_state,
    require_number,
    require_whole,
)
from sb3_per.buffers.files import checked_entries
from sb3_per.buffers.storage import SlotReplayBuffer
from sb3_per.options import (
    OPTION_NAMES,
    PrioritizationOptions,
    ReplayBufferKwargs,
    beta_at,
    require_known,
)
from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.sampler import (
    PrioritizedSampler,
    SampledBatch,
    require_updatable,
    warm_up,
)
from sb3_per.prioritization.sum_tree import FloatArray, IntArray

ArrayOrTensor = ArrayLike | th.Tensor
# More than one sample before an update may be intended; this many batches without one hardly are.
BATCHES_BEFORE_WARNING = 10
WITHOUT_UPDATES = (
    f"{BATCHES_BEFORE_WARNING} batches were sampled, but update_priorities was not called, so "
    "priorities are out of date. SB3's algorithms neither weight their loss nor update priorities: "
    "use the algorithm of sb3_per instead (sb3_per.PERDQN for DQN), or multiply the loss by "
    "batch.weights and call buffer.update_priorities(batch.slots, td_errors) after each gradient "
    "step."
)


class PrioritizedReplayBufferSamples(NamedTuple):
    """SB3's fields, weights, slots, and infos. Dict observations are dicts of tensors."""

    observations: th.Tensor | TensorDict
    actions: th.Tensor
    next_observations: th.Tensor | TensorDict
    dones: th.Tensor  # (B, 1)
    rewards: th.Tensor  # (B, 1), the n-step return for n_steps > 1
    discounts: th.Tensor | None  # (B, 1), gamma^(steps in the return); None for n_steps = 1
    weights: th.Tensor  # (B, 1) float32
    slots: IntArray  # (B,), for `update_priorities`; on the host, whatever the device
    host_weights: NDArray[np.float32]  # (B, 1), the weights on the host, for the log
    infos: dict[str, th.Tensor] | None = None  # (B, ...) each, of the first step; for `info_keys`


class PrioritizedReplayBuffer(SlotReplayBuffer):
    """
    A ``ReplayBuffer`` that samples transitions by priority (Schaul et al. 2016,
    https://arxiv.org/abs/1511.05952).

    ``batch = buffer.sample(32)`` has ``weights`` for the loss, and ``slots`` for
    ``buffer.update_priorities(batch.slots, td_errors)``; this library's algorithms use both.

    A slot that must not be sampled (never written, or the write head of memory-optimised storage)
    has probability 0. The order of a stratified batch is not random: shuffle a batch before you
    split it. One thread may add transitions while another one samples and updates priorities, but
    not with ``optimize_memory_usage``, whose write head moves. A transition that is overwritten
    while it is sampled may be half old, half new.

    The arguments of ``ReplayBuffer`` come first, in its order, and mean the same. The options are
    keyword arguments. ``buffer.options`` has those of prioritization, from ``prioritization`` on.

    :param n_steps: Steps in the return, as in ``NStepReplayBuffer``; not with
        ``optimize_memory_usage``.
    :param gamma: Discount factor of the n-step return, in [0, 1].
    :param n_stack: Frames in an observation that ``VecFrameStack`` has stacked: each frame is
        stored once instead of up to ``2 * n_stack`` times, and batches are the same. An algorithm
        does so by default (None) if its environments are a ``VecFrameStack`` of images; 1 turns it
        off. A buffer on its own does so only with a number. Not with ``optimize_memory_usage``.
    :param info_keys: Keys of the environments' ``infos`` whose values are stored and come back as
        ``batch.infos[key]``, float32 of shape (B, ...). Every step must have them.
    :param prioritization: ``"proportional"`` (the default): P(i) from abs(TD error)^alpha;
        ``"rank"``: from its rank; ``"lap"``: from max(abs(TD error), threshold)^alpha; or a class
        of your own with the methods of ``sb3_per.prioritization.base.Prioritization``.
    :param prioritization_kwargs: Options of that class alone, such as LAP's ``threshold``.
    :param alpha: How much prioritization, in [0, 1]; 0 is uniform sampling. Default: 0.6.
    :param beta: Exponent of the importance-sampling weights, in [0, 1]: a number; (first, last),
        linear over the training; (first, last, n_steps), linear over so many steps; or a function
        of the remaining progress, which falls from 1 to 0. Only an algorithm changes it during
        training: a buffer on its own keeps the first value. Default: 0.4.
    :param eps: Added to abs(TD error) so that every transition can be sampled, > 0; without effect
        on ranks and LAP. Default: 1e-6.
    :param td_error_clip: Upper bound of abs(TD error), before eps; None for no bound. In an
        algorithm's ``replay_buffer_kwargs``, ``"loss"`` stands for the threshold of its Huber loss;
        a loss without a threshold needs a number.
    :param uniform_share: The part of each batch that is sampled uniformly, in [0, 1]; needs
        ``replacement=True``. The weights use the probability under the mixture, P(i) = share / N +
        (1 - share) p_i^alpha / sum, so without normalization they are at most share^-beta.
    :param initial_priority: Priority of the first transitions, and with ``"max_seen"`` the least
        that a new transition gets, > 0. Default: 1.
    :param new_priority: New transitions get the largest priority ever seen (``"max_seen"``, the
        default and the paper's algorithm 1), or the largest priority stored now
        (``"max_stored"``). That includes the transitions that they overwrite, except with hindsight
        replay and ``optimize_memory_usage``.
    :param weight_normalization: Divide the weights by the largest of the ``"batch"``, by the
        largest that any stored transition could have (``"buffer"``), by the ``"mean"`` of the
        batch, or not at all (``"none"``). ``"buffer"`` can stop learning as beta nears 1: one
        transition with a TD error near 0 makes all other weights vanish. Default: ``"batch"``.
    :param stratified: True (the default): one sample from each of B equal slices of the
        probability. False: B independent samples. Without effect on ``replacement=False``.
    :param replacement: Whether a batch may hold a transition twice. If not, they are sampled as by
        ``np.random.choice``, and weights come from the probability of being in the batch:
        ``sb3_per.prioritization.sum_tree.sample_distinct``.
    :raises ValueError: for an option out of its range.
    """

    # Whether a row can be sampled once it is stored. With hindsight replay, episodes can be when
    # they have ended, wherever `pos` is, as in SB3.
    _inserts_rows = True

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **options: Unpack[ReplayBufferKwargs],
    ) -> None:
        require_known(options, ReplayBufferKwargs.__annotations__)
        for space in (observation_space, action_space):
            if not isinstance(space, spaces.Space):
                raise ValueError(f"pass spaces, such as env.observation_space, got {space!r}")
        of_storage: Any = {k: v for k, v in options.items() if k not in OPTION_NAMES}
        of_prioritization: Any = {k: v for k, v in options.items() if k in OPTION_NAMES}
        self.options = PrioritizationOptions(**of_prioritization)
        self.beta = beta_at(self.options.beta)
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
            **of_storage,
        )
        # NumPy's global state is the only seeded state of SB3 that a buffer can see. A generator of
        # its own can be stored with the buffer.
        seed = np.random.randint(2**32, size=4, dtype=np.uint64)  # noqa: NPY002
        self.sampler = PrioritizedSampler(self.n_slots, self.options, np.random.default_rng(seed))
        self.batches_without_update: float = 0
        warm_up(self.options)  # so that no later call waits

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "batches_without_update": 0}

    def __repr__(self) -> str:
        name = getattr(self.options.prioritization, "__name__", self.options.prioritization)
        frames = f"n_stack={self.n_stack} (frames stored once), " if self.n_stack > 1 else ""
        return (
            f"{type(self).__name__}({len(self)} of {self.n_slots} transitions, "
            f"{self.nbytes / 1e6:,.1f} MB, {frames}prioritization={name}, alpha={self.alpha:g}, "
            f"beta={self.beta:g})"
        )

    @property
    def alpha(self) -> float:
        """Return the exponent of priorities: 0 is uniform sampling."""
        return self.options.alpha

    @property
    def beta(self) -> float:
        """Return the exponent of the weights: 0 corrects nothing, 1 everything."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        require_number("beta", beta, 0, 1)
        self._beta = float(beta)

    @property
    def generator(self) -> np.random.Generator:
        """Return the random generator of the samples; set another one to seed the buffer."""
        return self.sampler.generator

    @generator.setter
    def generator(self, generator: np.random.Generator) -> None:
        self.sampler.generator = generator

    @property
    def prioritization(self) -> Prioritization:
        return self.sampler.prioritization

    @property
    def n_sampleable(self) -> int:
        """Return how many transitions can be sampled."""
        return self.sampler.n_sampleable

    def _insert_row(self, row: int) -> None:
        """Insert the transitions of a row that ``add`` has stored."""
        if not self._inserts_rows:
            return
        self.sampler.insert(self._slots_of(row))
        # Memory-optimised storage has put the newest next observation in the row at `pos`.
        if self.optimize_memory_usage and self.full:
            self.sampler.remove(self._slots_of(self.pos))

    def sample(  # type: ignore[override]  # SB3's six fields come first, but a NamedTuple cannot be extended
        self, batch_size: int, env: VecNormalize | None = None, *, beta: float | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        Sample a batch by priority; O(B log N).

        To change its transitions (rewards of your own, for example), override this method and
        return ``batch._replace(rewards=...)``, or override SB3's hook ``_get_samples``.

        :param batch_size: B, how many transitions.
        :param env: Normalizes observations and rewards, if given.
        :param beta: Exponent of this batch's weights; None for the buffer's ``beta``.
        :return: The batch, with ``weights`` for the loss and ``slots`` for ``update_priorities``.
        :raises ValueError: if the buffer holds too few transitions; nothing has changed then.
        """
        sampled = self._sample_slots(batch_size, beta)
        return self._batch_of(self._get_samples(sampled.slots, env), sampled)

    def _sample_slots(self, batch_size: int, beta: float | None) -> SampledBatch:
        """Check the arguments of ``sample``, and return slots, (B,), and weights, (B, 1)."""
        require_whole("batch_size", batch_size)
        self._sync_sampler()
        self._require_enough(int(batch_size))
        if beta is not None:
            require_number("beta", beta, 0, 1)
        exponent = self._beta if beta is None else float(beta)  # an int would compile a kernel
        sampled = self.sampler.sample(int(batch_size), exponent)
        self.batches_without_update += 1
        if self.batches_without_update == BATCHES_BEFORE_WARNING:
            warnings.warn(WITHOUT_UPDATES, stacklevel=3)
        return sampled

    def _require_enough(self, batch_size: int) -> None:
        """Raise ValueError unless a batch can be sampled; the message says what helps."""
        n_needed = 1 if self.options.replacement else batch_size
        if self.n_sampleable < n_needed:
            raise ValueError(
                f"this sample needs at least {n_needed} transitions that can be sampled (a larger "
                f"learning_starts or buffer_size helps), got {self.n_sampleable}"
            )

    def _batch_of(self, transitions: Any, sampled: SampledBatch) -> PrioritizedReplayBufferSamples:
        """Return the batch of transitions, which have SB3's six fields."""
        slots, weights = sampled
        infos = self._infos_of(slots) if self.info_keys else None
        fields = *transitions, self._tensor(weights), slots, weights, infos
        return PrioritizedReplayBufferSamples._make(fields)

    def update_priorities(self, slots: ArrayOrTensor, td_errors: ArrayOrTensor) -> None:
        """
        Give sampled transitions the priorities of their new TD errors; O(B log N).

        Call it before you sample the next batch. If a slot occurs twice, its last TD error counts.
        A stale TD error is dropped: its transition was overwritten after it was sampled, or the
        buffer was reset. (With two batches between sample and update, a stale TD error is not
        noticed in a slot that both hold: the slot has one mark, not one for each batch.)

        :param slots: The ``slots`` of a batch, shape (B,) or (B, 1), or any others. TD errors of
            slots that cannot be sampled are ignored.
        :param td_errors: Target minus current Q, of either sign, shape (B,) or (B, 1).
        :raises ValueError: before anything has changed, for slots that the buffer does not have, TD
            errors that are not finite in float32, or unequal lengths.
        """
        slots, td_errors = _as_slots(slots), _as_td_errors(td_errors)
        if len(slots) != len(td_errors):
            raise ValueError(
                "there must be as many TD errors as slots, got "
                f"{len(td_errors)} TD errors for {len(slots)} slots"
            )
        require_updatable(slots, td_errors, self.n_slots)
        self._sync_sampler()
        self.sampler.update(slots, td_errors)
        self.batches_without_update = 0

    def probabilities(self, slots: ArrayOrTensor) -> FloatArray:
        """
        Return P(i) for slots, as the weights use it: the probability for one sample of a batch.

        With ``uniform_share`` it is the mixture's. A slot that cannot be sampled has 0. With
        ``replacement=False`` it is the probability for the first sample, not that of the weights.

        :param slots: Whole numbers in [0, n_slots), shape (n,) or (n, 1).
        :return: Shape (n,).
        :raises ValueError: for other slots.
        """
        slots = _as_slots(slots)
        require_updatable(slots, np.zeros(len(slots)), self.n_slots)
        self._sync_sampler()
        return self.sampler.probabilities(slots)

    def reset(self) -> None:
        """Empty the buffer. TD errors of earlier batches are dropped; the generator continues."""
        super().reset()
        self.sampler.clear()

    def sampleable_slots(self) -> IntArray:
        """Return the slots that can be sampled, in order."""
        is_stored = np.ones(len(self), dtype=np.bool_)
        if self.optimize_memory_usage and self.full:
            is_stored[self._slots_of(self.pos)] = False  # the newest next observation is there
        return np.flatnonzero(is_stored)  # `setdiff1d` takes seconds for a million slots

    def _sync_sampler(self) -> None:
        """
        Bring the sampler in line with ``pos`` and ``full``, which users of SB3's buffers set.

        Transitions that were written into the arrays are new ones; those of a cleared buffer and
        those dropped from its end cannot be sampled any more. A transition that was replaced by
        hand keeps its priority: only how many are stored, and where they end, is compared.
        """
        if not self._inserts_rows:
            return
        n_stored = len(self)
        if self.optimize_memory_usage and self.full:
            n_stored -= self.n_envs
            # The write head can never be sampled; if it can, somebody has moved `pos`.
            is_moved = self.sampler.is_inserted(self.pos * self.n_envs)
        else:  # as many may have been written by hand as were dropped
            is_moved = self.sampler.end != n_stored
        if is_moved or self.sampler.n_sampleable != n_stored:
            self._sync_every_slot()

    def _sync_every_slot(self) -> None:
        """Insert transitions that were written by hand, and remove those that are gone."""
        # First, since another thread may add a row now: it must not be removed.
        is_inserted = self.sampler.is_inserted(np.arange(self.n_slots))
        is_stored = np.zeros(self.n_slots, dtype=np.bool_)
        is_stored[self.sampleable_slots()] = True
        self.sampler.remove(np.flatnonzero(is_inserted & ~is_stored))
        self.sampler.insert(np.flatnonzero(is_stored & ~is_inserted))

    def arguments(self) -> dict[str, Any]:
        """
        Return the options with which the buffer was made, as ``replay_buffer_kwargs``: all except
        ``n_steps`` and ``gamma``, which are the algorithm's.
        """
        return {
            "handle_timeout_termination": bool(self.handle_timeout_termination),
            "n_stack": self.n_stack,
            "info_keys": [*self.info_keys],
            **vars(self.options),
        }

    def _fits(self) -> dict[str, Any]:
        return {**super()._fits(), **self.options.of_priorities}

    def _state_dict(self) -> dict[str, Any]:
        self._sync_sampler()
        slots, values, largest = self.sampler.entries()
        return {
            **super()._state_dict(),
            "beta": self.beta,
            "generator": generator_state(self.generator),
            "priorities": {"slots": slots, "values": values, "largest": largest},
        }

    def _load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Continue from a state of another buffer; see ``load_buffer``.

        Transitions without a priority are new, and priorities without a transition are dropped: the
        buffer may have been saved after Ctrl-C in the middle of ``add``.
        """
        self._require_fitting(state)
        self.reset()
        try:
            self._fill(state)
        except BaseException:
            self.reset()
            raise

    def _fill(self, state: Mapping[str, Any]) -> None:
        super()._fill(state)
        self.beta = state["beta"]
        self.generator = generator_from(state["generator"])
        self.sampler.restore(*checked_entries(state["priorities"], self.n_slots))
        self._sync_every_slot()


class PrioritizedDictReplayBuffer(  # type: ignore[misc]  # its batches: see PrioritizedReplayBuffer
    PrioritizedReplayBuffer, DictReplayBuffer
):
    """A ``PrioritizedReplayBuffer`` for Dict observations, with the same options."""


def _as_slots(slots: ArrayOrTensor) -> IntArray:
    """Return slots as int64, shape (B,); raise ValueError for what cannot be slots."""
    if isinstance(slots, th.Tensor):
        slots = slots.cpu().numpy()
    array = _flat(np.asarray(slots), "slots")
    if array.dtype.kind not in "iu" and array.size > 0:
        raise ValueError(f"slots must be whole numbers, got {array.dtype}")
    return array.astype(np.int64, copy=False)


def _as_td_errors(td_errors: ArrayOrTensor) -> FloatArray:
    """Return TD errors as float64, shape (B,)."""
    if isinstance(td_errors, th.Tensor):
        td_errors = td_errors.detach().cpu()
        # NumPy widens float32 faster than torch, and knows no bfloat16.
        td_errors = (td_errors if td_errors.dtype == th.float32 else td_errors.double()).numpy()
    return _flat(np.asarray(td_errors, dtype=np.float64), "td_errors")


def _flat(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.ndim != 1 and not (array.ndim == 2 and array.shape[1] == 1):
        raise ValueError(f"{name} must have shape (B,) or (B, 1), got {array.shape}")
    return array.ravel()
