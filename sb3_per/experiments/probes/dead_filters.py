"""
Train DQN on Pong; print which share of each layer's filters still reacts to any stored image.

    python -m sb3_per.experiments.probes.dead_filters 2.5e-4

The argument is the learning rate. All else is as in the suite `million`, up to 100,000 steps.
"""

import sys
from typing import Any

import torch as th
from torch import nn

from sb3_per.experiments.probes import one_run

N_STEPS, EVERY = 100_000, 20_000


def main(learning_rate: float) -> None:
    """Print a row for each 20,000 steps."""
    cell = one_run.cell_of("million", "dqn", "PongNoFrameskip-v4")
    hyperparameters = {**cell.settings["hyperparameters"], "learning_rate": learning_rate}
    cell = cell._replace(settings={**cell.settings, "hyperparameters": hyperparameters})
    print("| step | filters that react, by layer | spread of Q-values over images |\n|---|---|---|")

    def look_at(model: Any) -> bool:
        if model.num_timesteps % EVERY == 0:
            shares, spread = reactions(model)
            listed = ", ".join(f"{share:.2f}" for share in shares)
            print(f"| {model.num_timesteps:,} | {listed} | {spread:.4f} |", flush=True)
        return bool(model.num_timesteps < N_STEPS)

    one_run.train(cell, look_at)


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
    main(float(sys.argv[1]))
