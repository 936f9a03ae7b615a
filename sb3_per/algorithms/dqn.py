"""DQN with prioritized replay: it weights its loss and passes TD errors to the buffer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, Schedule
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn.policies import DQNPolicy
from torch.nn import functional as F

from sb3_per._utils import require_one_of
from sb3_per.algorithms import graphs
from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.algorithms.metrics import Metrics, metrics_of
from sb3_per.algorithms.networks import Parts
from sb3_per.buffers.prioritized import PrioritizedReplayBufferSamples
from sb3_per.options import FULL_CORRECTION, ReplayBufferKwargs


class PERDQN(PrioritizedAlgorithm, DQN):
    """
    Deep Q-Network with prioritized experience replay (Schaul et al. 2016,
    https://arxiv.org/abs/1511.05952, algorithm 1). Double Q-learning, which the paper uses, is an
    option. For example:
    ``PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(beta=0.4)).learn(10_000)``.

    Each gradient step samples a batch by priority, weights its Huber loss by the
    importance-sampling weights, and passes the new TD errors to the buffer. Everything else is as
    in ``DQN``, except: the buffer has its own random generator; TD errors that are not finite raise
    an error; and the optimizer is torch's fused Adam, which is the same formula, rounded
    differently (turn it off with ``policy_kwargs=dict(optimizer_kwargs=dict(fused=False))``).

    The arguments of ``DQN`` come first, in its order, and mean the same.
    ``replay_buffer_kwargs`` takes the options of ``PrioritizedReplayBuffer``, beta too. By default,
    a priority is the size of the loss's derivative with respect to Q (alpha 1, clipped where the
    loss turns linear), half of each batch is uniform, and weights correct fully (beta 1), so the
    expected gradient is that of uniform replay. ``replay_buffer_kwargs=sb3_per.PAPER`` gives the
    paper's settings.

    :param double_q: Use Double Q-learning (van Hasselt et al. 2016): the online network chooses the
        next action, the target network evaluates it.
    :param cuda_graphs: On a GPU, record gradient steps and the actions of rollouts as CUDA graphs,
        which give the same numbers. What Python does in a network or a loss of your own (prints,
        counters, hooks) then happens only while it is recorded.
    """

    default_options = FULL_CORRECTION
    huber_threshold = 1.0

    def __init__(
        self,
        policy: str | type[DQNPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 32,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 4,
        gradient_steps: int = 1,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: ReplayBufferKwargs | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        target_update_interval: int = 10_000,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        max_grad_norm: float = 10,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        double_q: bool = False,
        cuda_graphs: bool = False,
    ) -> None:
        arguments = dict(locals())
        for name in ("self", "__class__", "double_q", "cuda_graphs"):
            del arguments[name]
        require_one_of("double_q", double_q, (True, False))
        require_one_of("cuda_graphs", cuda_graphs, (True, False))
        if cuda_graphs and not graphs.RECORDER.fits(get_device(device)):
            raise ValueError(f"cuda_graphs=True needs a CUDA device, got {get_device(device)}")
        self.double_q, self.cuda_graphs = double_q, cuda_graphs
        super().__init__(**arguments)

    @classmethod
    def _wrap_env(cls, env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """Wrap as SB3 does; for continuous actions, name the algorithms that take them."""
        wrapped = super()._wrap_env(env, verbose, monitor_wrapper)
        if isinstance(wrapped.action_space, spaces.Box):
            rule = f"{cls.__name__} needs discrete actions, got {wrapped.action_space}"
            raise AssertionError(f"{rule}: PERSAC and PERTD3 take continuous ones")  # as in SB3
        return wrapped

    def _setup_model(self) -> None:
        of_rainbow = Parts.__annotations__.keys() & self.policy_kwargs
        # Policies of the user's own may have such options, too.
        if of_rainbow and self.policy_class in DQN.policy_aliases.values():
            raise ValueError(
                f"{min(of_rainbow)} is an option of Rainbow, not of {type(self).__name__}"
            )
        self._graphs = graphs.Graphs()
        super()._setup_model()
        self._prepare_optimizer()

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._graphs.drop()
        self._prepare_optimizer()
        return super()._setup_learn(*args, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_graphs"]

    def _prepare_optimizer(self) -> None:
        """
        Let Adam and AdamW update all parameters in one kernel, unless the user chose otherwise.

        It is the same formula, rounded differently; for small networks a step takes a third of the
        time. The user's ``policy_kwargs`` stay as they are: SB3 compares them with those given to
        ``load``.
        """
        optimizer = self.policy.optimizer
        if type(optimizer) not in graphs.ADAMS or self.device.type not in ("cpu", "cuda"):
            return
        for group in optimizer.param_groups:
            is_unset = group["fused"] is group["foreach"] is None and not group["differentiable"]
            is_contiguous = all(parameter.is_contiguous() for parameter in group["params"])
            if group["fused"] and not is_contiguous:
                group["fused"] = None  # torch's kernel takes moments for those of other weights
            elif is_unset and is_contiguous:
                group["fused"] = True
                # Plain Adam, as of a model of DQN, has its step counts on the CPU.
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    if "step" in state:
                        state["step"] = state["step"].to(parameter.device, th.float32)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Take gradient steps as ``DQN.train`` does, on batches sampled by priority."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        self._update_beta()

        steps = [self._gradient_step(batch_size) for _ in range(gradient_steps)]

        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self._log_prioritization(steps)

    def _gradient_step(self, batch_size: int) -> Metrics:
        replay = self._replay
        batch = replay.sample(batch_size, env=self._vec_normalize_env)
        self._graphs.prepare(self, batch)
        compute_gradients = self._graphs.compute_gradients or self._compute_gradients
        # On a GPU, this copy waits for all work before it.
        td_errors = compute_gradients(batch).cpu().numpy()  # (B, 1)
        # Before the step: TD errors that are not finite raise while the network is intact.
        replay.update_priorities(batch.slots, td_errors)
        self._graphs.optimize(self.policy.optimizer)
        return metrics_of(td_errors.ravel(), batch.host_weights.ravel(), self.loss_threshold)

    def _compute_gradients(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """Compute the clipped gradients of a batch, and return its TD errors, (B, 1)."""
        loss, td_errors = self.weighted_loss(batch)
        # Not `policy.parameters()`: walking through all modules takes longer than clipping.
        groups = self.policy.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        for parameter in parameters:  # `optimizer.zero_grad()` takes 20 us longer
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if graphs.RECORDER.fits(self.device):
            th.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
        else:
            clip_gradients(parameters, self.max_grad_norm)
        return td_errors

    def weighted_loss(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        Return the loss of a batch, and what its priorities are computed from.

        :return: The mean of weight * Huber(TD error), and the TD errors, (B, 1), detached.
        """
        targets = self.td_targets(batch)  # (B, 1)
        q_values = self.q_net(batch.observations)  # (B, n_actions)
        current = q_values.gather(dim=1, index=batch.actions.long())  # (B, 1)
        losses, td_errors = huber_losses(current, targets, self.loss_threshold)
        # The weight belongs outside of the Huber loss: inside, it would move the point where the
        # loss turns linear.
        return (batch.weights * losses).mean(), td_errors

    @th.no_grad()
    def td_targets(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """Return the TD targets, (B, 1)."""
        next_q_values = self.q_net_target(batch.next_observations)  # (B, n_actions)
        next_actions = self.next_actions(batch, next_q_values)  # (B, 1)
        next_values = next_q_values.gather(dim=1, index=next_actions)  # (B, 1)
        discounts = self.gamma if batch.discounts is None else batch.discounts
        targets: th.Tensor = batch.rewards + (1 - batch.dones) * discounts * next_values
        return targets

    def next_actions(
        self, batch: PrioritizedReplayBufferSamples, next_q_values: th.Tensor
    ) -> th.Tensor:
        """
        Return the actions that the targets assume in the next states, (B, 1).

        :param next_q_values: Those of the target network, shape (B, n_actions).
        """
        if self.double_q:
            # In evaluation mode, as in `predict`: dropout would choose at random, and batch norm
            # would count the batch twice.
            with evaluating(self.policy.q_net):
                next_q_values = self.double_q_values(batch.next_observations)  # (B, n_actions)
        return next_q_values.argmax(dim=1, keepdim=True)

    def double_q_values(self, observations: PyTorchObs) -> th.Tensor:
        """Return the Q-values by which Double Q-learning chooses actions, (B, n_actions)."""
        q_values: th.Tensor = self.q_net(observations)
        return q_values

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Return actions as SB3 does; of a rollout on a GPU, a CUDA graph chooses them."""
        if self._graphs.choose is None or deterministic or observation is not self._last_obs:
            return super().predict(observation, state, episode_start, deterministic)
        # As SB3: the same random numbers in the same order.
        if np.random.rand() < self.exploration_rate:  # noqa: NPY002
            return np.array([self.action_space.sample() for _ in range(self.n_envs)]), state
        return self._graphs.actions(observation), state


def huber_losses(
    q_values: th.Tensor, targets: th.Tensor, threshold: float | None
) -> tuple[th.Tensor, th.Tensor]:
    """
    Return the Huber losses and, detached, the TD errors, (B, 1).

    :param threshold: The abs(TD error) at which the loss turns linear; None if it never does.
    """
    # torch's Huber loss has no gradient for Q-values of half precision (autocast).
    current = q_values.to(targets.dtype)
    if threshold is None:
        losses = 0.5 * F.mse_loss(current, targets, reduction="none")
    else:
        losses = F.huber_loss(current, targets, reduction="none", delta=threshold)
    return losses, targets - q_values.detach()


@contextmanager
def evaluating(network: th.nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode within the ``with`` block."""
    modules = [module for module in network.modules() if module.training]
    for module in modules:  # `set_training_mode` and torch's setter take ten times as long
        vars(module)["training"] = False
    try:
        yield
    finally:
        for module in modules:
            vars(module)["training"] = True


def clip_gradients(parameters: list[th.nn.Parameter], max_norm: float) -> None:
    """
    Scale gradients down to a norm, as ``th.nn.utils.clip_grad_norm_`` does, bit for bit.

    If no clipping is needed, torch's function still multiplies all gradients by 1. That takes three
    times as long as the check.

    :param parameters: Those without a gradient are skipped.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = [th.linalg.vector_norm(gradient) for gradient in gradients]
    factor = max_norm / (th.linalg.vector_norm(th.stack(norms)) + 1e-6)
    if not factor.item() >= 1:  # it may be NaN
        for gradient in gradients:
            gradient.mul_(factor)
