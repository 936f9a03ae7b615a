"""One run of a suite that is looked at while it trains, and leaves no files."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stable_baselines3.common.callbacks import ConvertCallback

from sb3_per import zoo
from sb3_per.experiments.compare import experiment, run_folder, suite, suite_file
from sb3_per.experiments.compare.suite import Cell


def cell_of(name: str | Path, variant: str, env_id: str) -> Cell:
    """
    Return the first run of a variant in an environment.

    :param name: Of the suite, or its file.
    """
    zoo.register()
    cells = suite.cells(suite_file.load(str(name)))
    return next(cell for cell in cells if cell[:2] == (variant, env_id))


def train(cell: Cell, look_at: Callable[[Any], bool]) -> None:
    """
    Train a run without its evaluations.

    :param look_at: Gets the model after every step; training ends when it returns False.
    """
    with TemporaryDirectory() as folder:
        run_folder.claim(Path(folder), cell)
        manager = experiment.manager(cell, Path(folder), "cpu")
        manager.log_interval = 10**9  # a logger forgets what it has written
        model, _ = manager.setup_experiment()
        manager.callbacks = [ConvertCallback(lambda *_: look_at(model))]
        manager.learn(model)
