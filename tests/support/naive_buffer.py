"""A slow, obvious twin of the prioritized buffers: a list of rows, and a word for each slot."""

import numpy as np
from naive import NaiveProportional, NaiveRanks

AWAITED, OVERWRITTEN = "awaited", "overwritten"


class NaiveBuffer:
    """
    ``log`` holds of each slot how many TD errors are awaited, and whether of what is gone.
    Row r holds (step, ends): the step that ``builders.fill`` wrote there, and for each environment
    "done", "cut" or "". Every question is answered by going through all of them.
    """

    def __init__(self, options, n_rows, n_envs):
        self.options, self.n_rows, self.n_envs = options, n_rows, n_envs
        self.beta = options["beta"]
        self.log = {}
        self.clear()
        n_slots = n_rows * n_envs
        alpha, new_priority = options["alpha"], options["new_priority"]
        if options["prioritization"] == "rank":
            self.priorities = NaiveRanks(n_slots, alpha, 1.0, new_priority)
        else:
            clip = options["td_error_clip"] or np.inf
            self.priorities = NaiveProportional(n_slots, alpha, 1e-6, clip, 1.0, new_priority)

    def clear(self):
        self.rows, self.next_row = {}, 0

    def reset(self):
        self.clear()
        self.priorities.remove(self.priorities.inserted())
        self.priorities.largest_seen = 1.0
        self._overwrite([*self.log])

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

    def drawable(self):
        return sorted(set(range(self.n_stored)) - set(self.not_sampleable()))

    def add(self, step, ends):
        row, self.next_row = self.next_row, (self.next_row + 1) % self.n_rows
        self.rows[row] = (step, list(ends))
        slots = self.slots_of(row)
        self._overwrite(slots)
        self.priorities.insert(slots)
        self.priorities.remove(self.not_sampleable())

    def end_episodes(self):
        if not self.rows:
            return
        _, ends = self.rows[self.newest_row]
        for env, end in enumerate(ends):
            ends[env] = "done" if self.options["shared"] else end or "cut"

    def _overwrite(self, slots):
        for slot in slots:
            if slot in self.log:
                self.log[slot] = (OVERWRITTEN, self.log[slot][1])

    def sample(self, slots):
        for slot in slots:
            word, n_awaited = self.log.get(slot, (AWAITED, 0))
            self.log[slot] = (AWAITED, n_awaited + 1 if word == AWAITED else 1)

    def is_late(self, slot):
        """Whether what its TD error is awaited for has gone."""
        return self.log.get(slot, (AWAITED, 0))[0] == OVERWRITTEN

    def update(self, slots, td_errors):
        not_sampleable = self.not_sampleable()
        in_time = [
            (slot, td_error)
            for slot, td_error in zip(slots, td_errors, strict=True)
            if not self.is_late(slot) and slot not in not_sampleable
        ]
        for slot in slots:
            word, n_awaited = self.log.pop(slot, (AWAITED, 0))
            if n_awaited > 1:
                self.log[slot] = (word, n_awaited - 1)
        self.priorities.update(
            *([list(column) for column in zip(*in_time, strict=True)] or [[], []])
        )

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
        sampleable, share = self.drawable(), self.options["uniform_share"]
        shares = np.full(self.n_rows * self.n_envs, np.inf)  # the others are never asked for
        by_priority = self.priorities.probabilities()[sampleable]
        shares[sampleable] = share / len(sampleable) + (1 - share) * by_priority
        weights = (len(sampleable) * shares) ** -self.beta
        divisors = {
            "batch": weights[slots].max(),
            "buffer": weights[sampleable].max(),
            "mean": weights[slots].mean(),
            "none": 1.0,
        }
        return weights[slots] / divisors[self.options["weight_normalization"]]
