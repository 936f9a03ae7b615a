"""Prioritized replay buffers for Stable-Baselines3."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers.arguments import (
    BATCHES_BEFORE_WARNING,
    as_batch_size,
    as_slots,
    as_td_errors,
    check_sample,
    check_update,
    compile_kernels,
    warn_without_updates,
)
from sb3_per.buffers.sampler_options import SamplerOptions
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples
from sb3_per.buffers.storage import SlotDictReplayBuffer, SlotReplayBuffer
from sb3_per.buffers.upgrade import upgrade_buffer_state
from sb3_per.prioritization.base import Prioritization
from sb3_per.prioritization.sampler import PrioritizedSampler, SampledBatch
from sb3_per.rules import require, require_fraction
from sb3_per.signatures import explain_unknown_arguments, keyword_only


class PrioritizedReplayBuffer(SamplerOptions, SlotReplayBuffer):
    """
    A ``ReplayBuffer`` that samples transitions by priority (Schaul et al. 2016,
    https://arxiv.org/abs/1511.05952).

    A transition is stored in a slot: ``row * n_envs + env``. A slot that must not be sampled (never
    written, or the write head of memory-optimised storage) has probability 0.

    The order of a stratified batch is not random: shuffle a batch before you split it.

    One thread may add transitions while another one samples and updates priorities. A transition
    that is overwritten while it is sampled may be half old, half new.

    The arguments of ``ReplayBuffer`` come first, in its order, and mean the same.

    :param n_steps: Steps in the return, as in ``NStepReplayBuffer``; not with
        ``optimize_memory_usage``.
    :param gamma: Discount factor of the n-step return, in [0, 1].
    :param n_stack: Frames in an observation that ``VecFrameStack`` has stacked: each frame is
        stored once instead of up to ``2 * n_stack`` times, and batches are the same. Other
        observations raise a ``ValueError`` in ``add``. Not with ``optimize_memory_usage``.
    :param prioritization: ``"proportional"``: P(i) from abs(TD error)^alpha; ``"rank"``: from its
        rank; ``"lap"``: from max(abs(TD error), threshold)^alpha (see
        ``sb3_per.prioritization.lap``); or a class of your own with the methods of
        ``sb3_per.prioritization.base.Prioritization``.
    :param prioritization_kwargs: Options of that prioritization alone, such as LAP's
        ``threshold``.
    :param alpha: How much prioritization, in [0, 1]; 0 is uniform sampling.
    :param beta: Exponent of the importance-sampling weights, in [0, 1]. It is an attribute, and an
        algorithm changes it during training.
    :param eps: Added to abs(TD error), > 0.
    :param td_error_clip: Upper bound of abs(TD error), before eps; None for no bound. In an
        algorithm's ``replay_buffer_kwargs``, ``"loss"`` stands for the threshold of its Huber loss;
        a loss without a threshold needs a number.
    :param uniform_share: The part of each batch that is sampled uniformly, in [0, 1]; needs
        ``replacement=True``. The weights use the probability under the mixture, P(i) = share / N +
        (1 - share) p_i^alpha / sum, so without normalization they are at most share^-beta.
    :param initial_priority: Priority of the first transitions, until a TD error is known, > 0.
    :param new_priority: New transitions get the largest priority ever seen (``"max_seen"``), or the
        largest priority stored now (``"max_stored"``). That includes the transitions that they
        overwrite, except with hindsight replay and ``optimize_memory_usage``.
    :param weight_normalization: Divide the weights by the largest of the ``"batch"``, by the
        largest that any stored transition could have (``"buffer"``), by the ``"mean"`` of the
        batch, or not at all (``"none"``). ``"buffer"`` can stop learning as beta nears 1: one
        transition with a TD error near 0 makes all other weights vanish.
    :param stratified: True: one sample from each of B equal slices of the probability. False: B
        independent samples.
    :param replacement: Whether a batch may hold a transition twice. If not, weights come from the
        probability of being in the batch; see ``sb3_per.prioritization.sampling.SamplingScheme``.
    :raises ValueError: for an option out of its range.
    """

    @explain_unknown_arguments({})
    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        n_stack: int = 1,
        prioritization: str | Callable[..., Prioritization] = "proportional",
        prioritization_kwargs: dict[str, Any] | None = None,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
        td_error_clip: float | Literal["loss"] | None = None,
        uniform_share: float = 0.0,
        initial_priority: float = 1.0,
        new_priority: Literal["max_seen", "max_stored"] = "max_seen",
        weight_normalization: Literal["batch", "buffer", "mean", "none"] = "batch",
        stratified: bool = True,
        replacement: bool = True,
    ) -> None:
        rule = "td_error_clip must be a number or None (only an algorithm knows its loss)"
        require(td_error_clip != "loss", rule, td_error_clip)
        self.beta = beta
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
            n_steps=n_steps,
            gamma=gamma,
            n_stack=n_stack,
        )
        self.prioritization_options: dict[str, Any] = {
            "alpha": alpha,
            "eps": eps,
            "td_error_clip": td_error_clip,
            "initial_priority": initial_priority,
            "new_priority": new_priority,
        }
        # NumPy's global state is the only seeded state of SB3 that a buffer can see. A generator of
        # its own can be stored with the buffer.
        seed = np.random.randint(2**32, size=4, dtype=np.uint64)  # noqa: NPY002
        compile_kernels()
        self.sampler = PrioritizedSampler(
            self.n_slots,
            generator=np.random.default_rng(seed),
            prioritization=prioritization,
            prioritization_kwargs=prioritization_kwargs,
            uniform_share=uniform_share,
            weight_normalization=weight_normalization,
            stratified=stratified,
            replacement=replacement,
            **self.prioritization_options,
        )
        self._n_handed_over = 0  # how many of all rows ever added the sampler knows
        self._batches_without_update = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(upgrade_buffer_state(state))
        self._batches_without_update = 0

    def __len__(self) -> int:
        """Return the number of stored transitions, of all environments."""
        return self.n_stored

    def __bool__(self) -> bool:
        """Return True, also for an empty buffer."""
        return True

    def storage(self) -> dict[str, NDArray[Any]]:
        """
        Return views of the data by row or slot: transitions, and awaited TD errors.

        If rows were added, call ``hand_over_new_rows`` first.
        """
        return {**super().storage(), "draw_log": self.sampler.pending_states}

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` needs in addition to the arrays: values that JSON can hold."""
        state = {
            "pos": self.pos,
            "full": self.full,
            "beta": self.beta,
            "generator": self.generator.bit_generator.state,
        }
        return state if self.frames is None else {**state, **self.frames.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """
        Continue from a state, in a new buffer.

        After this call, fill the views of ``storage``, and then call ``restore_prioritization``.
        """
        require(0 <= state["pos"] < self.buffer_size, "pos must be a row", state["pos"])
        self.pos, self.full, self.beta = state["pos"], state["full"], state["beta"]
        self.generator.bit_generator.state = state["generator"]
        self._n_handed_over = self.n_added
        if self.frames is not None:
            self.frames.restore(state)

    def restore_prioritization(self, state: dict[str, Any]) -> None:
        """
        Continue from a state of the prioritization.

        :raises ValueError: for a state that does not fit, for priorities of other slots than those
            that hold transitions, and for stored frames that do not fit together.
        """
        if self.frames is not None:
            self.frames.check(self.size())
        self.sampler.restore(state)
        slots = self._sampleable_slots()
        fits = bool((self.prioritization.probabilities(slots) > 0).all())
        fits &= self.sampler.n_sampleable == len(slots)
        rule = f"stored priorities must be those of the {len(slots)} transitions in the buffer"
        require(fits, rule, f"{self.sampler.n_sampleable} priorities")

    def reset(self) -> None:
        """Empty the buffer; TD errors of earlier batches are dropped. The generator continues."""
        super().reset()
        self._n_handed_over = self.n_added
        self.sampler.clear()

    def sample(  # type: ignore[override]  # SB3's six fields come first, but a NamedTuple cannot be extended
        self, batch_size: int, env: VecNormalize | None = None, *, beta: float | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        Sample a batch by priority; O(B log N).

        :param batch_size: B, how many transitions.
        :param env: Normalizes observations and rewards, if given.
        :param beta: Exponent of this batch's weights; None for the buffer's ``beta``.
        :return: The batch, with ``weights`` for the loss and ``slots`` for ``update_priorities``.
        :raises ValueError: if the buffer holds too few transitions; nothing has changed then.
        """
        slots, weights = self._sample_slots(as_batch_size(batch_size), beta)
        transitions = self.gather(slots, env)
        return PrioritizedReplayBufferSamples(*transitions, self._tensor(weights), slots)

    def _sample_slots(self, batch_size: int, beta: float | None) -> SampledBatch:
        """Check the arguments of ``sample``, and return slots, (B,), and weights, (B, 1)."""
        self.hand_over_new_rows()
        most = self.n_slots - self.n_envs * self.optimize_memory_usage
        check_sample(batch_size, self.sampler.n_sampleable, most, self.scheme.replacement)
        if beta is not None:
            require_fraction("beta", beta)
        exponent = self._beta if beta is None else float(beta)  # an int would compile a kernel
        sampled = self.sampler.sample(batch_size, exponent)
        self._batches_without_update += 1
        if self._batches_without_update == BATCHES_BEFORE_WARNING:
            warn_without_updates()
        return sampled

    def update_priorities(
        self, slots: ArrayLike | th.Tensor, td_errors: ArrayLike | th.Tensor
    ) -> None:
        """
        Give sampled transitions the priorities of their new TD errors; O(B log N).

        If a slot occurs twice, its last TD error counts. A TD error that comes too late is dropped:
        its transition was overwritten after it was sampled, or the buffer was reset. If the new
        transition has been sampled meanwhile, the update is applied to it: call
        ``update_priorities`` after every ``sample``, and not for other slots before that.

        :param slots: The ``slots`` of a batch, shape (B,) or (B, 1), or any slots that hold a
            transition. TD errors of slots that cannot be sampled are ignored.
        :param td_errors: Target minus current Q, of either sign, shape (B,) or (B, 1).
        :raises ValueError: before anything has changed, for slots that hold no transition, TD
            errors that are not finite in float32, or unequal lengths.
        """
        slots, td_errors = as_slots(slots), as_td_errors(td_errors)
        self.hand_over_new_rows()
        check_update(slots, td_errors, self.n_stored, self.sampler.are_late)
        self._batches_without_update = 0
        self.sampler.update(slots, td_errors)

    def hand_over_new_rows(self) -> None:
        """
        Insert the rows that were added since the last call into the sampler.

        ``sample`` and ``update_priorities`` do this for all new rows at once, which takes less time
        than one call for each row.
        """
        n_added = self.n_added  # read once: another thread may add rows meanwhile
        if n_added < self._n_handed_over:  # emptied by setting `pos` and `full`
            self.sampler.clear()
            self._n_handed_over = 0
        n_rows = min(n_added - self._n_handed_over, self.buffer_size)
        if n_rows <= 0:
            return
        last = n_added * self.n_envs
        slots = np.arange(last - n_rows * self.n_envs, last) % self.n_slots
        self.sampler.insert(slots)
        if self.optimize_memory_usage and n_added >= self.buffer_size:
            # The observation at the write head is the newest transition's next observation.
            self.sampler.remove(self.slots_of(n_added % self.buffer_size))
        self._n_handed_over = n_added


class PrioritizedDictReplayBuffer(  # type: ignore[misc]  # sample: see PrioritizedReplayBuffer
    PrioritizedReplayBuffer, SlotDictReplayBuffer
):
    """A ``PrioritizedReplayBuffer`` for Dict observations, with the same options."""


# The options that prioritization adds to those of the storage.
_OF_STORAGE = keyword_only(SlotReplayBuffer.__init__)
OPTION_NAMES = [n for n in keyword_only(PrioritizedReplayBuffer.__init__) if n not in _OF_STORAGE]
