"""A slow model of the prioritized buffers: a dict of rows, and sets of slots."""

import numpy as np
from naive import NaiveProportional, NaiveRanks


class NaiveBuffer:
    """
    Row r holds (step, ends): the step that ``builders.fill`` wrote there, and for each environment
    "done", "cut" or "". ``sampled`` are slots whose TD error has not come; ``stale`` are slots
    whose transition was overwritten or removed after it was sampled.
    """

    def __init__(self, options, n_rows, n_envs):
        self.options, self.n_rows, self.n_envs = options, n_rows, n_envs
        self.beta = options["beta"]
        self.sampled, self.stale = set(), set()
        self.rows, self.next_row = {}, 0
        n_slots = n_rows * n_envs
        alpha, new_priority = options["alpha"], options["new_priority"]
        clip = options["td_error_clip"] or np.inf
        if options["prioritization"] == "rank":
            self.priorities = NaiveRanks(n_slots, alpha, clip, 1.0, new_priority)
        else:
            self.priorities = NaiveProportional(n_slots, alpha, 1e-6, clip, 1.0, new_priority)

    def reset(self):
        self.rows, self.next_row = {}, 0
        self.priorities.remove(self.priorities.inserted())
        self.priorities.largest_seen = 1.0
        self._lose([*self.sampled])

    @property
    def n_stored(self):
        return len(self.rows) * self.n_envs

    @property
    def newest_row(self):
        return (self.next_row - 1) % self.n_rows

    def not_sampleable(self):
        """Slots at the write head of full memory-optimised storage."""
        is_full = len(self.rows) == self.n_rows
        return self.slots_of(self.next_row) if self.options["shared"] and is_full else []

    def slots_of(self, row):
        return [row * self.n_envs + env for env in range(self.n_envs)]

    def sampleable(self):
        return sorted(set(range(self.n_stored)) - set(self.not_sampleable()))

    def add(self, step, ends):
        row, self.next_row = self.next_row, (self.next_row + 1) % self.n_rows
        self.rows[row] = (step, list(ends))
        self._lose(self.slots_of(row))
        self.priorities.insert(self.slots_of(row))
        self._lose(self.not_sampleable())
        self.priorities.remove(self.not_sampleable())

    def end_episodes(self):
        if not self.rows:
            return
        _, ends = self.rows[self.newest_row]
        for env, end in enumerate(ends):
            ends[env] = "done" if self.options["shared"] else end or "cut"

    def _lose(self, slots):
        """Transitions are gone: TD errors of their samples are stale."""
        self.stale |= self.sampled & set(slots)
        self.sampled -= set(slots)

    def sample(self, slots):
        self.sampled |= set(slots)
        self.stale -= set(slots)

    def update(self, slots, td_errors):
        current = set(self.sampleable()) - self.stale
        kept = [pair for pair in zip(slots, td_errors, strict=True) if pair[0] in current]
        self.sampled -= {slot for slot, _ in kept}
        self.priorities.update([slot for slot, _ in kept], [error for _, error in kept])

    def transition(self, slot):
        """(first step, env, last step, return, whether done, steps) of the n steps from a slot."""
        row, env = divmod(slot, self.n_envs)
        total = 0.0
        for n_taken in range(1, self.options["n_steps"] + 1):
            step, ends = self.rows[row]
            total += self.options["gamma"] ** (n_taken - 1) * (step + env / 10)
            if ends[env] or row == self.newest_row or n_taken == self.options["n_steps"]:
                break
            row = (row + 1) % self.n_rows
        is_done = ends[env] == "done" or (ends[env] == "cut" and self.options["shared"])
        return self.rows[slot // self.n_envs][0], env, step, total, is_done, n_taken

    def weights(self, slots):
        """Of a batch sampled with replacement: (N P)^-beta, normalised."""
        sampleable, share = self.sampleable(), self.options["uniform_share"]
        probabilities = np.full(self.n_rows * self.n_envs, np.inf)  # the others are not used
        by_priority = self.priorities.probabilities()[sampleable]
        probabilities[sampleable] = share / len(sampleable) + (1 - share) * by_priority
        weights = (len(sampleable) * probabilities) ** -self.beta
        divisors = {
            "batch": weights[slots].max(),
            "buffer": weights[sampleable].max(),
            "mean": weights[slots].mean(),
            "none": 1.0,
        }
        return weights[slots] / divisors[self.options["weight_normalization"]]
