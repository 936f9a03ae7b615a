"""What a prioritized buffer can be told: defaults, checks, and where the options can be read."""

import inspect

import numpy as np
import pytest
import torch as th
from builders import BOX, DICT, TWO_ACTIONS, fill
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.options import OPTION_NAMES, PrioritizationOptions, beta_at
from sb3_per.prioritization.proportional import Proportional
from sb3_per.prioritization.sum_tree import SampledSlots

MEMORY_OPTIMISED = {"optimize_memory_usage": True, "handle_timeout_termination": False}


def make(n_rows=0, *, size=64, space=BOX, **options):
    return fill(PrioritizedReplayBuffer(size, space, TWO_ACTIONS, "cpu", **options), n_rows)


LAP = {"prioritization": "lap"}
BAD_OPTIONS = [
    ("prioritization", {"prioritization": "median"}),
    ("prioritization", {"prioritization": ["rank"]}),
    ("prioritization_kwargs", {"prioritization_kwargs": [1]}),
    *[("alpha", {"alpha": value}) for value in (-0.1, 1.5, np.nan, "0.7", np.array([0.2, 0.5]))],
    *[("eps", {"eps": value}) for value in (0.0, -1.0, np.inf, "small")],
    *[("td_error_clip", {"td_error_clip": value}) for value in (0.0, -1.0, np.nan, True, "loss")],
    *[("uniform_share", {"uniform_share": value}) for value in (1.5, "half", np.True_)],
    ("uniform_share", {"uniform_share": 0.1, "replacement": False}),
    *[("initial_priority", {"initial_priority": value}) for value in (0.0, np.inf)],
    ("new_priority", {"new_priority": "mean"}),
    ("weight_normalization", {"weight_normalization": "sum"}),
    ("stratified", {"stratified": "no"}),
    ("replacement", {"replacement": None}),
    ("eps", {"prioritization": "rank", "eps": 0.1}),
    ("eps", {**LAP, "eps": 0.1}),
    ("threshold", {**LAP, "prioritization_kwargs": {"threshold": 0}}),
    ("td_error_clip", {**LAP, "td_error_clip": 1.0}),
    *[("buffer_size", {"size": value}) for value in (0, 1e3)],
    ("n_envs", {"n_envs": 0}),
    *[("n_steps", {"n_steps": value}) for value in (0, 2.5, True)],
    ("n_steps", {"n_steps": 3, **MEMORY_OPTIMISED}),
    *[("gamma", {"gamma": value}) for value in (1.5, -0.5, True)],
    *[("n_stack", {"n_stack": value}) for value in (0, 2.0, "4")],
    ("n_stack", {"n_stack": 2, **MEMORY_OPTIMISED}),
    ("optimize_memory_usage", {"optimize_memory_usage": "no"}),
    ("PrioritizedDictReplayBuffer", {"space": DICT}),
]


@pytest.mark.parametrize(("name", "options"), BAD_OPTIONS)
def test_bad_options_are_refused_by_name(name, options):
    with pytest.raises(ValueError, match=name):
        make(**options)


BAD_BETAS = [-0.1, 1.01, np.nan, "0.4", True, None, (), (0.4,), (0.4, 1.1), (0.4, "1"), (0.4, 1, 0)]
BAD_BETAS += [(0.4, 1, 0.5), (0.4, 1, 9, 9), {"first": 0.4}, lambda remaining: 2 - remaining / 2]


@pytest.mark.parametrize("beta", BAD_BETAS)
def test_a_bad_beta_is_refused(beta):
    with pytest.raises(ValueError, match="beta"):
        make(beta=beta)


@pytest.mark.parametrize("beta", [-0.1, 1.01, np.nan, "0.4", (0.4, 1.0), None])
def test_a_bad_beta_that_is_set_or_sampled_with_changes_nothing(beta):
    buffer = make(10, beta=0.5)
    before = buffer.generator.bit_generator.state

    with pytest.raises(ValueError, match="beta"):
        buffer.beta = beta
    if beta is not None:  # which stands for the buffer's own
        with pytest.raises(ValueError, match="beta"):
            buffer.sample(4, beta=beta)

    assert buffer.beta == 0.5
    assert buffer.generator.bit_generator.state == before


@pytest.mark.parametrize(
    ("beta", "at_progress", "at_steps"),
    [
        (0.5, [0.5, 0.5, 0.5], [0.5, 0.5]),
        ((0.4, 1.0), [0.4, 0.55, 1.0], [0.4, 0.4]),
        ([0.8, 0.2], [0.8, 0.65, 0.2], [0.8, 0.8]),
        ((0.4, 1.0, 100), [0.4, 0.4, 0.4], [0.7, 1.0]),  # of the steps alone
        (lambda remaining: remaining**2, [1.0, 0.5625, 0.0], [1.0, 1.0]),
    ],
)
def test_beta_is_a_number_a_pair_a_triple_or_a_function(beta, at_progress, at_steps):
    assert [beta_at(beta, progress) for progress in (0, 0.25, 1)] == pytest.approx(at_progress)
    assert [beta_at(beta, 0, n_steps) for n_steps in (50, 300)] == pytest.approx(at_steps)
    assert make(beta=beta).beta == at_progress[0]
    assert make(beta=beta).options.beta == beta


def test_a_function_for_beta_is_checked_whenever_it_is_called():
    with pytest.raises(ValueError, match=r"beta .* got 1.5"):
        beta_at(lambda remaining: 1.5 - remaining, progress=1.0)


OTHER_OPTIONS = {
    "prioritization": "rank",
    "prioritization_kwargs": {"threshold": 1.0},
    "alpha": 0.7,
    "eps": 0.1,
    "td_error_clip": 1.0,
    "uniform_share": 0.5,
    "initial_priority": 2.0,
    "new_priority": "max_stored",
    "weight_normalization": "buffer",
    "demonstration_share": 0.0,
    "demonstration_bonus": 0.5,
    "stratified": False,
    "replacement": False,
}


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_options_are_read_only_attributes(name):
    buffer = make(5)
    if name != "prioritization":  # the object, in the buffer
        assert getattr(buffer, name) == getattr(buffer.options, name) == buffer.arguments()[name]

    for one in (buffer, buffer.options):
        value = getattr(one, name)
        with pytest.raises(AttributeError):
            setattr(one, name, OTHER_OPTIONS[name])
        assert getattr(one, name) is value


def test_the_constructor_has_every_option_with_the_default_of_the_dataclass():
    shown = inspect.signature(PrioritizedReplayBuffer).parameters

    assert {*OTHER_OPTIONS, "beta"} == {*OPTION_NAMES}
    defaults = {name: shown[name].default for name in OPTION_NAMES}
    assert {**defaults, "prioritization_kwargs": {}} == vars(PrioritizationOptions())


def test_arguments_of_sb3s_buffer_come_first_in_its_order_with_its_defaults():
    theirs, ours = (
        inspect.signature(kind).parameters for kind in (ReplayBuffer, PrioritizedReplayBuffer)
    )

    assert [*ours][: len(theirs)] == [*theirs]
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind), name


def test_arguments_make_the_same_buffer_again():
    options = {**OTHER_OPTIONS, "beta": (0.2, 0.9), "uniform_share": 0, "eps": 1e-6}
    options |= {"prioritization": "lap", "td_error_clip": 5.0, "frames_first": False, "n_stack": 2}
    buffer = make(handle_timeout_termination=False, **options)

    again = make(**buffer.arguments())

    assert again.options == buffer.options
    assert (
        again.arguments()
        == buffer.arguments()
        == {
            **options,
            "handle_timeout_termination": False,
            "storage_dir": None,
            "info_keys": [],
        }
    )


def test_repr_shows_size_prioritization_alpha_and_beta():
    text = repr(make(5, size=10, n_envs=2, prioritization="rank", alpha=0.7, beta=(0.3, 1.0)))

    assert text == (
        "PrioritizedReplayBuffer(10 of 10 transitions, prioritization=rank, alpha=0.7, beta=0.3)"
    )
    assert "prioritization=Proportional" in repr(make(prioritization=Proportional))
    assert repr(PrioritizedDictReplayBuffer(9, DICT, TWO_ACTIONS)).startswith("PrioritizedDict")


# Classes of the user's own


class AsDocumented(Proportional):
    """Takes what the documentation says, and nothing else."""

    def __init__(
        self, n_slots, *, alpha, eps, td_error_clip, initial_priority, new_priority, power
    ):
        super().__init__(n_slots, alpha=alpha * power, eps=eps)
        self.rest = (td_error_clip, initial_priority, new_priority)


def test_a_class_of_the_users_own_gets_the_documented_options():
    own = {"prioritization": AsDocumented, "prioritization_kwargs": {"power": 0.5}}
    buffer = make(4, **own, alpha=0.3, weight_normalization="buffer")

    assert buffer.prioritization.alpha == 0.15
    assert buffer.prioritization.rest == (None, 1.0, "max_seen")
    assert buffer.sample(2).weights.max() <= 1


class Newest:
    """Inherits nothing, and has a ``sample`` in place of a tree: always the newest transition."""

    largest_priority = 1.0

    def __init__(self, n_slots, **options):
        self.newest, self.updates, self.options = None, [], options

    def insert(self, slots):
        self.newest = slots[-1]

    def update(self, slots, td_errors):
        self.updates.append((slots.tolist(), td_errors.tolist()))

    def probabilities(self, slots):
        return (slots == self.newest).astype(np.float64)

    def sample(self, scheme, batch_size, uniforms, *, with_smallest):
        assert len(uniforms) == scheme.n_uniforms(batch_size)
        smallest = 1.0 if with_smallest else np.nan
        return SampledSlots(np.full(batch_size, self.newest), np.ones(batch_size), smallest)


@pytest.mark.parametrize("options", [{}, {"uniform_share": 0.5}, {"stratified": False}])
@pytest.mark.parametrize("normalization", ["batch", "buffer"])
def test_a_class_of_the_users_own_may_have_its_own_sample(normalization, options):
    buffer = make(7, prioritization=Newest, beta=1, weight_normalization=normalization, **options)
    assert set(buffer.prioritization.options) == {*vars(PrioritizationOptions()).keys()} & {
        *("alpha", "eps", "td_error_clip", "initial_priority", "new_priority")
    }

    batch = buffer.sample(4)
    buffer.update_priorities(batch.slots[:1], [0.5])

    n_newest = 2 if options.get("uniform_share") else 4
    assert batch.observations[:n_newest, 0].tolist() == [6] * n_newest
    assert buffer.prioritization.updates == [([6], [0.5])]
    assert th.isfinite(batch.weights).all()
