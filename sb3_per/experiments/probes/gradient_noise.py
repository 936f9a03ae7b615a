"""
Train one run of a suite; print two metrics of its gradient for each fifth of the training.

    python -m sb3_per.experiments.probes.gradient_noise LunarLander-v3

Further arguments are the suite and its variant.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import ConvertCallback

from sb3_per import zoo
from sb3_per.experiments.compare import experiment, run_folder, suite, suite_file

METRICS = ("train/linear_loss_share", "train/gradient_noise_ratio")


def main(
    env_id: str, name: str | Path = "recipes", variant: str = "paper", *, seed: int = 99
) -> np.ndarray:
    """
    Train a variant of a suite once.

    :param name: Of the suite, or its file.
    :return: The means of ``METRICS`` over each fifth of the gradient steps, shape (5, 2).
    """
    zoo.register()
    cells = suite.cells(suite_file.load(str(name)))
    cell = next(cell for cell in cells if cell[:2] == (variant, env_id))
    cell = cell._replace(seed=seed, settings={**cell.settings, "seed": seed})
    rows: list[list[float | None]] = []

    def note(*_: Any) -> bool:
        rows.append(logged(model))
        return True

    with TemporaryDirectory() as folder:
        run_folder.claim(Path(folder), cell)
        manager = experiment.manager(cell, Path(folder), "cpu")
        manager.log_interval = 10**9  # a logger forgets what it has written
        model, _ = manager.setup_experiment()
        manager.callbacks = [ConvertCallback(note)]
        manager.learn(model)
    learning = [row for row in rows if None not in row]
    return np.array([part.mean(axis=0) for part in np.array_split(np.array(learning), 5)])


def logged(model: Any) -> list[float | None]:
    """Return the newest values of ``METRICS``; None before the first gradient step."""
    return [*map(model.logger.name_to_value.get, METRICS)]


if __name__ == "__main__":
    print(main(*sys.argv[1:]).round(3))
