"""
Train one run of a suite; print two metrics of its gradient for each fifth of the training.

    python -m benchmarks.probes.gradient_noise LunarLander-v3
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import ConvertCallback

from sb3_per.compare.results import run_folder
from sb3_per.compare.suite import load, runs_of
from sb3_per.compare.training import manager_of

METRICS = ("train/linear_loss_share", "train/gradient_noise_ratio")
SUITE = "benchmarks/suites/recipes.yml"


def main(environment: str, suite: str = SUITE, variant: str = "paper") -> np.ndarray:
    """Return the means of ``METRICS`` over each fifth of the gradient steps, shape (5, 2)."""
    # A seed that the suite does not have.
    runs = runs_of(load(Path(suite)).model_copy(update={"first_seed": 99, "seeds": 1}))
    run = next(run for run in runs if run[:2] == (variant, environment))
    rows: list[list[float]] = []

    def note(model: Any) -> bool:
        logged = model.logger.name_to_value
        if all(name in logged for name in METRICS):
            rows.append([logged[name] for name in METRICS])
        return True

    with TemporaryDirectory() as name:
        folder = Path(name)
        run_folder(folder, run).mkdir(parents=True)
        manager = manager_of(run, folder, "cpu")
        manager.log_interval = 10**9  # a logger forgets what it has written
        model, _ = manager.setup_experiment()
        manager.callbacks = [ConvertCallback(lambda *_: note(model))]  # no evaluations
        manager.learn(model)
    return np.array([part.mean(axis=0) for part in np.array_split(np.array(rows), 5)])


if __name__ == "__main__":
    print(main(*sys.argv[1:]).round(3))
