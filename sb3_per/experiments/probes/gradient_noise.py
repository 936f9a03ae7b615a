"""
Train one run of a suite; print two metrics of its gradient for each fifth of the training.

    python -m sb3_per.experiments.probes.gradient_noise LunarLander-v3

Further arguments are the suite and its variant.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from sb3_per.experiments.probes import one_run

METRICS = ("train/linear_loss_share", "train/gradient_noise_ratio")


def main(
    env_id: str, name: str | Path = "recipes", variant: str = "paper", *, seed: int = 99
) -> np.ndarray:
    """
    Train a variant of a suite once.

    :param name: Of the suite, or its file.
    :return: The means of ``METRICS`` over each fifth of the gradient steps, shape (5, 2).
    """
    cell = one_run.cell_of(name, variant, env_id)
    cell = cell._replace(seed=seed, settings={**cell.settings, "seed": seed})
    rows: list[list[float | None]] = []

    def note(model: Any) -> bool:
        rows.append(logged(model))
        return True

    one_run.train(cell, note)
    learning = [row for row in rows if None not in row]
    return np.array([part.mean(axis=0) for part in np.array_split(np.array(learning), 5)])


def logged(model: Any) -> list[float | None]:
    """Return the newest values of ``METRICS``; None before the first gradient step."""
    return [*map(model.logger.name_to_value.get, METRICS)]


if __name__ == "__main__":
    print(main(*sys.argv[1:]).round(3))
