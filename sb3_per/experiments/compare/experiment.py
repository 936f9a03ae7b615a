"""RL-Zoo's experiment manager for a cell."""

import argparse
import importlib
from pathlib import Path
from typing import Any

import yaml

from sb3_per.experiments.compare import run_folder
from sb3_per.experiments.compare.suite import Cell, gym_id


def import_for(environment: str) -> None:
    """Import ``module``, which registers environments, if a name is ``module:Name-v0``."""
    module = environment.rpartition(":")[0]
    if module:
        importlib.import_module(module)


def manager(cell: Cell, folder: Path, device: str) -> Any:
    """
    Build RL-Zoo's manager of a run, as its ``train`` does.

    It seeds the environments of the evaluations with the cell's seed, too. If only resets use
    random numbers, as in CartPole, all variants are evaluated from the same starts. If steps use
    them, too, as in LunarLander, only the first start is the same.

    :param folder: The run folder, in which the cell's own folder exists.
    :param device: torch's device.
    """
    from rl_zoo3.exp_manager import ExperimentManager

    settings = cell.settings
    place = run_folder.cell_folder(folder, cell)
    config = place / "hyperparameters.yml"
    hyperparameters = settings["hyperparameters"] | {"n_timesteps": settings["steps"]}
    environment = gym_id(cell.environment)
    config.write_text(yaml.safe_dump({environment: hyperparameters}), encoding="utf-8")
    made = ExperimentManager(
        # What RL-Zoo writes into args.yml, and `enjoy` reads from there.
        argparse.Namespace(env_kwargs=settings["env_kwargs"], seed=cell.seed),
        settings["algorithm"],
        environment,
        str(folder / cell.variant),
        eval_freq=settings["evaluation"]["every"],
        n_eval_episodes=settings["evaluation"]["episodes"],
        env_kwargs=settings["env_kwargs"],
        seed=cell.seed,
        log_interval=-2,
        verbose=0,
        device=device,
        config=str(config),
    )
    # RL-Zoo counts folders, which cells that run side by side would do at the same time.
    made.save_path = str(place)
    made.params_path = str(place / made.env_name)
    return made
