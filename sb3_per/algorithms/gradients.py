"""One step of an optimizer, without what torch's helpers spend beside the arithmetic."""

from typing import Any

import torch as th

# Which devices have a kernel that takes all of Adam's arithmetic in one pass, since torch 2.4.
_FUSED_DEVICES = ("cpu", "cuda")


def fuse(optimizer: th.optim.Optimizer) -> None:
    """
    Let Adam and AdamW update all parameters in one kernel, unless their owner has chosen how.

    The same formula, rounded differently; for small networks a step takes a third of the time.

    :param optimizer: Any optimizer; those of other kinds are left alone.
    """
    if type(optimizer) not in (th.optim.Adam, th.optim.AdamW):
        return
    free = [group for group in optimizer.param_groups if _is_free(group)]
    for group in free:
        group["fused"] = True
    if free and optimizer.state:  # of another kernel, which counts steps elsewhere
        optimizer.load_state_dict(optimizer.state_dict())


def keep_fused(optimizer: th.optim.Optimizer, were_fused: list[bool | None]) -> None:
    """
    Undo what parameters that were loaded have brought along: how another optimizer updated them.

    :param were_fused: For each group of parameters, what it had for ``fused`` before.
    """
    for group, fused in zip(optimizer.param_groups, were_fused, strict=True):
        if "fused" in group:
            group["fused"] = False if fused is False else None
    if any(were_fused):
        fuse(optimizer)


def _is_free(group: dict[str, Any]) -> bool:
    """Whether nobody has chosen how a group of parameters is updated, and there is a kernel."""
    chosen = any(group[name] for name in ("foreach", "capturable", "differentiable"))
    has_kernel = all(_has_kernel(parameter) for parameter in group["params"])
    return group["fused"] is None and not chosen and has_kernel


def _has_kernel(parameter: th.Tensor) -> bool:
    return parameter.device.type in _FUSED_DEVICES and parameter.is_floating_point()


def clear(optimizer: th.optim.Optimizer) -> None:
    """Forget gradients, as ``optimizer.zero_grad()``, which takes 20 us to note it in a profile."""
    for parameter in parameters_of(optimizer):
        parameter.grad = None


def clip(optimizer: th.optim.Optimizer, max_norm: float) -> None:
    """
    Scale gradients down to a total norm, as ``th.nn.utils.clip_grad_norm_``, bit for bit.

    That one multiplies by 1 where there is nothing to clip, and is given a walk through all modules
    of the policy; together this takes longer than the step.

    :param optimizer: Of whose parameters the gradients are.
    :param max_norm: Largest Euclidean norm of all gradients together.
    """
    gradients = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
    norm = th.linalg.vector_norm(th.stack(th._foreach_norm(gradients)))
    factor = max_norm / (norm + 1e-6)
    if not factor.item() >= 1:  # so that NaN reaches every gradient
        th._foreach_mul_(gradients, factor)


def parameters_of(optimizer: th.optim.Optimizer) -> list[th.Tensor]:
    """All parameters that an optimizer moves."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
