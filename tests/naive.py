"""Slow, obvious twins of the fast structures, used as oracles."""

import numpy as np


class NaiveTree:
    """A list of weights; every question is answered by going through all of them."""

    def __init__(self, n_leaves):
        self.weights = [0.0] * n_leaves

    def set(self, leaves, weights):
        for leaf, weight in zip(leaves, weights, strict=True):
            self.weights[leaf] = weight

    def find(self, mass):
        running = 0.0
        for leaf, weight in enumerate(self.weights):
            running += weight
            if mass < running:
                return leaf
        return max(leaf for leaf, weight in enumerate(self.weights) if weight > 0)

    @property
    def positive(self):
        return [weight for weight in self.weights if weight > 0]


class NaiveProportional:
    """Priorities in a dict, the formulas of the paper spelled out."""

    def __init__(self, n_slots, alpha, eps, clip, initial_priority, new_priority):
        self.n_slots, self.alpha, self.eps, self.clip = n_slots, alpha, eps, clip
        self.initial_priority, self.new_priority = initial_priority, new_priority
        self.clear()

    def clear(self):
        self.priorities = {}
        self.largest_seen = self.initial_priority

    def insert(self, slots):
        largest = self.largest_seen
        if self.new_priority == "max_stored":
            largest = max(self.priorities.values(), default=self.initial_priority)
        for slot in slots:
            self.priorities[slot] = largest

    def update(self, slots, td_errors):
        for slot, td_error in zip(slots, td_errors, strict=True):
            self.priorities[slot] = min(abs(td_error), self.clip) + self.eps
            self.largest_seen = max(self.largest_seen, self.priorities[slot])

    def remove(self, slots):
        for slot in slots:
            self.priorities.pop(slot, None)

    def probabilities(self):
        powers = np.zeros(self.n_slots)
        for slot, priority in self.priorities.items():
            powers[slot] = priority**self.alpha
        return powers / powers.sum()
