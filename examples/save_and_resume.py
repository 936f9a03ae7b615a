"""Save a run with its priorities, load it, and check that it continues as if uninterrupted."""

import tempfile
from pathlib import Path

import gymnasium as gym
import torch as th

from sb3_per import PERDQN


def main(total_timesteps: int = 2000) -> None:
    options = {"beta": (0.4, 1.0)}  # rises over the training
    arguments = {"buffer_size": 10_000, "replay_buffer_kwargs": options, "seed": 0, "device": "cpu"}
    model = PERDQN("MlpPolicy", "CartPole-v1", **arguments)
    model.learn(total_timesteps)

    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "model"))
        model.save_replay_buffer(Path(folder, "replay_buffer"))
        resumed = PERDQN.load(Path(folder, "model"), env=gym.make("CartPole-v1"), device="cpu")
        resumed.load_replay_buffer(Path(folder, "replay_buffer"))  # with priorities and randomness

    # The same batches, and so the same weights, whether or not the run was interrupted.
    resumed.set_logger(model.logger)
    for run in (model, resumed):
        run.train(gradient_steps=10, batch_size=32)
    pairs = zip(model.policy.parameters(), resumed.policy.parameters(), strict=True)
    same = all(th.equal(left, right) for left, right in pairs)
    print(f"weights after 10 more gradient steps: {'the same' if same else 'different'}")

    # Beta has reached its last value, and does not fall when the training continues.
    resumed.learn(total_timesteps, reset_num_timesteps=False)
    print(f"{resumed.num_timesteps} steps in all, beta {resumed.replay_buffer.beta:.2f}")


if __name__ == "__main__":
    th.set_num_threads(1)  # faster for small networks
    main()
