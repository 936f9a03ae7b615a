"""
Print which share of the filters in each layer of DQN's network reacts to any image of Pong.

    python -m sb3_per.experiments.probes.dead_filters 2.5e-4
    python -m sb3_per.experiments.probes.dead_filters runs/million/dqn/.../best_model.zip

With a learning rate, DQN is trained for 100,000 steps, with all other settings of the suite
`million`. With a saved model, the images come from random steps.
"""

import sys
from pathlib import Path
from typing import Any

import torch as th
from torch import nn

from sb3_per.experiments.compare.suite import Cell
from sb3_per.experiments.probes import one_run

N_STEPS, EVERY = 100_000, 20_000
N_RANDOM_STEPS = 2000


def main(argument: str) -> None:
    """Print a row for each 20,000 steps, or one for a saved model."""
    cell = one_run.cell_of("million", "dqn", "PongNoFrameskip-v4")
    print("| step | filters that react, by layer | spread of Q-values over images |\n|---|---|---|")
    if Path(argument).is_file():
        of_saved(cell, argument)
    else:
        of_training(cell, float(argument))


def of_saved(cell: Cell, path: str) -> None:
    """Print the row of a saved model, of `dqn` or `per_dqn`."""

    def look_at(model: Any) -> bool:
        if model.num_timesteps < N_RANDOM_STEPS:
            return True
        model.set_parameters(path)
        print_row("saved", model)
        return False

    one_run.train(cell, look_at)


def of_training(cell: Cell, learning_rate: float) -> None:
    """Print a row for each 20,000 steps of a training."""
    hyperparameters = {**cell.settings["hyperparameters"], "learning_rate": learning_rate}
    cell = cell._replace(settings={**cell.settings, "hyperparameters": hyperparameters})

    def look_at(model: Any) -> bool:
        if model.num_timesteps % EVERY == 0:
            print_row(f"{model.num_timesteps:,}", model)
        return bool(model.num_timesteps < N_STEPS)

    one_run.train(cell, look_at)


def print_row(step: str, model: Any) -> None:
    shares, spread = reactions(model)
    listed = ", ".join(f"{share:.2f}" for share in shares)
    print(f"| {step} | {listed} | {spread:.4f} |", flush=True)


def reactions(model: Any, n_images: int = 256) -> tuple[list[float], float]:
    """
    Return how much the network of a DQN reacts to stored observations.

    :return: The share of filters with an output above 0 anywhere in any image, for each layer with
        a ReLU of the features extractor; and the standard deviation of Q-values over the images,
        mean over the actions.
    """
    shares: list[float] = []

    def note(_layer: nn.Module, _inputs: Any, outputs: th.Tensor) -> None:
        largest = outputs.transpose(0, 1).flatten(1).amax(1)
        shares.append((largest > 0).float().mean().item())

    layers = model.q_net.features_extractor.modules()
    hooks = [layer.register_forward_hook(note) for layer in layers if isinstance(layer, nn.ReLU)]
    with th.no_grad():
        values = model.q_net(model.replay_buffer.sample(n_images).observations)
    for hook in hooks:
        hook.remove()
    return shares, values.std(0).mean().item()


if __name__ == "__main__":
    th.set_num_threads(1)
    main(sys.argv[1])
