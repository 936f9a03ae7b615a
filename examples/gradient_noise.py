"""Train one run of a suite; print two metrics of its gradient for each fifth of the training."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from stable_baselines3.common.callbacks import ConvertCallback

from sb3_per import PERDQN, zoo
from sb3_per.experiments.compare import experiment, run_folder, suite, suite_file

METRICS = ("train/linear_loss_share", "train/gradient_noise_ratio")


def main(env_id: str, name: str = "recipes", variant: str = "paper", seed: int = 99) -> np.ndarray:
    zoo.register()
    cells = suite.cells(suite_file.load(name))
    cell = next(cell for cell in cells if cell[:2] == (variant, env_id))
    cell = cell._replace(seed=seed, settings={**cell.settings, "seed": seed})
    rows = []
    with TemporaryDirectory() as folder:
        run_folder.claim(Path(folder), cell)
        manager = experiment.manager(cell, Path(folder), "cpu")
        manager.log_interval = 10**9  # a logger forgets what it has written
        model, _ = manager.setup_experiment()
        manager.callbacks = [ConvertCallback(lambda *_: rows.append(logged(model)) is None)]
        manager.learn(model)
    learning = [row for row in rows if None not in row]
    return np.array([part.mean(axis=0) for part in np.array_split(learning, 5)])


def logged(model: PERDQN) -> list[float | None]:
    return [*map(model.logger.name_to_value.get, METRICS)]  # None before the first gradient step


if __name__ == "__main__":
    print(main(*sys.argv[1:]).round(3))  # the environment; the suite and its variant
