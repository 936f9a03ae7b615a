"""Suites: what pydantic refuses, and the settings of each run."""

import pytest
import yaml
from pydantic import ValidationError
from small_suite import ENVIRONMENT, of_environment, suite, values

from sb3_per import PAPER, zoo
from sb3_per.compare import command
from sb3_per.compare.suite import (
    EPSILON,
    Suite,
    as_yaml,
    from_options,
    load,
    merged,
    runs_of,
    sections_of,
)

CARTPOLE = {
    "steps": 100,
    "evaluation": {"every": 10, "episodes": 1},
    "rl_zoo_section": "CartPole-v1",
}


def test_runs_are_the_whole_grid_seed_by_seed():
    environment = {**values()["environments"][ENVIRONMENT], "score": {"random": 0, "solved": 1}}

    runs = runs_of(suite(first_seed=5, environments={"B-v0": environment, "A-v0": environment}))

    keys = [(seed, name, env) for seed in (5, 6) for name in ("dqn", "per") for env in "BA"]
    assert [(run.seed, run.variant, run.environment[0]) for run in runs] == keys
    assert runs[2].settings["algorithm"] == "per_dqn"
    assert runs[2].settings["env_kwargs"] == {"n": 3}


def test_variant_may_have_fewer_seeds():
    variants = {"dqn": {"algorithm": "dqn"}, "per": {"algorithm": "per_dqn", "seeds": 1}}

    runs = runs_of(suite(first_seed=5, variants=variants))

    assert [(run.variant, run.seed) for run in runs] == [("dqn", 5), ("per", 5), ("dqn", 6)]


def test_overrides_are_merged_and_scale_multiplies():
    variants = {
        "dqn": {
            "algorithm": "dqn",
            "overrides": {"learning_rate": 1.0e-3, "policy_kwargs": {"activation": "x"}},
            "scale": {"learning_rate": 0.25, "buffer_size": 0.5},
        }
    }

    (run, _) = runs_of(suite(variants=variants))

    values = run.settings["hyperparameters"]
    assert values["learning_rate"] == 2.5e-4
    assert values["buffer_size"] == 250
    assert isinstance(values["buffer_size"], int)
    assert values["policy_kwargs"] == {"net_arch": [16], "activation": "x"}


@pytest.mark.parametrize(
    ("section", "change"),
    [("dict(a=1, b=2)", {"b": 3, "c": "x"}), ({"a": 1, "b": 2}, "dict(b=3, c='x')")],
)
def test_text_of_rl_zoo_is_merged_with_a_mapping(section, change):
    kwargs = merged({"policy_kwargs": section, "gamma": 0.5}, {"policy_kwargs": change})

    assert eval(kwargs.pop("policy_kwargs")) == {"a": 1, "b": 3, "c": "x"}  # noqa: S307  # as RL-Zoo
    assert kwargs == {"gamma": 0.5}
    wrappers = {"env_wrapper": {"b.B": {"n": 3}}}
    assert merged({"env_wrapper": "a.A"}, wrappers) == wrappers
    assert merged({"policy_kwargs": "dict(a=1)"}, {"policy_kwargs": "dict(b=2)"}) == {
        "policy_kwargs": "dict(b=2)"
    }


def test_rl_zoo_section_fills_in_hyperparameters():
    section = sections_of("dqn")["CartPole-v1"]
    environments = {"CartPole-v1": {**CARTPOLE, "hyperparameters": {"gamma": 0.5}}}

    filled = suite(environments=environments).environments["CartPole-v1"].hyperparameters

    assert filled == {**section, "gamma": 0.5}
    assert "n_timesteps" not in filled


def test_section_may_come_from_our_files():
    changed = of_environment(rl_zoo_file="rainbow", rl_zoo_section="atari")

    filled = Suite.model_validate(changed).environments[ENVIRONMENT].hyperparameters

    assert filled["frame_stack"] == 4


def test_saved_suite_is_the_same_without_rl_zoo(tmp_path, monkeypatch):
    before = suite(environments={"CartPole-v1": CARTPOLE})
    file = tmp_path / "suite.yml"
    file.write_text(as_yaml(before))
    monkeypatch.setattr("sb3_per.compare.suite.sections_of", lambda file: {})

    assert load(file) == before


@pytest.mark.parametrize("text", ["", "- dqn", "dqn"])
def test_file_without_a_mapping_is_refused(text, tmp_path):
    (tmp_path / "suite.yml").write_text(text)

    with pytest.raises(ValidationError, match="Input should be a valid dictionary"):
        load(tmp_path / "suite.yml")


ALIKE = {name: {"algorithm": "dqn", "label": "A"} for name in ("dqn", "per")}
SCALED = {"dqn": {"algorithm": "dqn", "scale": {"gamma": 0.5}}}
BOTH = {name: values()["environments"][ENVIRONMENT] for name in ("A-v0", "B-v0")}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (values(sedes=3), "sedes\n  Extra inputs are not permitted"),
        (values(baseline="none"), "there is no variant none"),
        (values(contrasts={"x": {"variant": "per", "over": "dnq"}}), "there is no variant dnq"),
        (values(variants={"../dqn": {"algorithm": "dqn"}}), "should match pattern"),
        (values(variants=SCALED), "scale needs a number"),
        (of_environment(hyperparameters={"n_timesteps": 77}), "write steps of the environment"),
        (of_environment(hyperparameters={"tau": float("inf")}), "tau must be finite, got inf"),
        (values(variants=ALIKE), "labels of variants must be different, got A, A"),
        (of_environment(hyperparameters={"learning_rate": "1E-3"}), "in YAML, write 0.001"),
        (of_environment(hyperparameters={"buffer_size": "1e5"}), r"in YAML, write 100000 \["),
        (values(environments=BOTH), "several environments need a score"),
        (of_environment(steps=100), "evaluation.every must divide steps"),
        (of_environment(score={"random": 1.0, "solved": 1.0}), "solved must be above random"),
        (of_environment(rl_zoo_section="NoSuchTask"), "must be in dqn.yml"),
        (
            of_environment(hyperparameters={"policy": "MlpPolicy", "n_envs": 4}),
            "n_envs must divide",
        ),
        (
            of_environment(hyperparameters={"policy": "MlpPolicy", "env_kwargs": {"n": 4}}),
            "env_kwargs belong to the environment",
        ),
    ],
)
def test_wrong_suites_are_refused(wrong, message):
    with pytest.raises(ValidationError, match=message):
        Suite.model_validate(wrong)


def test_from_options_takes_rl_zoos_settings_of_the_base():
    made = from_options("CartPole-v1", ["per_dqn", "dqn"], 50_000, 5)

    assert made.baseline == "per_dqn"
    assert made.environments["CartPole-v1"].evaluation.every == 2500
    assert made.environments["CartPole-v1"].threshold == 475
    shared = made.environments["CartPole-v1"].hyperparameters
    assert shared == sections_of("dqn")["CartPole-v1"]
    assert len(runs_of(made)) == 10


def test_from_options_takes_named_settings():
    made = from_options("CartPole-v1", ["rainbow", "per_dqn:paper"], 10_000, 1)

    shared = sections_of("dqn")["CartPole-v1"]
    rainbow, paper = (run.settings["hyperparameters"] for run in runs_of(made))
    support = {"v_min": -10.0, "v_max": 110.0}
    assert rainbow.pop("policy_kwargs") == f"{{**{shared['policy_kwargs']}, **{support}}}"
    assert {**shared, **dict.fromkeys(EPSILON)}.items() > rainbow.items()  # noise replaces it
    assert made.about.endswith("Rainbow's support is rainbow.yml's, from -10.0 to 110.0.")
    assert paper == shared | {"replay_buffer_kwargs": {**PAPER, "beta": [0.4, 1.0]}}
    assert [*map(made.label, made.variants)] == ["Rainbow", "PERDQN:paper"]
    with pytest.raises(ValueError, match=r"must be one of .*'paper'.* got 'papre'"):
        from_options("CartPole-v1", ["per_dqn:papre"], 1000, 1)


@pytest.mark.parametrize(
    ("environment", "algorithms", "section"),
    [
        ("CartPole", ["dqn"], "CartPole-v1 of dqn.yml"),  # the newest version
        ("MiniGrid-DoorKey-5x5-v0", ["dqn", "rainbow"], "MiniGrid-DoorKey-5x5-v0 of dqn.yml"),
        ("MiniGrid-Empty-8x8-v0", ["per_dqn"], "MiniGrid-DoorKey-5x5-v0 of dqn.yml"),
        ("MinAtar/Asterix-v1", ["rainbow", "dqn"], "MinAtar/Asterix-v1 of per_dqn.yml"),
        ("PongNoFrameskip-v4", ["dqn"], "atari of dqn.yml"),
        ("Pendulum-v1", ["per_sac"], "Pendulum-v1 of sac.yml"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*latest versioned environment")
def test_from_options_names_the_section_that_it_takes(environment, algorithms, section):
    zoo.register()
    pytest.importorskip({"Mi": "minigrid", "Po": "ale_py"}.get(environment[:2], "gymnasium"))

    made = from_options(environment, algorithms, 1000, 1)

    assert made.about.startswith(f"Hyperparameters: the section {section}")
    (shared,) = made.environments.values()
    assert shared.hyperparameters.get("learning_starts", 0) <= 100


def test_from_options_names_the_default_support():
    made = from_options(ENVIRONMENT, ["dqn", "rainbow"], 100, 1)

    assert "Rainbow's support is its default, from -10.0 to 10.0" in made.about


def test_from_options_chooses_a_policy_without_rl_zoos_settings():
    made = from_options(ENVIRONMENT, ["dqn"], 100, 1)

    assert made.environments[ENVIRONMENT].hyperparameters == {"policy": "MlpPolicy"}
    assert made.about.startswith("Hyperparameters: SB3's defaults with MlpPolicy")


def test_template_is_a_suite():
    template = load(command.TEMPLATE)

    assert template.name == "template"
    keys = set(yaml.safe_load(command.TEMPLATE.read_text()))
    commented = {"name", "first_seed", "contrasts"}
    assert keys | commented == set(Suite.model_fields)
