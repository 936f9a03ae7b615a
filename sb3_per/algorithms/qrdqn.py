"""QR-DQN with prioritized replay."""

from typing import Any

import torch as th
from sb3_contrib import QRDQN
from sb3_contrib.qrdqn.policies import QRDQNPolicy
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_per.algorithms.buffer_options import ARGUMENT_HINTS
from sb3_per.algorithms.critic_loss import PrioritizedQuantileAlgorithm
from sb3_per.signatures import explain_unknown_arguments


class PERQRDQN(PrioritizedQuantileAlgorithm, QRDQN):
    """
    Quantile Regression DQN with prioritized experience replay.

    The quantile loss is weighted by the importance-sampling weights. A transition's TD error is the
    mean of the target distribution minus the mean of the current one. ``train/loss`` is logged as
    in sb3-contrib, without weights.

    The arguments of ``QRDQN`` come first, in its order, and mean the same.
    ``replay_buffer_kwargs`` takes the options of ``PrioritizedReplayBuffer``; the buffer gets
    ``n_steps`` and ``gamma`` from the algorithm.

    :param beta_initial: Exponent of the importance-sampling weights at the start, in [0, 1].
    :param beta_final: The exponent at the end of the annealing, in [0, 1].
    :param beta_fraction: Part of the training over which beta moves linearly, in (0, 1].
    :raises ValueError: for an unknown argument, a value out of range, or a replay buffer without
        priorities.
    :raises RuntimeError: if ``QRDQN.train`` of this version cannot be given a weighted loss.
    """

    @explain_unknown_arguments(ARGUMENT_HINTS)
    def __init__(
        self,
        policy: str | type[QRDQNPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 5e-5,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 32,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 4,
        gradient_steps: int = 1,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        target_update_interval: int = 10_000,
        exploration_fraction: float = 0.005,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.01,
        max_grad_norm: float | None = None,
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
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            n_steps=n_steps,
            target_update_interval=target_update_interval,
            exploration_fraction=exploration_fraction,
            exploration_initial_eps=exploration_initial_eps,
            exploration_final_eps=exploration_final_eps,
            max_grad_norm=max_grad_norm,
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
        )
