"""What all prioritized algorithms have in common: their buffer, beta and loading."""

from __future__ import annotations

import contextlib
import inspect
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn
from stable_baselines3.her import HerReplayBuffer

from sb3_per._utils import require_number
from sb3_per.algorithms.demonstrations import WithDemonstrations, buffer_of
from sb3_per.algorithms.docstrings import with_arguments
from sb3_per.algorithms.environments import (
    n_stack_by_default,
    require_matching_buffer,
    resolve_buffer_class,
)
from sb3_per.algorithms.metrics import Metrics, metrics_of
from sb3_per.algorithms.models import (
    Place,
    copy_to_save,
    options_of,
    require_matching_policy,
    restore_options,
)
from sb3_per.algorithms.networks import Parts
from sb3_per.buffers.files import is_archive, load_buffer, read_pickled_buffer, save_buffer
from sb3_per.buffers.her import PrioritizedHerReplayBuffer, require_compute_reward
from sb3_per.buffers.prioritized import PrioritizedReplayBuffer
from sb3_per.options import LAP, PAPER, ReplayBufferKwargs, as_beta, beta_at

# Where options belong that are no arguments of an algorithm: Rainbow's parts, and the buffer's.
PLACES = dict.fromkeys(Parts.__annotations__, "policy_kwargs")
OF_BUFFERS = ReplayBufferKwargs.__annotations__.keys() - {"n_steps", "gamma"}
PLACES |= dict.fromkeys(OF_BUFFERS, "replay_buffer_kwargs")
SelfPrioritized = TypeVar("SelfPrioritized", bound="PrioritizedAlgorithm")


class PrioritizedAlgorithm(OffPolicyAlgorithm):
    """
    The part of a prioritized algorithm that does not depend on how the algorithm learns.

    It is a mixin; name it before the algorithm of SB3: ``class PERDQN(PrioritizedAlgorithm, DQN)``.
    The constructor is that of the algorithm of SB3. All options of prioritization are in
    ``replay_buffer_kwargs``: those of ``PrioritizedReplayBuffer``, except ``n_steps`` and
    ``gamma``, which are the algorithm's. The algorithm itself weights its loss and passes the TD
    errors to the buffer.

    :param replay_buffer_class: A subclass of ``PrioritizedReplayBuffer`` for the observations, or
        ``HerReplayBuffer``. None for the one that fits.
    :param replay_buffer_kwargs: Options of ``PrioritizedReplayBuffer``, except ``n_steps`` and
        ``gamma``.
    :param n_steps: Number of steps in the return; Dict observations may have several, too.
    """

    # The options of the buffer that hold unless the user chooses others.
    default_options: ClassVar[Mapping[str, Any]] = {**PAPER}  # a copy: users may change PAPER
    # The abs(TD error) at which the algorithm's own loss turns linear; None if it never does.
    huber_threshold: ClassVar[float | None] = None
    # The metrics of gradient steps that are logged as ``train/<name>``.
    logged_metrics: ClassVar[tuple[str, ...]] = Metrics._fields
    replay_buffer: PrioritizedReplayBuffer
    _progress = 0.0  # of the training, in [0, 1]
    demonstrations: PrioritizedReplayBuffer | None = None  # see ``add_demonstrations``

    if not TYPE_CHECKING:  # type checkers and editors read the constructor

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            """Say where an option of the buffer or of Rainbow's network belongs."""
            for name in sorted(PLACES.keys() & kwargs.keys() - cls.__signature__.parameters):
                raise ValueError(f"{name} is an option: pass {PLACES[name]}=dict({name}=...)")
            return super().__new__(cls)

        def __init_subclass__(cls, **kwargs: Any) -> None:
            """Show the arguments of the constructor in ``help``; our docstrings explain them."""
            super().__init_subclass__(**kwargs)
            of_constructor = inspect.signature(cls.__init__)
            arguments = [*of_constructor.parameters.values()][1:]  # without self
            cls.__signature__ = of_constructor.replace(parameters=arguments)
            if cls.policy_aliases and cls.__module__.startswith("sb3_per."):  # not a mixin
                cls.__doc__ = with_arguments(cls)

    @property
    def loss_threshold(self) -> float | None:
        """
        Return the abs(TD error) at which the loss turns linear; None if it never does.

        That of the algorithm, ``huber_threshold``, unless the prioritization has one, such as LAP.
        """
        needed = self.replay_buffer.prioritization.loss_threshold
        return self.huber_threshold if needed is None else needed

    def _setup_model(self) -> None:
        require_matching_policy(self)
        restore_options(self)
        kind = resolve_buffer_class(self.replay_buffer_class, self.observation_space)
        options = self._resolve_options(kind)
        if issubclass(kind, PrioritizedHerReplayBuffer):
            require_compute_reward(self.env)
        # SB3 does not pass n_steps and gamma to a buffer class that is named, and warns about
        # n_steps > 1. So both go into the buffer's options, and SB3 sees n_steps=1 meanwhile.
        n_steps, self.n_steps = self.n_steps, 1
        self.replay_buffer_class = kind
        self.replay_buffer_kwargs = {**options, "n_steps": n_steps, "gamma": self.gamma}
        try:
            super()._setup_model()
        finally:
            self.n_steps = n_steps
        metrics_of(*np.ones((2, 1), np.float32))  # compiled now, so that no step waits
        # With all defaults, so that a saved model keeps its options when defaults change.
        self.replay_buffer_kwargs = options_of(self.replay_buffer, options)

    def _resolve_options(self, kind: type[PrioritizedReplayBuffer]) -> dict[str, Any]:
        """
        Return the buffer's options: the user's, and the defaults of the prioritization.

        The algorithm's own defaults belong to its own prioritization. For another one, they are
        LAP's or the paper's.

        :raises ValueError: for options that do not fit the algorithm.
        """
        given = dict(self.replay_buffer_kwargs)
        for name in ("n_steps", "gamma"):
            value = getattr(self, name)
            if given.pop(name, value) != value:
                raise ValueError(
                    f"{name} must be given to the algorithm, not in replay_buffer_kwargs, got "
                    f"{self.replay_buffer_kwargs[name]}"
                )
        prioritization = given.get("prioritization", self.default_options["prioritization"])
        options = {**self._defaults_of(prioritization), **given}
        if options.get("td_error_clip") == "loss":
            options["td_error_clip"] = self._clip_of_loss(prioritization)
        if options.get("n_stack") is None:
            options.pop("n_stack", None)  # a class of the user's may not know it
            n_stack = n_stack_by_default(self, kind)
            if n_stack > 1:
                options["n_stack"] = n_stack
        return options

    def _defaults_of(self, prioritization: Any) -> Mapping[str, Any]:
        if prioritization == self.default_options["prioritization"]:
            return self.default_options
        return LAP if prioritization == "lap" else PrioritizedAlgorithm.default_options

    def _clip_of_loss(self, prioritization: Any) -> float:
        if prioritization == "lap" or self.huber_threshold is None:
            raise ValueError(
                f"td_error_clip must be a number or None for {type(self).__name__} with "
                f"{prioritization!r} priorities, got 'loss'"
            )
        return self.huber_threshold

    def add_demonstrations(self, *sources: Any, share: float = 0.5) -> None:
        """
        Sample a share of each batch from demonstrations, also by priority (Ball et al. 2023,
        https://arxiv.org/abs/2302.02948).

        They are in a buffer of their own, so they are never overwritten; a later call adds more.
        Until the agent's first transition, whole batches are demonstrations.

        :param sources: Each one is a dict of arrays (``observations``, ``actions``, ``rewards``,
            ``next_observations``, ``terminations``, ``truncations``; with ``info_keys`` also
            ``infos``, a dict of arrays) of consecutive transitions of the environment, shapes
            (n, ...); a Minari dataset; or a ``ReplayBuffer``, of SB3 or ours.
        :param share: The part of each batch, in [0, 1], rounded to a whole number of samples. The
            weights correct for the priorities within each part, not for the share.
        :raises ValueError: for another source, for no transition, and with hindsight replay.
        """
        require_number("share", share, 0, 1)
        if isinstance(self.replay_buffer, HerReplayBuffer):
            raise ValueError("demonstrations do not work with hindsight replay")
        before = () if self.demonstrations is None else (self.demonstrations,)
        self.demonstrations = buffer_of(self, *before, *sources)
        self.demonstrations.generator = self.replay_buffer.generator
        self.demonstration_share = share

    @property
    def _replay(self) -> PrioritizedReplayBuffer | WithDemonstrations:
        """Return what batches are sampled from."""
        if self.demonstrations is None:
            return self.replay_buffer
        return WithDemonstrations(self.replay_buffer, self.demonstrations, self.demonstration_share)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "demonstrations"]

    def save_replay_buffer(self, path: Place) -> None:
        """
        Save the buffer with its priorities, without pickle; see ``sb3_per.save_buffer``.

        :param path: The file; its suffix is .npz unless it has one.
        """
        if isinstance(path, str | pathlib.Path) and not pathlib.Path(path).suffix:
            path = pathlib.Path(path).with_suffix(".npz")
        save_buffer(self.replay_buffer, path)

    def load_replay_buffer(self, path: Place, truncate_last_traj: bool = True) -> None:
        """
        Fill the buffer from a file of ``save_replay_buffer`` or ``save_buffer``.

        ``sb3_per.load_buffer`` says what fits. Transitions in a pickle, of SB3's buffers or ours,
        get the initial priority.

        :param truncate_last_traj: Whether the last episodes in the file count as truncated where
            that matters: with hindsight replay, and if the environments of the model are in other
            episodes.
        :raises ValueError: for another file, and for a buffer that does not fit the model.
        """
        if getattr(self, "replay_buffer", None) is None:  # it was deleted to save memory
            self.replay_buffer = self._new_buffer()
        buffer = self.replay_buffer
        there = (kind for kind in ("npz", "pkl") if pathlib.Path(f"{path}.{kind}").is_file())
        suffix = next(there, "npz")  # pkl is SB3's
        file = open_path(path, "r", self.verbose, suffix=suffix)
        with contextlib.nullcontext() if file is path else file:
            if is_archive(file):
                load_buffer(file, buffer)
            else:
                stored = read_pickled_buffer(file)
                require_matching_buffer(stored, self)
                buffer._refill_from(stored)
        buffer.device = self.device  # as in SB3: the user may have set `model.device`
        if not truncate_last_traj:
            return
        if isinstance(buffer, PrioritizedHerReplayBuffer):
            buffer.truncate_last_trajectory()
        elif self._last_obs is not None and (buffer.n_steps > 1 or buffer.optimize_memory_usage):
            buffer.end_episodes()

    def _new_buffer(
        self, buffer_size: int | None = None, n_envs: int | None = None
    ) -> PrioritizedReplayBuffer:
        """Return an empty buffer, as the model has it at first."""
        options = {**self.replay_buffer_kwargs, "n_steps": self.n_steps, "gamma": self.gamma}
        kind: Any = self.replay_buffer_class
        if issubclass(kind, HerReplayBuffer):
            options["env"] = self.env
        buffer: PrioritizedReplayBuffer = kind(
            buffer_size or self.buffer_size,
            self.observation_space,
            self.action_space,
            device=self.device,
            n_envs=n_envs or self.n_envs,
            optimize_memory_usage=self.optimize_memory_usage,
            **options,
        )
        return buffer

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Continue with other environments, as SB3 does; hindsight replay uses them, too."""
        env = self._wrap_env(env, self.verbose)  # as SB3 will, to check it before anything changes
        buffer = getattr(self, "replay_buffer", None)  # None if it was deleted
        if isinstance(buffer, PrioritizedHerReplayBuffer):
            require_compute_reward(env)
        super().set_env(env, force_reset)
        if isinstance(buffer, PrioritizedHerReplayBuffer):
            buffer.set_env(self.env)

    def set_random_seed(self, seed: int | None = None) -> None:
        """Set all seeds as SB3 does, and seed the buffer's random generator."""
        super().set_random_seed(seed)
        buffer = getattr(self, "replay_buffer", None)  # None while the model is built
        if seed is not None and buffer is not None:
            buffer.generator = np.random.default_rng(seed)
            if self.demonstrations is not None:
                self.demonstrations.generator = buffer.generator

    def _require_usable_buffer(self) -> None:
        """Raise ValueError if the buffer, which may have been assigned, cannot be trained on."""
        if not isinstance(self.replay_buffer, PrioritizedReplayBuffer):
            kind = type(self.replay_buffer).__name__
            raise ValueError(
                f"replay_buffer must be a PrioritizedReplayBuffer, got {kind}: save that one, and "
                "load it with load_replay_buffer"
            )

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[int, BaseCallback]:
        self._require_usable_buffer()
        # SB3 resets the environments on this condition. It may raise after that, for a callback.
        if reset_num_timesteps or self._last_obs is None:
            self.replay_buffer.end_episodes()
        if reset_num_timesteps:
            self._progress = 0.0
        return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *args, **kwargs)

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> RolloutReturn:
        """
        Collect transitions as SB3 does.

        SB3 does not store the step at which a callback stops it. The next transition would not
        start where the stored one ends, so the next ``learn`` resets the environments.
        """
        is_complete = False
        buffer = self.replay_buffer
        n_batches = buffer.batches_without_update
        buffer.batches_without_update = -inf  # callbacks may look at batches
        try:
            rollout = super().collect_rollouts(*args, **kwargs)
            is_complete = rollout.continue_training
        finally:
            buffer.batches_without_update = n_batches
            if not is_complete:
                self._last_obs = None
        return rollout

    def _update_beta(self) -> None:
        """Set the buffer's beta for the current progress of the training."""
        # If `learn` continues a training, SB3 counts the steps of both calls as one training, so
        # its progress falls back. Beta must not. The last rollout may pass `total_timesteps`.
        progress = min(1.0 - self._current_progress_remaining, 1.0)
        self._progress = max(self._progress, progress)
        # The model's, whatever buffer was assigned; a callback may have changed it.
        beta = as_beta(self.replay_buffer_kwargs["beta"])
        self.replay_buffer.beta = beta_at(beta, self._progress, self.num_timesteps)

    def _log_prioritization(self, steps: list[Metrics]) -> None:
        """Log beta, the largest priority, and the metrics of some gradient steps."""
        self.logger.record("train/beta", self.replay_buffer.beta)
        self.logger.record("train/priority_max", self.replay_buffer.prioritization.largest_priority)
        for name in self.logged_metrics if steps else ():
            mean = sum(getattr(step, name) for step in steps) / len(steps)
            self.logger.record(f"train/{name}", mean)

    def learn(
        self: SelfPrioritized,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfPrioritized:
        """
        Train as SB3 does; beta follows the progress of the training.

        With ``reset_num_timesteps=False``, SB3 computes progress over both calls. Beta never falls
        back because of that. To let it rise over several calls, state the number of steps:
        ``beta=(0.4, 1.0, 100_000)``.

        :param tb_log_name: By default the name of the class, such as PERDQN.
        """
        n_updates, name = self._n_updates, tb_log_name or type(self).__name__
        super().learn(
            total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar
        )
        too_few = 0 < self.num_timesteps <= self.learning_starts
        if self._n_updates == n_updates and too_few:
            warnings.warn(
                f"nothing was learned in {self.num_timesteps:,} steps: learning starts after "
                f"{self.learning_starts:,} (learning_starts)",
                stacklevel=2,
            )
        return self

    def save(
        self,
        path: Place,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save the model as SB3 does: without its buffer, which ``save_replay_buffer`` saves.

        SB3 loads the file where this package is not installed: ``DQN.load`` one of ``PERDQN``.
        Only Rainbow's policy is unknown there.
        """
        # SB3's `save`, of a copy whose fields SB3 can read.
        super(PrioritizedAlgorithm, copy_to_save(self)).save(path, exclude, include)
