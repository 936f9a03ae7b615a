"""Slow, obvious models of the fast structures."""

import numpy as np
from hypothesis import strategies as st


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


def operations(n_slots):
    """
    Strategy of the steps of ``check_same``: (method, slots) pairs, ("clear", None), or ("update",
    [(choice, td_error), ...]), where a choice stands for one of the slots that are inserted.
    """
    slots = st.lists(st.integers(0, n_slots - 1), min_size=1, max_size=20, unique=True)
    td_errors = st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-1e6, 1e6))
    updates = st.lists(st.tuples(st.integers(0, 99), td_errors))
    step = st.one_of(
        st.tuples(st.sampled_from(["insert", "remove"]), slots),
        st.tuples(st.just("update"), updates),
        st.tuples(st.just("clear"), st.none()),
    )
    return st.lists(step, max_size=20)


def check_same(fast, naive, steps):
    """Do the same to a prioritization and its slow model, and compare them."""
    for name, argument in steps:
        inserted = naive.inserted()
        if name == "clear":
            fast.clear()
            naive.clear()
        elif name != "update":
            getattr(fast, name)(np.array(argument))
            getattr(naive, name)(argument)
        elif inserted:
            slots = [inserted[choice % len(inserted)] for choice, _ in argument]
            td_errors = [td_error for _, td_error in argument]
            fast.update(np.array(slots, dtype=np.int64), np.array(td_errors, dtype=np.float64))
            naive.update(slots, td_errors)
    assert fast.largest_priority == naive.largest_seen
    probabilities = fast.probabilities(np.arange(naive.n_slots))
    if naive.inserted():
        np.testing.assert_allclose(probabilities, naive.probabilities(), rtol=1e-12)
    else:
        assert not probabilities.any()


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
        self.place(slots, [largest] * len(slots))

    def update(self, slots, td_errors):
        priorities = [min(abs(td_error), self.clip) + self.eps for td_error in td_errors]
        self.place(slots, priorities)
        self.largest_seen = max([self.largest_seen, *priorities])

    def place(self, slots, priorities):
        self.priorities.update(zip(slots, priorities, strict=True))

    def remove(self, slots):
        for slot in slots:
            self.priorities.pop(slot, None)

    def probabilities(self):
        powers = np.zeros(self.n_slots)
        for slot, priority in self.priorities.items():
            powers[slot] = priority**self.alpha
        return powers / powers.sum()


class NaiveRanks(NaiveProportional):
    """A sort for each call; of equal priorities, the one placed last ranks first."""

    def __init__(self, n_slots, alpha=1.0, clip=np.inf, initial=1.0, new_priority="max_seen"):
        super().__init__(n_slots, alpha, 1e-6, clip, initial, new_priority)

    def place(self, slots, priorities):
        for slot, priority in zip(slots, priorities, strict=True):
            self.remove([slot])  # so that it becomes the last one of the dict
            self.priorities[slot] = priority

    def by_rank(self):
        latest_first = [*self.priorities][::-1]
        return sorted(latest_first, key=lambda slot: -self.priorities[slot])

    def probabilities(self):
        by_rank = self.by_rank()
        powers = np.zeros(self.n_slots)
        powers[by_rank] = np.arange(1, len(by_rank) + 1) ** -self.alpha
        return powers / powers.sum()
