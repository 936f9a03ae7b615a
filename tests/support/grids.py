"""Small suites, and results that nobody has trained."""

import os
import sys

from sb3_per.experiments.compare import run_folder, suite_file
from sb3_per.experiments.compare.environment import Environment, Evaluation, Score
from sb3_per.experiments.compare.suite import Suite, Variant, cells


def suite(*, environments=("A-v0",), variants=("dqn", "per"), seeds=5):
    """Scores are returns over 100; a run is evaluated after 10, 20, 30 and 40 steps."""
    environment = Environment(
        steps=40,
        evaluation=Evaluation(every=10, episodes=2),
        score=Score(random=0.0, solved=100.0, source="made up"),
        threshold=50.0,
        hyperparameters={"policy": "MlpPolicy", "learning_rate": 0.5},
        env_kwargs={},
    )
    return Suite(
        name="made_up",
        about="Nobody has trained this.",
        seeds=seeds,
        baseline="dqn",
        environments=dict.fromkeys(environments, environment),
        variants={name: Variant(algorithm="dqn", overrides={}, scale={}) for name in variants},
    )


def measured(returns):
    """What a worker measures, if both episodes of each evaluation give the same."""
    return {
        "evaluations": {
            "steps": [10, 20, 30, 40],
            "returns": [[each, each] for each in returns],
            "lengths": [[1, 1]] * 4,
        },
        "evaluation_is_greedy": True,
        "steps": 40,
        "seconds": {"wall": 2.0, "cpu": 1.0},
        "steps_per_second": 20.0,
        "steps_per_cpu_second": 40.0,
        "versions": {"python": "3.11"},
        "machine": {"device": "cpu"},
    }


def finish(folder, cell, returns, **changes):
    run_folder.cell_folder(folder, cell).mkdir(parents=True, exist_ok=True)
    run_folder.write(folder, cell, measured(returns) | changes)


def folder_of(folder, declared, final):
    """
    A run folder, complete.

    :param final: From a cell to the return of its last three evaluations; the first returned 0.
    """
    suite_file.save(declared, folder / run_folder.SUITE)
    for cell in cells(declared):
        finish(folder, cell, [0.0, *[float(final(cell))] * 3])
    return folder


def end_with_status_3(cell, folder, device):
    """In place of a training, in a process of its own, whose output is gone."""
    (run_folder.cell_folder(folder, cell) / run_folder.OUTPUT).unlink()
    raise SystemExit(3)


def write_the_process(cell, folder, device):
    """In place of a training; the third seed fails."""
    sys.stdout.write(f"seed {cell.seed} in {os.getpid()}")
    if cell.seed == 2:
        raise RuntimeError("this seed always fails")
    finish(folder, cell, [0.0] * 4)


def write_a_damaged_result(cell, folder, device):
    """In place of a training, in a process of its own."""
    (run_folder.cell_folder(folder, cell) / "result.json").write_text("[]")


def changed(declared, environment, **changes):
    """The suite with other values in one environment."""
    environments = dict(declared.environments)
    environments[environment] = replaced(environments[environment], **changes)
    return replaced(declared, environments=environments)


def replaced(section, **changes):
    """A part of a suite with other values, as they are: a suite from a file may not hold them."""
    return section.model_copy(update=changes)
