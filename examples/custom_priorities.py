"""A prioritization of your own: TD errors, and a bonus for rarely replayed transitions."""

import numpy as np
import torch
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN
from sb3_per.prioritization.proportional import Proportional


class RarelyReplayed(Proportional):
    """
    The priority is abs(TD error) + 1 / sqrt(number of replays).

    Inheriting is not needed: ``sb3_per.prioritization.base.Prioritization`` lists the
    methods. For files and checkpoints, define ``entries`` and ``restore``, too.
    """

    def __init__(self, n_slots, **options):
        super().__init__(n_slots, **options)
        self.n_replays = np.zeros(n_slots)

    def insert(self, slots):
        self.n_replays[slots] = 0
        super().insert(slots)

    def update(self, slots, td_errors):
        np.add.at(self.n_replays, slots, 1)  # a batch may hold a transition several times
        super().update(slots, np.abs(td_errors) + 1 / np.sqrt(self.n_replays[slots]))


def main(total_timesteps: int = 10_000) -> None:
    options = {"replay_buffer_kwargs": {"prioritization": RarelyReplayed}, "train_freq": 1}
    options |= {"target_update_interval": 200, "exploration_fraction": 0.3}
    model = PERDQN("MlpPolicy", "CartPole-v1", learning_rate=1e-3, seed=0, **options)
    mean, _ = evaluate_policy(model.learn(total_timesteps), model.get_env())
    n_replays = model.replay_buffer.prioritization.n_replays[:total_timesteps]
    print(f"mean return {mean:.0f}; each transition was replayed {n_replays.mean():.0f} times")


if __name__ == "__main__":
    torch.set_num_threads(1)  # faster for small networks
    main()
