"""Arguments, options of prioritization and their defaults, and beta during training."""

import inspect
import pydoc
import re
import subprocess
import sys
import warnings
from math import inf

import pytest
from goal_line import Line
from models import ALL, PAIRS, SQUARED, Betas, Point, for_kinds, make
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.her import HerReplayBuffer

from sb3_per import (
    PAPER,
    PERDQN,
    PERQRDQN,
    PERSAC,
    PERCrossQ,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    Rainbow,
    RainbowKwargs,
)
from sb3_per.algorithms.networks import Parts, RainbowPolicy

# Constructors


@ALL
def test_signature_is_that_of_the_base(kind):
    ours, theirs = (dict(inspect.signature(one).parameters) for one in (kind, PAIRS[kind]))

    for name in ("double_q", "cuda_graphs"):
        assert ours.pop(name, None) is None or kind is PERDQN
    assert [*ours] == [*theirs]
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind), name
    assert "learning_starts:" in pydoc.plain(pydoc.render_doc(kind))


def test_import_without_docstrings():
    subprocess.run([sys.executable, "-OO", "-c", "import sb3_per"], check=True)


@for_kinds([*PAIRS, Rainbow])
def test_docstring_explains_every_argument(kind):
    text = inspect.getdoc(kind)
    # sb3-contrib's own docstring lacks one.
    missing = {"policy_delay"} if kind is PERCrossQ else set()

    for name in inspect.signature(kind).parameters.keys() - missing:
        assert text.count(f":param {name}:") == 1, name
    assert re.findall(r"alpha=([\d.]+)", text) == [str(kind.default_options["alpha"])]
    assert ":ref:" not in text  # to a page of SB3's site


def test_docstring_of_rainbow_names_its_parts():
    for name, value in vars(Parts()).items():
        assert f"``{name}={value}``" in Rainbow.__doc__
    assert vars(Parts()).keys() <= RainbowKwargs.__annotations__.keys()


def test_training_without_a_gradient_step_says_why():
    model = make(PERDQN, learning_starts=50)

    with pytest.warns(UserWarning, match=r"nothing was learned in 40 steps.*after 50"):
        model.learn(40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(60)
        make(PERDQN).learn(0)  # on purpose


def test_callback_may_look_at_batches():
    model = make(PERDQN, learning_starts=50)
    buffer = model.replay_buffer

    def callback(*_):
        return len(buffer) == 0 or buffer.sample(4) is not None

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(60, callback=callback)
        for _ in range(9):
            buffer.sample(4)
    with pytest.warns(UserWarning, match="10 batches were sampled"):
        buffer.sample(4)


class OwnAlpha(PERDQN):
    def __init__(self, *args, alpha, **kwargs):
        super().__init__(*args, **{**kwargs, "replay_buffer_kwargs": {"alpha": alpha}})


def test_subclass_may_name_its_own_argument_as_an_option():
    assert make(OwnAlpha, alpha=0.2).replay_buffer.alpha == 0.2
    with pytest.raises(
        ValueError, match=r"beta is an option: pass replay_buffer_kwargs=dict\(beta"
    ):
        make(OwnAlpha, alpha=0.2, beta=0.5)
    with pytest.raises(ValueError, match=r"noisy is an option: pass policy_kwargs=dict\(noisy"):
        make(Rainbow, noisy=False)


# SB3's pull request #1622 has a buffer of this name.
Foreign = type("PrioritizedReplayBuffer", (ReplayBuffer,), {})
CLIP = {"td_error_clip": "loss"}
LAP = {"prioritization": "lap"}


def network(**parts):
    return Rainbow, {"policy_kwargs": parts}


# What people pass by mistake, and what the message says. A row goes only with its message.
BAD_INPUTS = [
    (r"alpha .*replay_buffer_kwargs=dict\(alpha=...\)", PERDQN, {"alpha": 0.5}),
    (r"alpha .*replay_buffer_kwargs=dict\(alpha=...\)", PERSAC, {"alpha": 0.5}),
    (r"aplha.*alpha", PERDQN, {"options": {"aplha": 0.5}}),
    ("n_steps must be given to the algorithm", PERDQN, {"options": {"n_steps": 3}}),
    ("gamma must be given to the algorithm", PERDQN, {"options": {"gamma": 0.99}}),
    ("without goals", PERDQN, {"replay_buffer_class": HerReplayBuffer}),
    ("PrioritizedReplayBuffer", PERDQN, {"replay_buffer_class": PrioritizedDictReplayBuffer}),
    (r"must be sb3_per\.PrioritizedReplayBuffer", PERDQN, {"replay_buffer_class": Foreign}),
    ("td_error_clip must be a number or None for PERDQN", PERDQN, {"options": {**LAP, **CLIP}}),
    ("td_error_clip must be a number or None for PERSAC", PERSAC, {"options": CLIP}),
    ("td_error_clip must be a number", PERSAC, {"options": {**PAPER, **CLIP}}),
    ("td_error_clip must be a number", PERQRDQN, {"options": CLIP}),
    ("td_error_clip must be a number", Rainbow, {"options": CLIP}),
    (r"double_q must be one of \(True, False\), got 'no'", PERDQN, {"double_q": "no"}),
    ("cuda_graphs must be one of", PERDQN, {"cuda_graphs": "yes"}),
    ("cuda_graphs=True needs a CUDA device, got cpu", PERDQN, {"cuda_graphs": True}),
    ("PERDQN needs a DQNPolicy, got RainbowPolicy", PERDQN, {"policy": RainbowPolicy}),
    ("Rainbow needs a RainbowPolicy, got DQNPolicy", Rainbow, {"policy": DQNPolicy}),
    ("n_atoms must be 1 with 'lap' priorities.* got 51", Rainbow, {"options": LAP}),
    ("n_atoms must be a whole number of at least 1, got 0", *network(n_atoms=0)),
    (r"v_min must be below v_max, .* got 10.0 and 10.0", *network(v_min=10.0)),
    ("v_min must be below v_max, both finite, got -10.0 and inf", *network(v_max=inf)),
    (r"noisy_sigma must be a number in \[0, inf\], got -1.0", *network(noisy_sigma=-1.0)),
    (r"noisy must be one of \(True, False\), got 'no'", *network(noisy="no")),
    ("PERDQN needs discrete actions, got .*PERSAC and PERTD3", PERDQN, {"env": Point(False)}),
    ("Rainbow needs discrete actions, got .*PERSAC and PERTD3", Rainbow, {"env": Point(False)}),
    ("threshold'.* belongs in prioritization_kwargs", PERSAC, {"options": {"threshold": 2.0}}),
    ("dueling is an option of Rainbow", PERDQN, {"policy_kwargs": {"dueling": True}}),
    (r"no option 'n_atom': did you mean 'n_atoms'\?", *network(n_atom=51)),
]


@pytest.mark.parametrize(("message", "kind", "arguments"), BAD_INPUTS)
def test_bad_inputs_are_refused_by_name(message, kind, arguments):
    with pytest.raises((ValueError, AssertionError), match=message):
        make(kind, **arguments)


@pytest.mark.parametrize(
    ("message", "sources", "share"),
    [
        ("at least one transition", [], 0.5),
        (r"a dict of arrays \(np.load of a file\).* got str", ["nix.npz"], 0.5),
        ("share must be a number", [], 1.5),
    ],
)
def test_bad_demonstrations_are_refused_by_name(message, sources, share):
    with pytest.raises(ValueError, match=message):
        make().add_demonstrations(*sources, share=share)


class Mine(PrioritizedReplayBuffer):
    pass


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (None, PrioritizedReplayBuffer),
        (HerReplayBuffer, PrioritizedHerReplayBuffer),
        (Mine, Mine),
    ],
)
def test_buffer_class_is_ours_or_the_users(named, expected):
    has_dict = issubclass(expected, PrioritizedDictReplayBuffer)
    env, policy = (Line(), "MultiInputPolicy") if has_dict else (Point(True), "MlpPolicy")

    assert type(make(PERDQN, env, policy, replay_buffer_class=named).replay_buffer) is expected


# Defaults

BETA = {"prioritization": "proportional", "alpha": 0.6, "beta": (0.4, 1.0)}
HALF_UNIFORM = {"uniform_share": 0.5, "weight_normalization": "mean"}
EXPECTED = {
    "paper": {**BETA, "td_error_clip": None, "uniform_share": 0, "weight_normalization": "batch"},
    "half uniform": {**BETA, **HALF_UNIFORM, "td_error_clip": None},
    "full correction": {
        "prioritization": "proportional",
        "alpha": 1.0,
        "beta": 1.0,
        "td_error_clip": 1.0,
        "uniform_share": 0.5,
        "weight_normalization": "none",
    },
    "lap": {"prioritization": "lap", "alpha": 0.4, "beta": 0.0, "uniform_share": 0},
}


def check_options(model, name, **changed):
    """The model stores these options, and its buffer has them."""
    expected = {**EXPECTED[name], **changed}
    assert expected.items() <= model.replay_buffer_kwargs.items()
    assert expected.items() <= model.replay_buffer.arguments().items()


@ALL
def test_default_options(kind):
    name = "full correction" if kind is PERDQN else "lap" if kind in SQUARED else "half uniform"

    check_options(make(kind), name)
    check_options(make(kind, options={"alpha": 0.3}), name, alpha=0.3)
    check_options(make(kind, options=PAPER), "paper")


@ALL
def test_another_prioritization_has_defaults_of_its_own(kind):
    check_options(make(kind, options={"prioritization": "rank"}), "paper", prioritization="rank")
    if kind in SQUARED:
        check_options(make(kind, options={"prioritization": "proportional"}), "paper")
    else:
        check_options(make(kind, options={"prioritization": "lap"}), "lap")


@ALL
def test_loss_threshold_follows_the_prioritization(kind):
    lap = {"prioritization": "lap", "prioritization_kwargs": {"threshold": 0.5}}

    assert make(kind, options=PAPER).loss_threshold == (1.0 if kind is PERDQN else None)
    assert make(kind, options=lap).loss_threshold == 0.5


def test_changed_paper_settings_leave_the_defaults_alone(monkeypatch):
    monkeypatch.setitem(PAPER, "alpha", 0.9)

    for kind, prioritization in [(PERDQN, "rank"), (PERSAC, "rank"), (PERSAC, "proportional")]:
        assert make(kind, options={"prioritization": prioritization}).replay_buffer.alpha == 0.6


# Beta


@ALL
def test_beta_rises_in_every_algorithm(kind):
    assert make(kind, options={"beta": (0.1, 0.7)}).learn(40).replay_buffer.beta == 0.7


@pytest.mark.parametrize(
    ("beta", "last"),
    [((0.4, 1.0), 1.0), ((0.4, 1.0, 1000), 0.7), (lambda r: 1 - r, 1.0)],
    ids=["pair", "1000 steps", "function"],
)
def test_beta_never_falls_over_five_calls_of_learn(beta, last):
    model, betas = make(options={"beta": beta}), []
    for _ in range(5):
        callback = Betas()
        model.learn(100, callback=callback, reset_num_timesteps=False)
        betas += callback.betas.values()

    assert len(betas) > 400
    assert betas == sorted(betas)
    assert model.replay_buffer.beta == pytest.approx(last)


def test_beta_starts_again_with_a_new_training():
    model = make(options={"beta": (0.2, 1.0)}).learn(100)
    model.learn(100, callback=(callback := Betas()))

    assert callback.betas[50] == pytest.approx(0.6)


def test_beta_may_be_changed_between_calls_of_learn():
    model = make().learn(40)
    for beta, last in ((0, 0.0), ([0.2, 0.6], 0.6)):
        model.replay_buffer_kwargs["beta"] = beta
        assert model.learn(40).replay_buffer.beta == last


def test_beta_function_sees_no_progress_beyond_the_end():
    """SB3 finishes its last rollout, also beyond ``total_timesteps``."""
    seen = []
    options = {"beta": lambda left: seen.append(left) or 1 - left}
    model = make(options=options, train_freq=(1, "episode"))

    model.learn(100)

    assert model.num_timesteps > 100
    assert min(seen) == 0


# sb3-contrib is an extra


def test_without_contrib_the_others_can_be_imported():
    code = (
        "import sys; sys.modules['sb3_contrib'] = None; import sb3_per; from sb3_per import *;"
        "assert 'PERTQC' not in dir(sb3_per), PERSAC.__name__;"
        "sb3_per.PERTQC"
    )

    run = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)

    assert 'ImportError: sb3_per.PERTQC needs sb3-contrib: pip install ".[contrib]"' in run.stderr
