"""The protocol that every prioritization obeys, and the formulas they share."""

from typing import Protocol

import numpy as np

from sb3_per.draws import Draw, Scheme
from sb3_per.sum_tree import FloatArray, IntArray

# TD errors come from float32 networks. The bound keeps every sum of priorities below what float64
# can hold.
LARGEST_TD_ERROR = float(np.finfo(np.float32).max)


class Prioritization(Protocol):
    """
    Who is drawn how often. It knows slots and TD errors, and nothing of what the slots hold.

    Invariant: a slot has a probability above 0 from ``insert`` until ``remove`` or ``clear``, and
    exactly 0 otherwise. The caller has checked the arguments: slots in range, TD errors finite,
    ``update`` only for inserted slots.
    """

    @property
    def largest_priority(self) -> float:
        """Largest priority seen since the last ``clear``, the initial priority included."""

    def insert(self, slots: IntArray) -> None:
        """Let new transitions in, shape (n,), whose TD errors are not known yet."""

    def update(self, slots: IntArray, td_errors: FloatArray) -> None:
        """Take in TD errors, both of shape (B,); of a slot named twice the last one counts."""

    def remove(self, slots: IntArray) -> None:
        """Bar slots, shape (n,), from being drawn until they are inserted again."""

    def clear(self) -> None:
        """Forget everything; nothing can be drawn."""

    def probabilities(self, slots: IntArray) -> FloatArray:
        """P(i) of slots, shape (n,): the chance of a single draw."""

    def draw(self, scheme: Scheme, batch_size: int, uniforms: FloatArray) -> Draw:
        """Draw with random numbers in [0, 1), as many as ``scheme.n_uniforms(batch_size)``."""


def importance_weights(probabilities: FloatArray | float, n_slots: int, beta: float) -> FloatArray:
    """
    Importance-sampling weights (N * P)^-beta, before normalisation (Schaul et al. 2016, section
    3.4).

    :param probabilities: P(i) of each drawn slot, shape (B,), all > 0.
    :param n_slots: N, how many slots can be drawn.
    :param beta: 0 for no correction, 1 for full correction.
    :return: Weights, shape (B,).
    """
    return (n_slots * np.asarray(probabilities)) ** -beta


def require(holds: bool, rule: str, value: object) -> None:
    """:raises ValueError: with the rule and the offending value, unless the rule holds."""
    if not holds:
        raise ValueError(f"{rule}, got {value!r}")
