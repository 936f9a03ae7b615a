"""What all prioritized algorithms have in common: their buffer, beta and loading."""

import contextlib
import inspect
import io
import pathlib
import pickle
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutReturn
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
    unwrap_vec_wrapper,
)
from stable_baselines3.her import HerReplayBuffer

from sb3_per.algorithms.metrics import LOGGED, Metrics, averaged_moments, logged_values
from sb3_per.algorithms.stored_options import set_stored_options, take_stored_options
from sb3_per.buffers.files import is_archive, load_buffer, save_buffer
from sb3_per.buffers.her import PrioritizedHerReplayBuffer, require_compute_reward, require_goals
from sb3_per.buffers.prioritized import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.buffers.sources import has_shape, transitions_of
from sb3_per.options import LAP, OPTION_NAMES, PAPER, beta_at

# Wrappers after which observations are still stacks of the same frames.
_KEEP_FRAMES = (VecTransposeImage, VecMonitor, VecNormalize, VecCheckNan, VecVideoRecorder)
SelfPrioritized = TypeVar("SelfPrioritized", bound="PrioritizedAlgorithm")

# Options that belong in ``replay_buffer_kwargs``, and how; the last ones are Stable Baselines 2's.
_OF_BUFFERS = {
    **{name: f"{name}=..." for name in (*OPTION_NAMES, "n_stack", "info_keys", "storage_dir")},
    "prioritized_replay": "prioritization=...",
    "prioritized_replay_alpha": "alpha=...",
    "prioritized_replay_beta0": "beta=(first, last)",
    "prioritized_replay_beta_iters": "beta=(first, last, n_steps)",
    "prioritized_replay_eps": "eps=...",
}
# SB3's classes of buffers that stand for ours in a model that SB3 has saved.
_WITHOUT_PRIORITIES = (ReplayBuffer, DictReplayBuffer, NStepReplayBuffer)
# While a model is loaded: the names of the arguments that its user has passed to ``load``.
_GIVEN = "_given_to_load"
# Until ``load`` warns of them: the stored options that cannot be read, and the reasons.
_LOST = "_lost_options"


class PrioritizedAlgorithm(OffPolicyAlgorithm):
    """
    The part of a prioritized algorithm that does not depend on how the algorithm learns.

    It is a mixin; name it before the algorithm of SB3: ``class PERDQN(PrioritizedAlgorithm, DQN)``.
    The constructor is that of the algorithm of SB3. All options of prioritization are in
    ``replay_buffer_kwargs``: those of ``PrioritizedReplayBuffer``, except ``n_steps`` and
    ``gamma``, which are the algorithm's. The algorithm itself weights its loss and passes the TD
    errors to the buffer.
    """

    # The options of the buffer that hold unless the user chooses others.
    default_options: ClassVar[Mapping[str, Any]] = {**PAPER}  # a copy: users may change PAPER
    # As ``loss_threshold``, unless the prioritization needs another one.
    huber_threshold: ClassVar[float | None] = None
    # Options that are no arguments of the constructor, and where they belong.
    _misplaced: ClassVar[Mapping[str, str]] = {
        name: f"replay_buffer_kwargs=dict({text})" for name, text in _OF_BUFFERS.items()
    }
    # The metrics of gradient steps that are logged as ``train/<name>``.
    logged_metrics: ClassVar[tuple[str, ...]] = LOGGED
    replay_buffer: PrioritizedReplayBuffer
    # Moving averages of the gradient's second moments, weighted and uniform. Their ratio needs no
    # correction for the start at 0, because both have the same.
    _moments: tuple[float, float] = (0.0, 0.0)
    _progress = 0.0  # of the training, in [0, 1]
    # While transitions are collected with gSDE; else None.
    torch_states_before_rollout: list[th.Tensor] | None = None

    if not TYPE_CHECKING:  # type checkers and editors read the constructor

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            """Say where a misplaced option belongs, before Python refuses it without a hint."""
            refuse_misplaced(cls, kwargs)
            return super().__new__(cls)

        def __init_subclass__(cls, **kwargs: Any) -> None:
            """Let ``help`` show the arguments of the constructor, not those of ``__new__``."""
            super().__init_subclass__(**kwargs)
            of_constructor = inspect.signature(cls.__init__)
            arguments = [*of_constructor.parameters.values()][1:]  # without self
            cls.__signature__ = of_constructor.replace(parameters=arguments)

    @property
    def loss_threshold(self) -> float | None:
        """
        Return the abs(TD error) at which the loss turns linear; None if it never does.

        That of the algorithm, ``huber_threshold``, unless the prioritization has one, such as LAP.
        """
        needed = self.replay_buffer.prioritization.loss_threshold
        return self.huber_threshold if needed is None else needed

    def _setup_model(self) -> None:
        given = vars(self).pop(_GIVEN, None)  # None if the model is not loaded
        require_matching_policy(self)
        if given is None and self.replay_buffer_class in _WITHOUT_PRIORITIES:
            rule = "replay_buffer_class must be left out, or have priorities"
            raise ValueError(f"{rule}, got {self.replay_buffer_class}")
        if not isinstance(self.replay_buffer_kwargs, Mapping):
            rule = "replay_buffer_kwargs must be a dict of options, or None"
            raise ValueError(f"{rule}, got {self.replay_buffer_kwargs!r}")
        lost = {} if given is None else take_stored_options(self, given)
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
        # With all defaults, so that a saved model keeps its options when defaults change.
        self.replay_buffer_kwargs = _options_of(self.replay_buffer, options)
        if lost:
            vars(self)[_LOST] = lost

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
                rule = f"{name} must be given to the algorithm, not in replay_buffer_kwargs"
                raise ValueError(f"{rule}, got {self.replay_buffer_kwargs[name]}")
        prioritization = given.get("prioritization", self.default_options["prioritization"])
        options = {**self._defaults_of(prioritization), **given}
        if options.get("td_error_clip") == "loss":
            options["td_error_clip"] = self._clip_of_loss(prioritization)
        if options.get("n_stack") is None:
            options.pop("n_stack", None)  # a class of the user's may not know it
            if (n_stack := self._n_stack_by_default(kind)) > 1:
                options["n_stack"] = n_stack
        if options.get("n_stack", 1) > 1 and options.get("frames_first") is None:
            options["frames_first"] = stacks_frames_first(self.env)
        return options

    def _n_stack_by_default(self, kind: type[PrioritizedReplayBuffer]) -> int:
        """Return how many stacked frames the buffer stores once each; 1 if it stores stacks."""
        stack = None if self.env is None else unwrap_vec_wrapper(self.env, VecFrameStack)
        if stack is None or not is_image_space(stack.observation_space):
            return 1
        obstacle = changes_frames(self.env)
        if self.optimize_memory_usage:
            obstacle = "optimize_memory_usage"
        if kind is not PrioritizedReplayBuffer:
            obstacle = kind.__name__
        if obstacle is None:
            self._say("Storing each of the stacked frames once in the replay buffer.")
            return int(stack.stacked_obs.n_stack)
        self._say(f"Storing whole stacks of frames in the replay buffer, because of {obstacle}.")
        return 1

    def _say(self, text: str) -> None:
        if self.verbose >= 1:
            print(text)  # noqa: T201  # as SB3 says how it wraps environments

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

    def add_demonstrations(self, *sources: Any) -> None:
        """
        Store demonstrations, which are never overwritten, before training.

        :param sources: As for ``PrioritizedReplayBuffer.add_demonstrations``: dicts of arrays
            (``sb3_per.collect`` makes one), Minari datasets, or SB3's buffers. Actions and images
            of the first two are those of the environment: they are scaled and transposed here.
        :raises ValueError: before anything has changed, for what does not fit the environment.
        """
        self.replay_buffer.add_demonstrations(*map(self._from_environment, sources))
        if self.replay_buffer_kwargs.get("n_stack", 1) > self.replay_buffer.n_stack:
            self.replay_buffer_kwargs |= {"n_stack": 1, "frames_first": None}
            self._say("Storing whole stacks of frames in the replay buffer, for demonstrations.")

    def _from_environment(self, source: Any) -> dict[str, Any]:
        """Return transitions as the buffer stores them: images transposed, actions scaled."""
        transitions = transitions_of(source)
        if not (isinstance(source, Mapping) or hasattr(source, "iterate_episodes")):
            return transitions  # a buffer's
        images = unwrap_vec_wrapper(self.env, VecTransposeImage) if self.env is not None else None
        for name in ("observations", "next_observations"):
            # Environments such as `model.get_env()` have transposed them already.
            if images is not None and has_shape(transitions[name], images.venv.observation_space):
                transitions[name] = images.transpose_observations(transitions[name])
        actions, space = np.asarray(transitions.get("actions")), self.action_space
        if isinstance(space, spaces.Box) and actions.shape[1:] == space.shape:  # else it is refused
            transitions["actions"] = self.policy.scale_action(actions)
        return transitions

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """
        Save the buffer with its priorities, without pickle; see ``sb3_per.save_buffer``.

        :param path: The file; as in SB3, its suffix is .pkl unless it has one.
        """
        if isinstance(path, str | pathlib.Path) and not pathlib.Path(path).suffix:
            path = pathlib.Path(path).with_suffix(".pkl")
        save_buffer(self.replay_buffer, path)

    def load_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True
    ) -> None:
        """
        Fill the buffer from a file of ``save_replay_buffer`` or ``save_buffer``.

        ``sb3_per.load_buffer`` says what fits. Transitions in a pickle of one of SB3's own buffers
        get the initial priority.

        :param truncate_last_traj: Whether the last episodes in the file count as truncated where
            that matters: with hindsight replay, and if the environments of the model are in other
            episodes.
        :raises ValueError: for another file, and for a buffer that does not fit the model.
        """
        if getattr(self, "replay_buffer", None) is None:  # it was deleted to save memory
            self.replay_buffer = self._new_buffer()
        buffer = self.replay_buffer
        with contextlib.ExitStack() as opened:
            file = open_path(path, "r", self.verbose, suffix="pkl")
            if file is not path:
                opened.enter_context(file)
            if is_archive(file):
                load_buffer(file, buffer)
            else:
                self._take_pickled_buffer(file)
        buffer.device = self.device
        if not truncate_last_traj:
            return
        if isinstance(buffer, PrioritizedHerReplayBuffer):
            buffer.truncate_last_trajectory()
        elif self._last_obs is not None and (buffer.n_steps > 1 or buffer.optimize_memory_usage):
            buffer.end_episodes()

    def _take_pickled_buffer(self, file: Any) -> None:
        ours = self.replay_buffer
        try:
            super().load_replay_buffer(file, truncate_last_traj=False)
            stored = self.replay_buffer
        except (pickle.UnpicklingError, EOFError) as error:
            rule = "must be a whole file of save_replay_buffer, or the pickle of a buffer of SB3"
            raise ValueError(f"{getattr(file, 'name', file)} {rule}: {error}") from error
        finally:
            self.replay_buffer = ours
        require_matching_buffer(stored, self)
        ours.refill_from(stored)

    def _new_buffer(self) -> PrioritizedReplayBuffer:
        """Return an empty buffer, as the model has it at first."""
        options = {**self.replay_buffer_kwargs, "n_steps": self.n_steps, "gamma": self.gamma}
        kind: Any = self.replay_buffer_class
        if issubclass(kind, HerReplayBuffer):
            options["env"] = self.env
        buffer: PrioritizedReplayBuffer = kind(
            self.buffer_size,
            self.observation_space,
            self.action_space,
            device=self.device,
            n_envs=self.n_envs,
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

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[int, BaseCallback]:
        # SB3 resets the environments on this condition. It may raise after that, for a callback.
        if reset_num_timesteps or self._last_obs is None:
            self.replay_buffer.end_episodes()
        if reset_num_timesteps:
            self._progress = 0.0
        return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *args, **kwargs)

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> RolloutReturn:
        """Collect transitions as SB3 does; after an early stop, ``learn`` resets the envs."""
        is_complete = False  # SB3 drops the step at which it stops: the next one would not follow
        # gSDE samples its noise before any callback can save a checkpoint.
        self.torch_states_before_rollout = torch_states() if self.use_sde else None
        try:
            rollout = super().collect_rollouts(*args, **kwargs)
            is_complete = rollout.continue_training
        finally:
            self.torch_states_before_rollout = None
            if not is_complete:
                self._last_obs = None
        return rollout

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "torch_states_before_rollout"]

    def _update_beta(self) -> None:
        """Let the buffer have the beta of this point of the training."""
        # If `learn` continues a training, SB3 counts the steps of both calls as one training, so
        # its progress falls back. Beta must not. The last rollout may pass `total_timesteps`.
        progress = min(1.0 - self._current_progress_remaining, 1.0)
        self._progress = max(self._progress, progress)
        beta = self.replay_buffer_kwargs["beta"]  # the model's, whatever buffer was assigned
        self.replay_buffer.beta = beta_at(beta, self._progress, self.num_timesteps)

    def _log_prioritization(self, steps: list[Metrics]) -> None:
        """Log beta, the largest priority, and the metrics of some gradient steps."""
        self.logger.record("train/beta", self.replay_buffer.beta)
        self.logger.record("train/priority_max", self.replay_buffer.prioritization.largest_priority)
        if not steps:
            return
        self._moments = averaged_moments(self._moments, steps)
        values = logged_values(steps, self._moments)
        for name in self.logged_metrics:
            self.logger.record(f"train/{name}", values[name])

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
        name = tb_log_name or type(self).__name__
        return super().learn(
            total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar
        )

    @classmethod
    def load(
        cls: type[SelfPrioritized],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfPrioritized:
        """
        Load a model as SB3 does; models of SB3's own algorithm continue with priorities.

        ``replay_buffer_kwargs`` changes the options that it names, such as ``storage_dir``. The
        buffer takes memory, or makes files, when a transition is stored.

        :raises ValueError: for an option of the buffer that is not in ``replay_buffer_kwargs``, and
            for a model of another algorithm.
        """
        refuse_misplaced(cls, kwargs)
        # SB3 makes an attribute of it, which `_setup_model` reads and removes.
        kwargs[_GIVEN] = frozenset(kwargs)
        model = super().load(
            path, env, device, custom_objects, print_system_info, force_reset, **kwargs
        )
        used = {**model.replay_buffer_kwargs, "replay_buffer_class": model.replay_buffer_class}
        for name, reason in vars(model).pop(_LOST, {}).items():
            rule = f"the saved {name} cannot be read ({reason})"
            warnings.warn(f"{rule}: {used.get(name)!r} is used in its place", stacklevel=2)
        return model

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save the model as SB3 does.

        SB3 loads the file where this package is not installed: ``DQN.load`` one of ``PERDQN``.
        """
        saved = object.__new__(type(self))  # not `copy`, which would call __getstate__
        vars(saved).update(vars(self))
        buffer = getattr(self, "replay_buffer", None)  # None if it was deleted
        if buffer is not None:  # perhaps not the one that the model had at first
            saved.replay_buffer_class = type(buffer)
            options = _options_of(buffer, self.replay_buffer_kwargs)
            saved.replay_buffer_kwargs = {**options, "beta": self.replay_buffer_kwargs["beta"]}
            saved.optimize_memory_usage = buffer.optimize_memory_usage
            if buffer.buffer_size != max(self.buffer_size // self.n_envs, 1):
                saved.buffer_size = buffer.n_slots
        kind: Any = saved.replay_buffer_class
        theirs = HerReplayBuffer if issubclass(kind, HerReplayBuffer) else None
        set_stored_options(saved, resolve_buffer_class(theirs, self.observation_space))
        super(PrioritizedAlgorithm, saved).save(path, exclude, include)


def refuse_misplaced(algorithm: type[Any], arguments: Mapping[str, Any]) -> None:
    """
    Refuse options of the buffer or the policy among the arguments of an algorithm.

    :raises ValueError: for the first one; the message says where it belongs.
    """
    taken = inspect.signature(algorithm.__init__).parameters
    for name in arguments:
        place = algorithm._misplaced.get(name)
        if place and name not in taken:
            raise ValueError(f"{algorithm.__name__} has no argument {name!r}: pass {place}")


def require_matching_policy(model: OffPolicyAlgorithm) -> None:
    """Raise ValueError if a policy, such as that of a saved model, is another algorithm's."""
    policy, needed = model.policy_class, model.policy_aliases["MlpPolicy"]
    libraries = ("stable_baselines3.", "sb3_contrib.", "sb3_per.")
    kinds = [kind for kind in policy.__mro__ if kind.__module__.startswith(libraries)]
    kinds = [kind for kind in kinds if kind.__name__.endswith("Policy") and kind is not BasePolicy]
    # A policy of ours is also one of the algorithm that ours extends, which cannot train it.
    ours = [kind for kind in kinds if kind.__module__.startswith("sb3_per.")]
    is_foreign = bool(ours) and ours[-1] not in needed.__mro__
    if not kinds or (issubclass(policy, needed) and not is_foreign):
        return  # a policy of the user's own need not derive from any
    # PPO and A2C have their policies in `common`.
    of_algorithms = [kind.__name__ for kind in kinds if ".common." not in kind.__module__]
    hint = ""
    if of_algorithms:
        name = (ours[-1].__name__ if is_foreign else of_algorithms[-1]).removesuffix("Policy")
        loaders = name if is_foreign else f"{name} or PER{name}"
        hint = f" of {name} (load a model of {name} with {loaders})"
    raise ValueError(
        f"{type(model).__name__} needs a {needed.__name__}, got {policy.__name__}{hint}"
    )


def _options_of(buffer: PrioritizedReplayBuffer, given: dict[str, Any]) -> dict[str, Any]:
    """Return all options of a buffer; of a subclass of the user's, only those that were given."""
    options = buffer.arguments()
    ours = PrioritizedReplayBuffer, PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer
    if type(buffer) in ours:
        return options
    # Its constructor may not take the others.
    return {name: options.get(name, value) for name, value in given.items()}


def resolve_buffer_class(
    named: type[Any] | None, observation_space: spaces.Space[Any]
) -> type[PrioritizedReplayBuffer]:
    """
    Return the buffer class for these observations.

    :param named: The user's choice; None for the default. SB3's own classes stand for ours: files
        of RL-Zoo name ``HerReplayBuffer``, and models that SB3 has saved have the others, too.
    :raises ValueError: for a class without priorities, or one for other observations.
    """
    has_dict = isinstance(observation_space, spaces.Dict)
    default = PrioritizedDictReplayBuffer if has_dict else PrioritizedReplayBuffer
    if named is HerReplayBuffer:
        named = PrioritizedHerReplayBuffer
    if named in (None, *_WITHOUT_PRIORITIES, PrioritizedReplayBuffer):
        return default
    if issubclass(named, PrioritizedHerReplayBuffer):
        require_goals(observation_space)
    if not issubclass(named, default) or issubclass(named, PrioritizedDictReplayBuffer) != has_dict:
        rule = f"replay_buffer_class must be sb3_per.{default.__name__} or a subclass of it"
        raise ValueError(f"{rule} for these observations, got {named}")
    return named


def require_matching_buffer(buffer: ReplayBuffer, model: OffPolicyAlgorithm) -> None:
    """
    Check that a model can learn from the transitions of a buffer.

    :raises ValueError: if spaces, number of environments or n-step returns differ.
    """
    expected = {
        "n_envs": model.n_envs,
        "observation_space": model.observation_space,
        "action_space": model.action_space,
    }
    if isinstance(buffer, PrioritizedReplayBuffer):
        expected["n_steps"] = model.n_steps
        if buffer.n_steps > 1:  # else gamma is not used
            expected["gamma"] = model.gamma
    for name, value in expected.items():
        if getattr(buffer, name) != value:
            rule = f"the buffer's {name} must equal the model's {value}"
            raise ValueError(f"{rule}, got {getattr(buffer, name)}")


def stacks_frames_first(env: VecEnv | None) -> bool | None:
    """Return whether ``VecFrameStack`` stacks frames on the first axis; None without one."""
    if env is None or (stack := unwrap_vec_wrapper(env, VecFrameStack)) is None:
        return None
    transpose = unwrap_vec_wrapper(env, VecTransposeImage)
    is_transposed = transpose is not None and not transpose.skip
    return is_transposed or bool(stack.stacked_obs.channels_first)


def changes_frames(env: VecEnv | None) -> str | None:
    """Return the class of a wrapper around ``VecFrameStack`` that may change frames, or None."""
    while isinstance(env, VecEnvWrapper) and not isinstance(env, VecFrameStack):
        if type(env) not in _KEEP_FRAMES:
            return type(env).__name__
        env = env.venv
    return None


def torch_states() -> list[th.Tensor]:
    """Return the states of torch's generators: the CPU's, then one of each GPU in use."""
    # Any other call would start CUDA, which fails in a process forked from one that uses it.
    has_cuda = th.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [th.get_rng_state(), *(th.cuda.get_rng_state_all() if has_cuda else [])]
