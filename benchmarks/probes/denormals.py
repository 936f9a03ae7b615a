"""
Print how many of Adam's averages are denormal numbers in saved models, and what its step costs.

    python -m benchmarks.probes.denormals DQN.zip PERDQN.zip

A denormal number is one too small for the usual format, below 1.2e-38 for 32-bit floats.
"""

import sys
import time
from copy import deepcopy
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.save_util import load_from_zip_file

AVERAGES = ("exp_avg", "exp_avg_sq")
N_STEPS = 51


def main(*files: str) -> None:
    """Print a row for each model of DQN or PERDQN, as ``save`` writes them."""
    th.set_num_threads(1)
    print("| model | denormal | Adam's step, us | with zeros, us | ratio |")
    print("|---|--:|--:|--:|--:|")
    for file in files:
        saved: dict[str, Any] = load_from_zip_file(file, device="cpu")[1]
        optimizer = saved["policy.optimizer"]
        share, slow, fast = share_of_denormals(optimizer), step(optimizer), step(optimizer, True)
        print(f"| {file} | {share:.0%} | {slow:.0f} | {fast:.0f} | {slow / fast:.1f} |")


def share_of_denormals(optimizer: dict[str, Any]) -> float:
    """Return the share of Adam's averages that are denormal."""
    averages = [state[name].numpy() for state in optimizer["state"].values() for name in AVERAGES]
    sizes = np.abs(np.concatenate([average.ravel() for average in averages]))
    return float(np.mean((sizes > 0) & (sizes < np.float32(2.0**-126))))


def step(optimizer: dict[str, Any], denormals_are_zeros: bool = False) -> float:
    """Return the median microseconds of a step without gradients from the saved state."""
    parameters = [th.zeros_like(state["exp_avg"]) for state in optimizer["state"].values()]
    for parameter in parameters:
        parameter.grad = th.zeros_like(parameter)
    adam = th.optim.Adam(parameters)
    times = []
    for _ in range(N_STEPS):
        adam.load_state_dict(deepcopy(optimizer))
        th.set_flush_denormal(denormals_are_zeros)
        start = time.perf_counter()
        adam.step()
        times.append(time.perf_counter() - start)
        th.set_flush_denormal(False)
    return float(1e6 * np.median(times))


if __name__ == "__main__":
    main(*sys.argv[1:])
