"""What a prioritized buffer can be told: defaults, checks, and where the options can be read."""

import inspect
import pydoc
from collections import UserList
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch as th
from builders import DICT, MEMORY_OPTIMISED
from builders import make_buffer as make
from goal_line import GOAL_SPACE, Line, goal_envs
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.options import (
    PrioritizationKwargs,
    PrioritizationOptions,
    ReplayBufferKwargs,
    beta_at,
)
from sb3_per.prioritization.sum_tree import SumTree


def her(n_slots, space, actions, device, n_envs, env=None, **options):
    env = env or goal_envs(1)
    return PrioritizedHerReplayBuffer(n_slots, space, actions, env, device, n_envs, **options)


HER = {"kind": her, "space": GOAL_SPACE}
BETAS = [1.01, np.nan, "0.4", None, (0.4,), (0.4, 1.1), (0.4, 1, 0), ["0.4", 1], {"first": 0.4}]
BETAS += [lambda remaining: 2.0, (1.0, 0.4), (0.5, 0.4, 100)]
TYPOS = {"prioritisation": "prioritization", "alpah": "alpha", "aplha": "alpha"}
TYPOS |= {"replacment": "replacement", "uniform_shar": "uniform_share"}
# A near name would be a wrong one.
OF_OTHERS = ["beta_increment", "per_beta_increment", "beta_initial", "prior_eps", "priority_eps"]
OF_OTHERS += ["priority_exponent", "per_epsilon", "prioritized_replay"]
# What people pass by mistake, and what the message says. A row goes only with its message.
BAD_INPUTS = [
    ("prioritization", {"prioritization": "median"}),
    ("prioritization_kwargs", {"prioritization_kwargs": [1]}),
    *[("alpha", {"alpha": value}) for value in (-0.1, np.nan, "0.7")],
    *[("beta", {"beta": value}) for value in BETAS],
    ("eps", {"eps": 0.0}),
    *[("td_error_clip", {"td_error_clip": value}) for value in (0.0, True, "loss")],
    ("uniform_share", {"uniform_share": 1.5}),
    ("uniform_share", {"uniform_share": 0.1, "replacement": False}),
    ("initial_priority", {"initial_priority": np.inf}),
    ("new_priority", {"new_priority": "mean"}),
    ("weight_normalization", {"weight_normalization": "sum"}),
    ("stratified", {"stratified": "no"}),
    ("replacement", {"replacement": None}),
    ("threshold", {"prioritization": "lap", "prioritization_kwargs": {"threshold": 0}}),
    ("td_error_clip", {"prioritization": "lap", "td_error_clip": 1.0}),
    *[("buffer_size", {"size": value}) for value in (0, 1e3)],
    *[("n_steps", {"n_steps": value}) for value in (0, 2.5)],
    ("n_steps", {"n_steps": 3, **MEMORY_OPTIMISED}),
    ("gamma", {"gamma": 1.5}),
    ("n_stack", {"n_stack": 0}),
    ("n_stack", {"n_stack": 2, **MEMORY_OPTIMISED}),
    ("n_stack=2 must divide", {"n_stack": 2, "space": spaces.Box(0, 255, (5, 4, 3), np.uint8)}),
    ("n_stack=4 needs Box", {"n_stack": 4, "space": DICT}),
    ("pass spaces, such as env.observation_space, got 4", {"space": 4}),
    ("PrioritizedDictReplayBuffer", {"space": DICT, "kind": PrioritizedReplayBuffer}),
    ("info_keys must be a list of keys, got 'cost'", {"info_keys": "cost"}),
    *[(f"no option '{typo}': did you mean '{name}'", {typo: 0.5}) for typo, name in TYPOS.items()],
    *[
        (f"no option '{name}': the options are .* other libraries.*elsewhere", {name: 0.5})
        for name in OF_OTHERS
    ],
    ("n_steps", {**HER, "n_steps": 3}),
    ("optimize_memory_usage", {**HER, "optimize_memory_usage": True}),
    ("n_sampled_goal", {**HER, "n_sampled_goal": -1}),
    *[
        ("goal_selection_strategy", {**HER, "goal_selection_strategy": value})
        for value in ("past", None)
    ],
    ("desired_goal", {"kind": her}),
    ("compute_reward", {**HER, "env": make_vec_env("CartPole-v1")}),
    ("VecEnv", {**HER, "env": Line()}),
]


@pytest.mark.parametrize(("message", "options"), BAD_INPUTS)
def test_bad_inputs_are_refused_by_name(message, options):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("beta", [-0.1, np.nan, (0.4, 1.0)])
def test_setting_a_bad_beta_changes_nothing(beta):
    buffer = make(10, beta=0.5)
    before = buffer.generator.bit_generator.state

    with pytest.raises(ValueError, match="beta"):
        buffer.beta = beta
    with pytest.raises(ValueError, match="beta"):
        buffer.sample(4, beta=beta)

    assert buffer.beta == 0.5
    assert buffer.generator.bit_generator.state == before


@pytest.mark.parametrize(
    ("beta", "at_progress", "at_steps"),
    [
        (0.5, [0.5, 0.5, 0.5], [0.5, 0.5]),
        ((0.4, 1.0), [0.4, 0.55, 1.0], [0.4, 0.4]),
        ([0.2, 0.8], [0.2, 0.35, 0.8], [0.2, 0.2]),
        ((0.4, 1.0, 100), [0.4, 0.4, 0.4], [0.7, 1.0]),  # of the steps alone
        (np.array([0.4, 1.0, 100]), [0.4, 0.4, 0.4], [0.7, 1.0]),
        (UserList([0.2, 0.8]), [0.2, 0.35, 0.8], [0.2, 0.2]),  # such as Hydra's ListConfig
        (lambda remaining: remaining**2, [1.0, 0.5625, 0.0], [1.0, 1.0]),
    ],
)
def test_beta_is_a_number_a_pair_a_triple_or_a_function(beta, at_progress, at_steps):
    buffer = make(beta=beta)
    found = buffer.options.beta

    assert [beta_at(found, progress) for progress in (0, 0.25, 1)] == pytest.approx(at_progress)
    assert [beta_at(found, 0, n_steps) for n_steps in (50, 300)] == pytest.approx(at_steps)
    assert buffer.beta == at_progress[0]


OTHER_OPTIONS = {
    "prioritization": "rank",
    "prioritization_kwargs": {"threshold": 1.0},
    "alpha": 0.7,
    "beta": (0.2, 0.9),
    "eps": 0.1,
    "td_error_clip": 1.0,
    "uniform_share": 0.5,
    "initial_priority": 2.0,
    "new_priority": "max_stored",
    "weight_normalization": "buffer",
    "stratified": False,
    "replacement": False,
}


def test_options_are_declared_alike_for_checks_and_for_editors():
    declared = get_type_hints(PrioritizationOptions)
    typed = get_type_hints(PrioritizationKwargs)
    # "loss" becomes a number before a buffer is made.
    typed["td_error_clip"] = declared["td_error_clip"]

    assert [*typed] == [*declared] == [*OTHER_OPTIONS]
    assert typed == declared


def test_help_and_page_explain_every_option():
    text = pydoc.plain(pydoc.render_doc(PrioritizedReplayBuffer))
    page = Path(__file__).parents[2] / "docs" / "algorithms" / "index.md"
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| `")]

    for name in ReplayBufferKwargs.__annotations__:
        assert f":param {name}:" in text
        if name not in ("n_steps", "gamma"):  # an algorithm passes these
            assert any(f"`{name}`" in row for row in rows), name


def test_arguments_of_sb3s_buffer_come_first_and_in_order():
    theirs, ours = (
        inspect.signature(kind).parameters for kind in (ReplayBuffer, PrioritizedReplayBuffer)
    )

    assert [*ours][: len(theirs)] == [*theirs]
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind), name


WITHOUT_REPLACEMENT = {"uniform_share": 0.0}
WITH_SHARES = {"replacement": True, "weight_normalization": "mean"}


@pytest.mark.parametrize("possible", [WITHOUT_REPLACEMENT, WITH_SHARES])
def test_arguments_make_the_same_buffer_again(possible):
    options = {**OTHER_OPTIONS, **possible, "eps": 1e-6}
    options |= {"prioritization": "lap", "td_error_clip": 5.0, "n_stack": 2}
    options |= {"handle_timeout_termination": False, "info_keys": ["cost"]}

    buffer = make(**options)

    assert buffer.arguments() == make(**buffer.arguments()).arguments() == options
    assert "prioritization=lap, alpha=0.7, beta=0.2)" in repr(buffer)


# Classes of the user's own


class Newest:
    """Inherits nothing: it always samples the newest transition."""

    largest_priority, loss_threshold = 1.0, None

    def __init__(self, n_slots, **options):
        self.tree = SumTree(n_slots)
        self.updates, self.options = [], options

    def insert(self, slots):
        self.tree.clear()
        self.tree.set(slots[-1:], np.ones(1))

    def update(self, slots, td_errors):
        self.updates.append((slots.tolist(), td_errors.tolist()))

    def probabilities(self, slots):
        return self.tree.get(slots)

    def slots_at(self, leaves):
        return leaves

    def leaves_of(self, slots):
        return slots


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("normalization", ["batch", "buffer"])
def test_prioritization_class_gets_its_options(normalization, share):
    options = {"prioritization": Newest, "prioritization_kwargs": {"power": 2}, "alpha": 0.3}
    buffer = make(7, **options, beta=1, weight_normalization=normalization, uniform_share=share)
    shared = {"eps": 1e-6, "td_error_clip": None, "initial_priority": 1.0}
    shared |= {"alpha": 0.3, "new_priority": "max_seen"}
    assert buffer.prioritization.options == {**shared, "power": 2}

    batch = buffer.sample(4)
    buffer.update_priorities(batch.slots[:1], [0.5])

    n_newest = 2 if share else 4
    assert batch.observations[:n_newest, 0].tolist() == [6] * n_newest
    assert buffer.prioritization.updates == [([6], [0.5])]
    assert th.isfinite(batch.weights).all()
