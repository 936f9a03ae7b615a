"""
Prioritized critics without copies of ``train``.

SB3's ``train`` looks up its loss function under a global name. This module runs the same code with
other globals: there, the name is a loss function that weights its gradient and passes the TD errors
of the last batch to the buffer. SB3's module and the model stay as they are, and changes in SB3's
``train`` need no change here. If a version of SB3 computes its loss in another way, ``train``
raises an error, because the loss must be computed a known number of times in each gradient step.

Hooks on the critic alone would not do: they can weight gradients, but the gradient of a Huber or
quantile loss does not determine the TD error. A patch of SB3's module would affect other models in
the process.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, ClassVar

import torch as th
from torch.nn import functional as F

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.algorithms.metrics import Metrics, metrics_of
from sb3_per.buffers.prioritized import PrioritizedReplayBufferSamples
from sb3_per.options import HALF_UNIFORM, LAP

Loss = Callable[..., th.Tensor]

UNKNOWN_LOSS = (
    "the loss cannot be weighted (stable-baselines3 and sb3-contrib 2.8.0 and 2.9.2 are known to "
    "work, with as many critics as critic.n_critics says)"
)


class WeightedLoss:
    """
    The weighted loss that SB3's ``train`` calls instead of its own.

    It weights the gradient by the weights of the last batch and passes the TD errors to
    the buffer. It returns the unweighted loss, which SB3 logs. The loss is a mean over samples, so
    weighting the gradient of the current values has the same effect as weighting each sample's
    loss. A sample's priority comes from the mean of abs(TD error) over all critics.

    :param algorithm: The algorithm that trains.
    :param base_loss: The loss function of SB3's ``train``, of the current values and their target.
    """

    _batch: PrioritizedReplayBufferSamples

    def __init__(self, algorithm: PrioritizedCriticAlgorithm, base_loss: Loss) -> None:
        self.n_computed = 0
        self.steps: list[Metrics] = []
        self._algorithm, self._replay = algorithm, algorithm._replay
        self._loss = algorithm.loss_function(base_loss)
        self._errors: list[th.Tensor] = []

    def sample(self, *args: Any, **kwargs: Any) -> PrioritizedReplayBufferSamples:
        """Return a batch, and keep it for the loss."""
        self._batch = self._replay.sample(*args, **kwargs)
        return self._batch

    def __call__(
        self, current: th.Tensor, target: th.Tensor, *args: Any, **kwargs: Any
    ) -> th.Tensor:
        """Return the loss of current values, (B, ...), as SB3 computes it."""
        batch = self._batch
        weights = batch.weights.reshape(-1, *[1] * (current.ndim - 1))
        # With autocast, gradients may be of half precision, and a hook must keep their type.
        current.register_hook(lambda gradient: (gradient * weights).to(gradient.dtype))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._errors.append(self._algorithm.td_errors(current.detach(), target).abs())
        self.n_computed += 1
        if len(self._errors) == self._algorithm.n_losses:
            # Before `backward`: TD errors that are not finite raise while the networks are intact.
            errors = th.cat(self._errors, dim=1).mean(dim=1).cpu().numpy()  # (B,)
            self._replay.update_priorities(batch.slots, errors)
            threshold = self._algorithm.loss_threshold
            self.steps.append(metrics_of(errors, batch.host_weights.ravel(), threshold))
            self._errors.clear()
        return self._loss(current, target, *args, **kwargs)


class View:
    """An object with other attributes, which its methods see, too. The object stays as it is."""

    __class__ = property(lambda self: type(self._of))  # for `super()` in methods

    def __init__(self, of: object, **others: object) -> None:
        vars(self).update(_of=of, **others)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        is_method = getattr(found, "__self__", None) is self._of
        return types.MethodType(found.__func__, self) if is_method else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of, name, value)


class PrioritizedCriticAlgorithm(PrioritizedAlgorithm):
    """
    A prioritized algorithm that runs SB3's own ``train`` with a weighted loss.

    Its critics have a mean squared error each. With LAP, it is a Huber loss. The actor and the
    entropy coefficient, if any, learn from the same batch without weights.
    """

    default_options = LAP
    logged_metrics: ClassVar[tuple[str, ...]] = Metrics._fields[1:]  # SB3 logs the loss itself
    # How ``train`` finds the loss function: a global name, or an attribute of a global name.
    loss_name: ClassVar[str] = "F.mse_loss"

    @property
    def n_losses(self) -> int:
        """Return how often ``train`` computes the loss in each gradient step."""
        n_critics: int = self.critic.n_critics  # type: ignore[attr-defined]  # the base has it
        return n_critics

    @staticmethod
    def td_errors(current: th.Tensor, target: th.Tensor) -> th.Tensor:
        """Return the TD errors for the arguments of the loss, (B, n_critics) or (B, 1)."""
        return target - current

    def loss_function(self, base_loss: Loss) -> Loss:
        """
        Return the loss function to minimise, given that of ``train``: with LAP, a Huber loss.

        It equals the mean squared error up to the threshold t. Beyond it, a sample's loss is
        2 t abs(TD error) - t^2. That is twice torch's ``huber_loss``, so learning rates and
        ``max_grad_norm`` mean the same as in SB3.
        """
        threshold = self.loss_threshold
        if threshold is None:
            return base_loss

        def huber_loss(current: th.Tensor, target: th.Tensor) -> th.Tensor:
            # torch's Huber loss has no gradient for current values of half precision (autocast).
            return 2 * F.huber_loss(current.to(target.dtype), target, delta=threshold)

        return huber_loss

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """
        Take gradient steps as SB3 does, on batches sampled by priority, with a weighted loss.

        :param batch_size: By default that of SB3's ``train``; ``learn`` passes the model's.
        :raises RuntimeError: if SB3's ``train`` of this version cannot be given a weighted loss.
        """
        self._update_beta()
        train: Any = super().train
        train = train.__func__
        loss = WeightedLoss(self, lookup_global(train, self.loss_name))
        given = () if batch_size is None else (batch_size,)
        view = View(self, replay_buffer=View(self.replay_buffer, sample=loss.sample))
        with_global(train, self.loss_name, loss)(view, gradient_steps, *given)
        expected = self.n_losses * gradient_steps
        if loss.n_computed != expected:
            raise RuntimeError(
                f"train of {type(self).__name__} computed {self.loss_name} {loss.n_computed} times "
                f"in {gradient_steps} gradient steps instead of {expected} times: {UNKNOWN_LOSS}"
            )
        self._log_prioritization(loss.steps)


class PrioritizedQuantileAlgorithm(PrioritizedCriticAlgorithm):
    """
    A prioritized algorithm whose critic estimates quantiles.

    A TD error is the mean of the target distribution minus the mean of the current one. It has the
    unit of returns, as in DQN, so options such as ``td_error_clip`` mean the same. Some libraries
    use the loss of a sample as its priority, but that loss stays above 0 if returns are random.
    """

    default_options = HALF_UNIFORM
    loss_name = "quantile_huber_loss"
    # Not where a quantile loss is linear or how large its gradient is: a TD error does not tell.
    logged_metrics = ("td_error", "weight_mean", "effective_sample_size")
    n_losses = 1

    @staticmethod
    def td_errors(current: th.Tensor, target: th.Tensor) -> th.Tensor:
        """
        Return the TD errors, (B, n_critics) or (B, 1).

        :param current: Quantiles, (B, n) or (B, n_critics, n).
        :param target: Quantiles, (B, m) or (B, 1, m).
        """
        return (target.mean(dim=-1) - current.mean(dim=-1)).reshape(len(current), -1)

    def loss_function(self, base_loss: Loss) -> Loss:
        return base_loss


def with_global(function: types.FunctionType, name: str, replacement: object) -> types.FunctionType:
    """
    Return a copy of a function that finds another object under a global name.

    :param name: "name" or "name.attribute"; other attributes of the name stay the same.
    """
    name, _, attribute = name.partition(".")
    if attribute:
        others = vars(function.__globals__[name])
        replacement = types.SimpleNamespace(**{**others, attribute: replacement})
    return types.FunctionType(
        function.__code__,
        {**function.__globals__, name: replacement},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def lookup_global(function: types.FunctionType, name: str) -> Any:
    """Return the object that a function finds under "name" or "name.attribute"."""
    first, *attributes = name.split(".")
    if first not in function.__globals__:
        raise RuntimeError(f"{function.__qualname__} must compute {name} itself: {UNKNOWN_LOSS}")
    return functools.reduce(getattr, attributes, function.__globals__[first])
