"""How long a training takes, its evaluations apart."""

import time
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback


class Clock(NamedTuple):
    """Seconds, on the wall and of this process's computing."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Clock":
        return cls(time.perf_counter(), time.process_time())


class Stamp(BaseCallback):
    """Notes the time at every step that has an evaluation; one stands before it, one behind."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.clocks: list[Clock] = []

    def _on_step(self) -> bool:
        if self.n_calls % self.every == 0:
            self.clocks.append(Clock.now())
        return True


def pace(steps: int, whole: Clock, evaluating: Clock) -> dict[str, Any]:
    """
    :param steps: Of training.
    :param whole: The seconds of all.
    :param evaluating: Those of them that went into evaluations: good policies may play longer
        episodes there, which says nothing about the speed of training.
    :return: What a result holds of it; both paces are those of training alone.
    """
    training = Clock(*np.subtract(whole, evaluating))
    return {
        "steps": steps,
        "seconds": {
            "wall": whole.wall,
            "cpu": whole.cpu,
            "wall_of_evaluations": evaluating.wall,
            "cpu_of_evaluations": evaluating.cpu,
        },
        "steps_per_second": steps / training.wall,
        "steps_per_cpu_second": steps / training.cpu,
    }
