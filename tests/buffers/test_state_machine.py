"""
Random operations on the buffers and a slow model, which must agree after each of them.

CI runs 10,000 steps; ``make soak STEPS=1000000`` runs more.
"""

import io
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from builders import BOX, DICT, TWO_ACTIONS, fill, observation, probabilities_in
from checks import assert_same_buffer, check_valid, saved_and_loaded
from hypothesis import settings, stateful
from hypothesis import strategies as st
from naive_buffer import NaiveBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
)

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were sampled")

N_STEPS = int(os.environ.get("STATE_MACHINE_STEPS", "10000"))
STEPS_OF_A_RUN = 50

OPTIONS = st.fixed_dictionaries(
    {
        "prioritization": st.sampled_from(["proportional", "rank"]),
        "alpha": st.sampled_from([0.0, 0.6, 1.0]),
        "beta": st.sampled_from([0.0, 0.4, 1.0]),
        "td_error_clip": st.sampled_from([None, 2.0]),
        "new_priority": st.sampled_from(["max_seen", "max_stored"]),
        "weight_normalization": st.sampled_from(["batch", "buffer", "mean", "none"]),
        "stratified": st.booleans(),
        "replacement": st.booleans(),
        "uniform_share": st.sampled_from([0.0, 0.0, 0.3, 0.5, 1.0]),
        "n_steps": st.sampled_from([1, 1, 3]),
        "gamma": st.just(0.5),
        "shared": st.booleans(),
    }
)
ENDS = st.lists(st.sampled_from(["", "", "", "done", "cut"]), min_size=3, max_size=3)
TD_ERRORS = st.floats(-5, 5, width=32)


class Buffers(stateful.RuleBasedStateMachine):
    @stateful.initialize(
        options=OPTIONS,
        space=st.sampled_from([BOX, DICT]),
        n_rows=st.integers(1, 9),
        n_envs=st.integers(1, 3),
        seed=st.integers(0, 2**32 - 1),
    )
    def make(self, options, space, n_rows, n_envs, seed):
        options["shared"] &= space is BOX and options["n_steps"] == 1  # else SB3 or we refuse it
        options["replacement"] |= options["uniform_share"] > 0
        self.naive = NaiveBuffer(options, n_rows, n_envs)
        kind = PrioritizedDictReplayBuffer if space is DICT else PrioritizedReplayBuffer
        ours = {name: value for name, value in options.items() if name != "shared"}
        storage = {"handle_timeout_termination": not options["shared"]}
        if options["shared"]:
            storage["optimize_memory_usage"] = True
        np.random.seed(seed)  # noqa: NPY002  # where buffers take their seed from
        # Not a multiple of the environments: the rest is cut off.
        size = n_rows * n_envs + n_envs - 1
        self.buffer = kind(size, space, TWO_ACTIONS, "cpu", n_envs=n_envs, **ours, **storage)
        self.next_step, self.batches = 0, []

    @stateful.rule(rows=st.lists(ENDS, min_size=1, max_size=4))
    def add(self, rows):
        for ends in rows:
            step, self.next_step = self.next_step, self.next_step + 1
            ends = ends[: self.naive.n_envs]
            done_at, truncated_at = (
                {(step, env) for env, end in enumerate(ends) if end == kind}
                for kind in ("done", "cut")
            )
            fill(self.buffer, 1, first=step, done_at=done_at, truncated_at=truncated_at)
            self.naive.add(step, ends)

    @stateful.rule(n_rows=st.integers(1, 20))
    def extend(self, n_rows):
        envs = np.arange(self.naive.n_envs)
        steps = range(self.next_step, self.next_step + n_rows)
        self.next_step += n_rows
        space = self.buffer.observation_space
        self.buffer.extend(
            [observation(space, step, len(envs)) for step in steps],
            [observation(space, step + 1, len(envs)) for step in steps],
            [(step + envs) % 2 for step in steps],
            [step + envs / 10 for step in steps],
            [np.zeros(len(envs), dtype=bool) for _ in steps],
            [[{}] * len(envs) for _ in steps],
        )
        for step in steps:
            self.naive.add(step, [""] * len(envs))

    @stateful.rule(batch_size=st.integers(1, 12))
    def sample(self, batch_size):
        sampleable = self.naive.sampleable()
        options = self.naive.options
        if len(sampleable) < (1 if options["replacement"] else batch_size):
            with pytest.raises(ValueError, match="needs at least"):
                self.buffer.sample(batch_size)
            return
        batch = self.buffer.sample(batch_size)
        slots = batch.slots.tolist()
        self.batches.append(slots)
        self.naive.sample(slots)
        assert set(slots) <= set(sampleable)
        assert options["replacement"] or len(set(slots)) == batch_size
        if options["replacement"]:
            expected = self.naive.weights(slots)
            np.testing.assert_allclose(batch.weights.flatten(), expected, rtol=1e-5)
        self.check_transitions(batch)

    def check_transitions(self, batch):
        now, then = batch.observations, batch.next_observations
        if isinstance(now, dict):
            now, then = now["vector"], then["vector"]
        for i, slot in enumerate(batch.slots.tolist()):
            first, env, last, total, is_done, n_taken = self.naive.transition(slot)
            assert now[i].tolist() == [first, env]
            assert then[i].tolist() == [last + 1, env] or (self.naive.options["shared"] and is_done)
            assert batch.rewards[i].item() == pytest.approx(total, rel=1e-5)
            assert bool(batch.dones[i]) == is_done
            if batch.discounts is not None:
                assert batch.discounts[i].item() == 0.5**n_taken

    @stateful.precondition(lambda self: self.batches)
    @stateful.rule(data=st.data())
    def update_a_batch(self, data):
        """The TD errors of any batch, however long ago it was sampled."""
        batch = data.draw(st.integers(0, len(self.batches) - 1))
        self.update(self.batches.pop(batch), data)

    @stateful.rule(data=st.data())
    def update_any(self, data):
        choice = st.integers(0, self.buffer.n_slots - 1)
        self.update(data.draw(st.lists(choice, max_size=6)), data)

    def update(self, slots, data):
        n_slots = len(slots)
        td_errors = data.draw(st.lists(TD_ERRORS, min_size=n_slots, max_size=n_slots))
        self.buffer.update_priorities(np.array(slots, dtype=np.int64), np.array(td_errors))
        self.naive.update(slots, td_errors)

    @stateful.rule()
    def update_with_nan(self):
        with pytest.raises(ValueError, match="got nan for slot 0"):
            self.buffer.update_priorities([0, 0], [1.0, np.nan])

    @stateful.rule(beta=st.floats(0, 1))
    def change_beta(self, beta):
        self.buffer.beta = self.naive.beta = beta

    @stateful.precondition(lambda self: self.next_step > 5)
    @stateful.rule()
    def reset(self):
        self.buffer.reset()
        self.naive.reset()

    @stateful.rule()
    def end_episodes(self):
        self.buffer.end_episodes()
        self.naive.end_episodes()

    @stateful.rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as folder:
            loaded = saved_and_loaded(self.buffer, Path(folder, "buffer"))
        assert_same_buffer(loaded, self.buffer)
        self.buffer = loaded
        self.naive.sampled, self.naive.stale = set(), set()  # a file does not know them

    @stateful.rule()
    def pickle_and_unpickle(self):
        file = io.BytesIO()
        save_to_pkl(file, self.buffer)
        file.seek(0)
        loaded = load_from_pkl(file)
        assert_same_buffer(loaded, self.buffer)
        self.buffer = loaded

    @stateful.invariant()
    def agrees(self):
        naive, buffer = self.naive, self.buffer
        assert (len(buffer), buffer.beta) == (naive.n_stored, naive.beta)
        assert buffer.n_sampleable == len(naive.sampleable())
        check_valid(buffer)
        assert buffer.prioritization.largest_priority == pytest.approx(
            naive.priorities.largest_seen
        )
        if naive.sampleable():
            shares = probabilities_in(buffer, np.arange(buffer.n_slots))
            np.testing.assert_allclose(shares, naive.priorities.probabilities(), rtol=1e-9)


TestBuffers = Buffers.TestCase
TestBuffers.settings = settings(
    max_examples=N_STEPS // STEPS_OF_A_RUN, stateful_step_count=STEPS_OF_A_RUN, deadline=None
)
