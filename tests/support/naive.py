"""Slow, obvious models of the fast structures."""

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


def drive_both(fast, naive, steps):
    """
    Do the same to a prioritization and its slow model.

    :param steps: (method, slots) pairs, or ("update", [(choice, td_error), ...]), where a choice
        stands for one of the slots that are inserted, or ("clear", None).
    """
    for name, argument in steps:
        if name == "clear":
            fast.clear()
            naive.clear()
        elif name == "update":
            inserted = naive.inserted()
            if not inserted:
                continue
            slots = [inserted[choice % len(inserted)] for choice, _ in argument]
            td_errors = [td_error for _, td_error in argument]
            fast.update(np.array(slots, dtype=np.int64), np.array(td_errors, dtype=np.float64))
            naive.update(slots, td_errors)
        else:
            getattr(fast, name)(np.array(argument))
            getattr(naive, name)(argument)


class NaiveProportional:
    """Priorities in a dict, the formulas of the paper spelled out."""

    def __init__(self, n_slots, alpha, eps, clip, initial_priority, new_priority):
        self.n_slots, self.alpha, self.eps, self.clip = n_slots, alpha, eps, clip
        self.initial_priority, self.new_priority = initial_priority, new_priority
        self.clear()

    def clear(self):
        self.priorities = {}
        self.largest_seen = self.initial_priority

    def inserted(self):
        return sorted(self.priorities)

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


class NaiveOrder:
    """Slots in a list, largest priority first; a slot that is placed goes before its equals."""

    def __init__(self, n_slots):
        self.all_slots = list(range(n_slots))
        self.slots, self.priorities = [], {}

    def place(self, slots, priorities):
        for slot, priority in zip(slots, priorities, strict=True):
            self.remove([slot])
            n_larger = sum(other > priority for other in self.priorities.values())
            self.slots.insert(n_larger, slot)
            self.priorities[slot] = priority

    def remove(self, slots):
        for slot in slots:
            if slot in self.priorities:
                self.slots.remove(slot)
                del self.priorities[slot]


class NaiveRanks:
    """An argsort for each call."""

    def __init__(self, n_slots, alpha, initial_priority, new_priority):
        self.alpha, self.new_priority = alpha, new_priority
        self.initial_priority = self.largest_seen = initial_priority
        self.priorities = np.full(n_slots, -np.inf)
        self.given = np.zeros(n_slots)  # of equal priorities the one given last ranks first
        self.clock = 0

    def inserted(self):
        return np.flatnonzero(np.isfinite(self.priorities)).tolist()

    def insert(self, slots):
        for slot in slots:
            stored = self.priorities.max()
            largest = self.largest_seen
            if self.new_priority == "max_stored":
                largest = stored if np.isfinite(stored) else self.initial_priority
            self._give(slot, largest)

    def update(self, slots, td_errors):
        for slot, td_error in zip(slots, td_errors, strict=True):
            self._give(slot, abs(td_error) + 1e-6)
            self.largest_seen = max(self.largest_seen, abs(td_error) + 1e-6)

    def remove(self, slots):
        self.priorities[slots] = -np.inf

    def _give(self, slot, priority):
        self.clock += 1
        self.priorities[slot], self.given[slot] = priority, self.clock

    def probabilities(self):
        by_rank = np.lexsort((-self.given, -self.priorities))
        powers = np.zeros(len(self.priorities))
        n_stored = np.isfinite(self.priorities).sum()
        powers[by_rank[:n_stored]] = np.arange(1, n_stored + 1) ** -self.alpha
        return powers / powers.sum()
