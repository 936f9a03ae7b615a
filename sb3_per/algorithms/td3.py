"""TD3 and DDPG with prioritized replay."""

from typing import Any, Literal

import torch as th
from stable_baselines3 import DDPG, TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.td3.policies import TD3Policy

from sb3_per.algorithms.buffer_options import ARGUMENT_HINTS
from sb3_per.algorithms.squared_loss import PrioritizedSquaredLossAlgorithm
from sb3_per.signatures import explain_unknown_arguments


class PERTD3(PrioritizedSquaredLossAlgorithm, TD3):
    """
    Twin Delayed DDPG with prioritized experience replay.

    The loss of the critics is weighted by the importance-sampling weights; a transition's priority
    comes from the mean of abs(TD error) over the critics. The actor learns from the same batch
    without weights. ``train/critic_loss`` is logged as in SB3, without weights.

    The arguments of ``TD3`` come first, in its order, and mean the same.
    ``replay_buffer_kwargs`` takes the options of ``PrioritizedReplayBuffer``; the buffer gets
    ``n_steps`` and ``gamma`` from the algorithm.

    :param beta_initial: Exponent of the importance-sampling weights at the start, in [0, 1].
    :param beta_final: The exponent at the end of the annealing, in [0, 1].
    :param beta_fraction: Part of the training over which beta moves linearly, in (0, 1].
    :param loss: ``"mse"`` is the base's squared loss. ``"huber"`` is the same up to a threshold of
        abs(TD error), then linear. The threshold is 1, or LAP's with ``prioritization="lap"``.
    :raises ValueError: for an unknown argument, a value out of range, or a replay buffer without
        priorities.
    :raises RuntimeError: if ``TD3.train`` of this version cannot be given a weighted loss.
    """

    @explain_unknown_arguments(ARGUMENT_HINTS)
    def __init__(
        self,
        policy: str | type[TD3Policy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-3,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: ActionNoise | None = None,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        policy_delay: int = 2,
        target_policy_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        beta_initial: float = 0.4,
        beta_final: float = 1.0,
        beta_fraction: float = 1.0,
        loss: Literal["mse", "huber"] = "mse",
    ) -> None:
        super().__init__(
            policy=policy,
            env=env,
            learning_rate=learning_rate,
            buffer_size=buffer_size,
            learning_starts=learning_starts,
            batch_size=batch_size,
            tau=tau,
            gamma=gamma,
            train_freq=train_freq,
            gradient_steps=gradient_steps,
            action_noise=action_noise,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            n_steps=n_steps,
            policy_delay=policy_delay,
            target_policy_noise=target_policy_noise,
            target_noise_clip=target_noise_clip,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
            beta_initial=beta_initial,
            beta_final=beta_final,
            beta_fraction=beta_fraction,
            loss=loss,
        )


class PERDDPG(PrioritizedSquaredLossAlgorithm, DDPG):
    """
    Deep Deterministic Policy Gradient with prioritized experience replay.

    The loss of the critic is weighted by the importance-sampling weights; a transition's priority
    comes from abs(TD error). The actor learns from the same batch without weights.
    ``train/critic_loss`` is logged as in SB3, without weights.

    The arguments of ``DDPG`` come first, in its order, and mean the same.
    ``replay_buffer_kwargs`` takes the options of ``PrioritizedReplayBuffer``; the buffer gets
    ``n_steps`` and ``gamma`` from the algorithm.

    :param beta_initial: Exponent of the importance-sampling weights at the start, in [0, 1].
    :param beta_final: The exponent at the end of the annealing, in [0, 1].
    :param beta_fraction: Part of the training over which beta moves linearly, in (0, 1].
    :param loss: ``"mse"`` is the base's squared loss. ``"huber"`` is the same up to a threshold of
        abs(TD error), then linear. The threshold is 1, or LAP's with ``prioritization="lap"``.
    :raises ValueError: for an unknown argument, a value out of range, or a replay buffer without
        priorities.
    :raises RuntimeError: if ``DDPG.train`` of this version cannot be given a weighted loss.
    """

    @explain_unknown_arguments(ARGUMENT_HINTS)
    def __init__(
        self,
        policy: str | type[TD3Policy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-3,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: ActionNoise | None = None,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        beta_initial: float = 0.4,
        beta_final: float = 1.0,
        beta_fraction: float = 1.0,
        loss: Literal["mse", "huber"] = "mse",
    ) -> None:
        super().__init__(
            policy=policy,
            env=env,
            learning_rate=learning_rate,
            buffer_size=buffer_size,
            learning_starts=learning_starts,
            batch_size=batch_size,
            tau=tau,
            gamma=gamma,
            train_freq=train_freq,
            gradient_steps=gradient_steps,
            action_noise=action_noise,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            n_steps=n_steps,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
            beta_initial=beta_initial,
            beta_final=beta_final,
            beta_fraction=beta_fraction,
            loss=loss,
        )
