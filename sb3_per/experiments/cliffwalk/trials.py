"""The runs: learners and methods, on walks of several lengths, with several seeds."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

# The names of learners and methods in tables and figures, and their order.
NAMES = {
    "tabular": "Tabular Q",
    "linear": "Linear Q: one-hot and bias",
    "network_lr1e-3": "Networks, learning rate 1e-3",
    "network_lr2.5e-4": "Networks, learning rate 2.5e-4",
    "uniform": "uniform",
    "oracle": "oracle",
    "greedy": "greedy",
    "proportional_alpha0.6": "prop 0.6",
    "proportional_alpha1.0": "prop 1.0",
    "rank_alpha0.7": "rank 0.7",
    "rank_alpha1.0": "rank 1.0",
    "DQN": "DQN",
    "PERDQN": "PERDQN",
    "recipe_1": "recipe 1",
    "recipe_2": "recipe 2",
}


class Trial(NamedTuple):
    """One run: its learner, its method, the length of the walk and the seed."""

    learner: str
    method: str
    n: int
    seed: int


class UpdatesNeeded(NamedTuple):
    """What came of a run: updates until the values were right, or until it was given up."""

    updates: int
    solved: bool


class Family(NamedTuple):
    """Runs that belong in one figure, and the function that makes one of them."""

    learners: Sequence[str]
    methods: Sequence[str]
    sizes: Sequence[int]
    n_seeds: int
    run: Callable[[str, str, int, int], UpdatesNeeded]

    def trials(self) -> Iterator[Trial]:
        """Return all runs, short walks first, so that results appear soon."""
        for n in sorted(self.sizes):
            for seed in range(self.n_seeds):
                for learner in self.learners:
                    for method in self.methods:
                        yield Trial(learner, method, n, seed)
