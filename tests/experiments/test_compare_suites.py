"""Suites: what is declared, and what is said of a wrong one."""

import re
from pathlib import Path

import grids
import gymnasium as gym
import pytest
import rl_zoo3
import yaml

from sb3_per import zoo
from sb3_per.experiments.cliffwalk import networks
from sb3_per.experiments.compare import command, suite_file
from sb3_per.experiments.compare.environment import Environment
from sb3_per.experiments.compare.hyperparameters import multiplied, overlaid
from sb3_per.experiments.compare.problems import Problems, SuiteError
from sb3_per.experiments.compare.suite import Contrast, Suite, Variant, cells
from sb3_per.experiments.compare.zoo_check import check_with_zoo

GOOD = """
about: Mine.
seeds: 2
baseline: dqn
environments:
  CartPole-v1:
    rl_zoo_section: CartPole-v1
    steps: 3000
    evaluation: {every: 1000, episodes: 5}
    score: {random: 22, solved: 475.0, source: mine}
    threshold: 475
variants:
  dqn: {algorithm: dqn}
  alpha_0: {algorithm: per_dqn, overrides: {replay_buffer_kwargs: {alpha: 0}}}
"""


def mine(folder, text=GOOD):
    path = folder / "mine.yml"
    path.write_text(text)
    return str(path)


def theirs():
    folder = Path(rl_zoo3.__file__).parent
    return yaml.safe_load((folder / "hyperparams" / "dqn.yml").read_text())


def leaves(values, path=()):
    """Each value that is no mapping, by the keys that lead there."""
    found = {}
    for key, value in values.items():
        below = leaves(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value}
        found |= below
    return found


def test_our_suites_are_there():
    ours = {"smoke", "classic", "sparse", "minatar", "pong", "ablation", "recipes", "million"}
    ours |= {"continuous_sac", "continuous_td3", "goals_dqn", "goals_sac"}
    ours |= {"confirm_dense", "confirm_rare", "sparse_qrdqn"}
    assert ours == set(suite_file.names())


@pytest.mark.parametrize("name", suite_file.names())
def test_rl_zoo_knows_all_that_a_suite_of_ours_names(name):
    if name.startswith("continuous"):
        pytest.importorskip("mujoco", reason="Hopper needs it")
    zoo.register()

    check_with_zoo(suite_file.load(name), name)


@pytest.mark.parametrize("name", suite_file.names())
def test_variants_differ_in_what_they_name_and_in_nothing_else(name):
    suite = suite_file.load(name)

    for cell in cells(suite):
        variant, environment = suite.variants[cell.variant], suite.environments[cell.environment]
        named = leaves(variant.overrides) | leaves(variant.scale)
        used = leaves(cell.settings["hyperparameters"])
        shared = leaves(environment.hyperparameters)
        assert {path: value for path, value in used.items() if path not in named} == {
            path: value for path, value in shared.items() if path not in named
        }
        assert used.keys() == shared.keys() | named.keys()
        shared = (environment.steps, environment.evaluation.model_dump())
        assert (cell.settings["steps"], cell.settings["evaluation"]) == shared
        assert cell.settings["env_kwargs"] == environment.env_kwargs


@pytest.mark.parametrize("environment", suite_file.load("classic").environments)
def test_classic_uses_rl_zoos_dqn_values_and_its_budget(environment):
    declared = suite_file.load("classic").environments[environment]

    published = theirs()[environment]
    assert declared.hyperparameters | {"n_timesteps": declared.steps} == published


def test_a_suite_may_take_the_sections_of_another_algorithms_file(tmp_path):
    text = GOOD.replace("CartPole-v1", "Pendulum-v1").replace("dqn", "sac")
    section = "    rl_zoo_section: Pendulum-v1"
    path = mine(tmp_path, text.replace(section, f"    rl_zoo_file: sac\n{section}"))

    suite = suite_file.load(path)
    suite_file.save(suite, tmp_path / "stored.yml")

    published = {"policy": "MlpPolicy", "learning_rate": 1e-3}
    assert suite.environments["Pendulum-v1"].hyperparameters == published
    assert cells(suite_file.load(str(tmp_path / "stored.yml"))) == cells(suite)
    zoo.register()
    check_with_zoo(suite, path)


def test_classic_is_two_by_two_and_rank_based():
    suite = suite_file.load("classic")
    variants = suite.variants

    assert list(variants) == ["dqn", "uniform", "per", "double", "double_per", "rank"]
    assert variants["per"].overrides == {}
    off = {"alpha": 0, "stratified": False}
    assert variants["uniform"].overrides == {
        "beta_initial": 0,
        "beta_final": 0,
        "replay_buffer_kwargs": off,
    }
    assert variants["double"].overrides == variants["uniform"].overrides | {"double_q": True}
    pairs = [(each.variant, each.over) for each in suite.contrasts.values()]
    assert pairs == [
        ("per", "uniform"),
        ("double_per", "double"),
        ("double", "uniform"),
        ("double_per", "per"),
    ]


def test_blind_cliffwalk_tries_the_recipes_of_the_comparison_with_rare_rewards():
    overrides = {
        name: {"beta_initial": 0.4, "beta_final": 1.0} | networks.METHODS[method].arguments
        for name, method in {"matched": "recipe_1", "annealed": "recipe_2"}.items()
    }

    variants = suite_file.load("confirm_rare").variants

    assert overrides == {name: variants[name].overrides for name in overrides}


def test_the_suite_of_the_documentation_can_be_run(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)

    suite = suite_file.load(mine(tmp_path, text))

    zoo.register()
    check_with_zoo(suite, "compare.md")
    shown = suite.variants["recommended"].overrides["replay_buffer_kwargs"]
    recipe = networks.METHODS["recipe_2"].arguments["replay_buffer_kwargs"]
    assert {"alpha": 0.6} | shown == recipe


def test_a_grid_is_ordered_by_seeds_so_that_a_part_of_it_is_balanced():
    suite = grids.suite(environments=("A-v0", "B-v0"), variants=("dqn", "per"), seeds=2)

    first, second = cells(suite)[:4], cells(suite)[4:]

    assert {(cell.variant, cell.environment) for cell in first} == {
        (variant, environment) for variant in ("dqn", "per") for environment in ("A-v0", "B-v0")
    }
    assert [cell.seed for cell in first + second] == [0] * 4 + [1] * 4


def test_overrides_reach_into_mappings_and_replace_all_else():
    base = {"gamma": 0.9, "net": {"width": 8, "depth": 2}, "kwargs": "dict(a=1)", "layers": [8]}

    top = overlaid(base, {"net": {"width": 16}, "kwargs": "dict(b=2)", "layers": [4, 4]})

    assert top == {
        "gamma": 0.9,
        "net": {"width": 16, "depth": 2},
        "kwargs": "dict(b=2)",
        "layers": [4, 4],
    }
    assert base["net"]["width"] == 8


def test_a_dict_within_a_list_or_a_mapping_of_text_is_read_too():
    text = "dict(a=[dict(b=1)], c={'d': dict(e=2)})"

    top = overlaid({"kwargs": text}, {"kwargs": {"f": 3}})

    assert top == {"kwargs": {"a": [{"b": 1}], "c": {"d": {"e": 2}}, "f": 3}}


@pytest.mark.parametrize(
    "text", ["dict(a=1, b=dict(c=[2], d={3: 4}))", " {'a': 1, 'b': {'c': [2], 'd': {3: 4}}}"]
)
def test_a_mapping_over_text_that_rl_zoo_evaluates_leaves_the_rest_of_it(text):
    top = overlaid({"kwargs": text}, {"kwargs": {"b": {"c": [5]}, "e": 6}})

    assert top == {"kwargs": {"a": 1, "b": {"c": [5], "d": {3: 4}}, "e": 6}}


@pytest.mark.parametrize(
    "text",
    ["dict(activation_fn=nn.ReLU)", "make(a=1)", "dict([('a', 1)])", "[1]", "{[]: 1}", "dict(", ""],
)
def test_a_mapping_never_replaces_text_unread(text):
    with pytest.raises(Problems, match="kwargs must be text, not a mapping, since it replaces"):
        overlaid({"kwargs": text}, {"kwargs": {"b": 2}})


def test_another_optimizer_keeps_the_network(tmp_path):
    plain = "{policy_kwargs: {optimizer_kwargs: {fused: false}}}"
    suite = suite_file.load(
        mine(tmp_path, GOOD.replace("{replay_buffer_kwargs: {alpha: 0}}", plain))
    )

    used = {cell.variant: cell.settings["hyperparameters"] for cell in cells(suite)}

    assert used["dqn"]["policy_kwargs"] == "dict(net_arch=[256, 256])"  # RL-Zoo's
    assert used["alpha_0"]["policy_kwargs"] == {
        "net_arch": [256, 256],
        "optimizer_kwargs": {"fused": False},
    }


def test_a_scaled_hyperparameter_is_a_multiple_of_the_environments_own(tmp_path):
    text = GOOD + "  quarter: {algorithm: dqn, scale: {learning_rate: 0.25}}\n"

    suite = suite_file.load(mine(tmp_path, text))

    rate = theirs()["CartPole-v1"]["learning_rate"]
    rates = {cell.variant: cell.settings["hyperparameters"] for cell in cells(suite)}
    assert rates["quarter"]["learning_rate"] == rate / 4
    assert rates["dqn"]["learning_rate"] == rate


@pytest.mark.parametrize(("batch_size", "factor"), [(64, 0.5), (100, 0.29)])
def test_a_whole_number_stays_whole_when_it_is_scaled(tmp_path, batch_size, factor):
    half = f"overrides: {{batch_size: {batch_size}}}, scale: {{batch_size: {factor}}}"
    text = GOOD + f"  half: {{algorithm: dqn, {half}}}\n"

    suite = suite_file.load(mine(tmp_path, text))

    (scaled,) = {
        cell.settings["hyperparameters"]["batch_size"]
        for cell in cells(suite)
        if cell.variant == "half"
    }
    assert isinstance(scaled, int)
    assert scaled == round(batch_size * factor)


def test_a_number_that_counts_nothing_may_be_scaled_to_a_part(tmp_path):
    part = "overrides: {max_grad_norm: 10}, scale: {max_grad_norm: 0.25}"

    suite = suite_file.load(mine(tmp_path, GOOD + f"  part: {{algorithm: dqn, {part}}}\n"))

    norms = [cell.settings["hyperparameters"].get("max_grad_norm") for cell in cells(suite)]
    assert norms == [None, None, 2.5] * 2


def test_a_mapping_may_be_merged_from_one_that_was_merged_itself(tmp_path):
    # At another depth, PyYAML merges "deep" for the second time before it has built it.
    merged = """
  one: {algorithm: per_dqn, overrides: {replay_buffer_kwargs: &base {alpha: 0.9, eps: 0.1}}}
  two: {algorithm: per_dqn, overrides: {replay_buffer_kwargs: &deep {<<: *base, alpha: 0.3}}}
  three: {algorithm: per_dqn, overrides: {<<: *deep, gamma: 0.5}}
"""

    variants = suite_file.load(mine(tmp_path, GOOD + merged)).variants

    assert variants["two"].overrides == {"replay_buffer_kwargs": {"alpha": 0.3, "eps": 0.1}}
    assert variants["three"].overrides == {"alpha": 0.3, "eps": 0.1, "gamma": 0.5}


def test_a_saved_suite_is_read_back_without_rl_zoos_file(tmp_path, monkeypatch):
    suite = suite_file.load(mine(tmp_path))
    suite_file.save(suite, tmp_path / "saved.yml")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    saved = suite_file.load(str(tmp_path / "saved.yml"))
    assert saved.model_dump() == suite.model_dump()
    assert cells(saved) == cells(suite)
    assert list(saved.variants) == ["dqn", "alpha_0"]  # the order of the figures


def test_an_unknown_suite_is_answered_with_the_known_ones():
    with pytest.raises(SuiteError, match=r"no suite 'clasic' \(there are ablation, classic, "):
        suite_file.load("clasic")


WRONG = {
    "a key is missing": ("about: Mine.\n", "", "about is missing"),
    "a key is unknown": ("about:", "abuot: x\nabout:", "abuot is unknown; did you mean about? ("),
    "an unknown key, deep below": (
        "episodes: 5}", "episodes: 5, evry: 3}",
        "CartPole-v1.evaluation.evry is unknown; did you mean every? (known: every, episodes)"),
    "an unknown key of a variant": ("dqn: {algorithm: dqn}", "dqn: {algorithm: dqn, lable: DQN}",
                                    "variants.dqn.lable is unknown; did you mean label? ("),
    "a key stands twice": ("seeds: 2", "seeds: 2\nseeds: 3", "two keys 'seeds'"),
    "no YAML": ("seeds: 2", "seeds: [2", "while parsing a flow sequence"),
    "no mapping": ("evaluation: {every: 1000, episodes: 5}", "evaluation: 5",
                   "environments.CartPole-v1.evaluation must be a mapping, got 5"),
    "another kind": ("steps: 3000", "steps: 3e3",
                     "environments.CartPole-v1.steps must be a whole number, got '3e3'"),
    "truth is no number": ("seeds: 2", "seeds: true", "seeds must be a whole number, got True"),
    "none": ("seeds: 2", "seeds: 0", "seeds must be at least 1, got 0"),
    "a seed below": ("seeds: 2", "seeds: 2\nfirst_seed: -1",
                     "first_seed must be at least 0, got -1"),
    "a name that is a number": ("  dqn: {", "  1: {", "variants.1 must be text"),
    "a name that is no folder": ("  dqn: {", "  a/b: {", "variants.a/b must be named by letters"),
    "the report's folder": ("  dqn: {", "  report: {", "variants.report must be named"),
    "no baseline": ("baseline: dqn", "baseline: per",
                    "baseline must be one of the variants dqn, alpha_0, got 'per'"),
    "uneven evaluations": ("every: 1000", "every: 700", "evaluation.every must go into steps"),
    "too few evaluations": ("every: 1000", "every: 1500", "evaluation.every must go into steps"),
    "anchors": ("solved: 475.0", "solved: 22.0", "score.solved must be larger than random (22.0)"),
    "no such section": ("section: CartPole-v1", "section: CartPole",
                        "rl_zoo_section must be one of RL-Zoo's dqn.yml: default, atari"),
    "no such file": ("rl_zoo_section:", "rl_zoo_file: sca\n    rl_zoo_section:",
                     "rl_zoo_file must be one of RL-Zoo's files: a2c, "),
    "a section of another file": ("rl_zoo_section:", "rl_zoo_file: sac\n    rl_zoo_section:",
                                  "rl_zoo_section must be one of RL-Zoo's sac.yml: default, "),
    "no policy": ("rl_zoo_section: CartPole-v1", "hyperparameters: {gamma: 0.9}",
                  "hyperparameters must hold a policy"),
    "a number as text": ("{alpha: 0}}", "{alpha: 0}, learning_rate: 1e-3}",
                         "overrides.learning_rate must be a number, not text"),
    "a number as text, deeper": ("{alpha: 0}", "{eps: 1e-2}",
                                 "overrides.replay_buffer_kwargs.eps must be a number, not text"),
    "no such contrast": ("variants:", "contrasts: {gain: {variant: alpha_0, over: dqm}}\nvariants:",
                         "contrasts.gain.over must be one of the variants dqn, alpha_0, got 'dqm'"),
    "the suite's own": ("{alpha: 0}}", "{alpha: 0}, n_timesteps: 5}",
                        "variants.alpha_0.overrides.n_timesteps is set by the suite"),
    "a scale of text": ("dqn: {algorithm: dqn}", "dqn: {algorithm: dqn, scale: {policy: 2}}",
                        "variants.dqn.scale.policy must be a factor for a number"),
    "a scale of truth": ("dqn: {algorithm: dqn}",
                         "dqn: {algorithm: dqn, scale: {learning_rate: true}}",
                         "variants.dqn.scale.learning_rate must be a factor for a number"),
    "a scale that is no number": ("dqn: {algorithm: dqn}",
                                  "dqn: {algorithm: dqn, scale: {learning_rate: .nan}}",
                                  "variants.dqn.scale must be text, finite numbers, and"),
    "half a transition": ("dqn: {algorithm: dqn}",
                          "dqn: {algorithm: dqn, scale: {batch_size: 0.51}}",
                          "dqn.scale.batch_size must keep it whole; batch_size is 64, got 0.51"),
    "a scale beyond all": ("dqn: {algorithm: dqn}",
                           "dqn: {algorithm: dqn, scale: {batch_size: 1.0e+308}}",
                           "dqn.scale.batch_size must keep it finite; batch_size is 64"),
    "part of a text": ("{replay_buffer_kwargs: {alpha: 0}}",
                       "{policy: {a: 1}}",
                       "alpha_0.overrides.policy must be text, not a mapping, since it replaces"),
    "part of RL-Zoo's text": ("    steps: 3000",
                              "    steps: 3000\n    hyperparameters: {policy: {}}",
                              "CartPole-v1.hyperparameters.policy must be text, not a mapping"),
    "not finite": ("threshold: 475", "threshold: .nan",
                   "environments.CartPole-v1.threshold must be finite, got nan"),
    "infinite": ("solved: 475.0", "solved: .inf", "score.solved must be finite, got inf"),
    "a date that is none": ("about: Mine.", "about: 2024-13-45", "month must be in 1..12"),
    "the suite's file": ("  dqn: {", "  suite.yml: {", "variants.suite.yml must be named"),
    "nothing to compare": ("variants:",
                           "contrasts: {gain: {variant: dqn, over: dqn}}\nvariants:",
                           "contrasts.gain.over must be another variant, got 'dqn'"),
    "one environment by two names": (
        "variants:", GOOD[GOOD.index("  CartPole-v1:"):GOOD.index("variants:")].replace(
            "  CartPole-v1:", "  mine:CartPole-v1:") + "variants:",
        "environments.CartPole-v1 must be the only CartPole-v1"),
    "copies that are evaluated late": (
        "    steps: 3000", "    steps: 3000\n    hyperparameters: {n_envs: 7}",
        "CartPole-v1.hyperparameters.n_envs must go into evaluation.every (1000), got 7"),
    "copies of a variant": ("{alpha: 0}}", "{alpha: 0}, n_envs: 3}",
                            "alpha_0.overrides.n_envs must go into evaluation.every (1000), got 3"),
    "equal labels": ("dqn: {algorithm: dqn}", "dqn: {algorithm: dqn, label: alpha_0}",
                     "variants.dqn.label must be the only one, got 'alpha_0'"),
    "equal labels of contrasts": (
        "variants:", "contrasts: {a: {variant: alpha_0, over: dqn, label: gain}, "
        "b: {variant: dqn, over: alpha_0, label: gain}}\nvariants:",
        "contrasts.a.label must be the only one, got 'gain'"),
    "a name above": ("about: Mine.", "about: Mine.\nname: ../up",
                     "name must do as the name of a folder, got '../up'"),
    "no name": ("about: Mine.", "about: Mine.\nname: ''", "name must do as the name of a folder"),
    "a name that Matplotlib hides": ("  dqn: {", "  _dqn: {", "variants._dqn must be named by"),
    "a list of text": ("{replay_buffer_kwargs: {alpha: 0}}",
                       "{policy_kwargs: {net_arch: [64, 1e2]}}",
                       "overrides.policy_kwargs.net_arch must be a number, not text"),
    "a key that JSON turns into text": ("    steps: 3000",
                                        "    steps: 3000\n    env_kwargs: {rewards: {0: 1.0}}",
                                        "CartPole-v1.env_kwargs must be text, finite numbers, and"),
    "a date": ("    steps: 3000", "    steps: 3000\n    env_kwargs: {when: 2024-01-01}",
               "CartPole-v1.env_kwargs must be text, finite numbers, and"),
    "no number": ("{alpha: 0}}", "{alpha: 0}, learning_rate: .nan}",
                  "alpha_0.overrides must be text, finite numbers, and"),
    "a mapping in itself": ("{replay_buffer_kwargs: {alpha: 0}}",
                            "&own {replay_buffer_kwargs: *own}",
                            "alpha_0.overrides must be text, finite numbers, and"),
    "no truth": ("seeds: 2", "seeds: !!bool maybe", "KeyError: 'maybe'"),
    "no whole number": ("seeds: 2", "seeds: !!int", "IndexError: "),
    "no time": ("about: Mine.", "about: !!timestamp soon", "AttributeError: "),
    "too deep": ("seeds: 2", f"seeds: {'[' * 3000}", "RecursionError: "),
    "more than a float": ("threshold: 475", f"threshold: {10**400}", "threshold must be finite"),
    "a scale of more than a float": (
        "dqn: {algorithm: dqn}",
        "dqn: {algorithm: dqn, scale: {batch_size: 0.5}, "
        f"overrides: {{batch_size: {10**400}}}}}",
        "dqn.scale.batch_size must keep it finite"),
    "nothing to run": (GOOD[GOOD.index("  dqn: {"):], "  {}", "variants must not be empty"),
}  # fmt: skip


@pytest.mark.parametrize(("part", "wrong", "message"), WRONG.values(), ids=WRONG)
def test_an_error_names_file_and_key(tmp_path, part, wrong, message):
    assert part in GOOD

    with pytest.raises(SuiteError) as error:
        suite_file.load(mine(tmp_path, GOOD.replace(part, wrong)))

    assert str(error.value).startswith(str(tmp_path / "mine.yml"))
    assert message in str(error.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    wrong = GOOD.replace("about: Mine.\n", "abuot: Mine.\n").replace("seeds: 2", "seeds: 0")
    wrong = wrong.replace("baseline: dqn", "baseline: per").replace("every: 1000", "every: 700")
    wrong = wrong.replace("    threshold: 475\n", "").replace("{alpha: 0}", "{alpha: 1e-1}")
    wrong += "contrasts: {gain: {variant: alpha_0, over: dqm}}\n"

    with pytest.raises(SuiteError) as error:
        suite_file.load(mine(tmp_path, wrong))

    variants = "must be one of the variants dqn, alpha_0, got"
    environment = "environments.CartPole-v1"
    evenly = "must go into steps (3000) 3 times or more, evenly, got 700"
    rule = "must be a number, not text (1.0e-3, not 1e-3), got '1e-1'"
    keys = "name, about, seeds, first_seed, baseline, environments, variants, contrasts"
    assert str(error.value).splitlines() == [
        f"{tmp_path / 'mine.yml'} has 8 problems:",
        "  about is missing",
        "  seeds must be at least 1, got 0",
        f"  baseline {variants} 'per'",
        f"  {environment}.evaluation.every {evenly}",
        f"  {environment}.threshold is missing",
        f"  variants.alpha_0.overrides.replay_buffer_kwargs.alpha {rule}",
        f"  contrasts.gain.over {variants} 'dqm'",
        f"  abuot is unknown; did you mean about? (known: {keys})",
    ]


def test_all_names_that_rl_zoo_does_not_know_are_told_at_once(tmp_path):
    zoo.register()
    wrong = GOOD.replace("CartPole-v1:", "CartPol-v1:").replace("algorithm: dqn", "algorithm: dqm")
    suite = suite_file.load(mine(tmp_path, wrong.replace("{alpha: 0}", "{aplha: 0}")))

    with pytest.raises(SuiteError) as error:
        check_with_zoo(suite, "mine.yml")

    unknown = "is not known to RL-Zoo or gymnasium:"
    option = "variants.alpha_0.overrides.replay_buffer_kwargs.aplha"
    assert str(error.value).splitlines() == [
        "mine.yml has 3 problems:",
        f"  variants.dqn.algorithm {unknown} 'dqm'; did you mean dqn?",
        f"  {option} {unknown} 'aplha'; did you mean alpha?",
        f"  environments.CartPol-v1 {unknown} 'CartPol-v1'; did you mean CartPole-v1?",
    ]


UNKNOWN = {
    "an environment": ("  CartPole-v1:", "  CartPol-v1:", "environments.CartPol-v1 is not known"),
    "an algorithm": ("algorithm: dqn", "algorithm: dqm", "variants.dqn.algorithm is not known"),
    "a hyperparameter": ("{replay_buffer_kwargs: {alpha: 0}}", "{doubel_q: true}",
                         "alpha_0.overrides.doubel_q is not known"),
    "an option of the buffer": ("{alpha: 0}", "{aplha: 0}",
                                "overrides.replay_buffer_kwargs.aplha is not known"),
    "what all share": ("    steps: 3000", "    steps: 3000\n    hyperparameters: {gama: 1}",
                       "environments.CartPole-v1.hyperparameters.gama is not known"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("suite", "part", "package"),
    [
        ("minatar", "MinAtar", "minatar"),
        ("pong", "NoFrameskip", r'"sb3-per\[atari\]" \(in a clone: .*\)'),
    ],
)
def test_a_package_that_is_missing_is_named(monkeypatch, suite, part, package):
    zoo.register()
    installed = {name: spec for name, spec in gym.registry.items() if part not in name}
    monkeypatch.setattr(gym, "registry", installed)

    with pytest.raises(SuiteError, match=f"pip install {package}$"):
        check_with_zoo(suite_file.load(suite), suite)


@pytest.mark.parametrize(("part", "wrong", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_rl_zoo_does_not_know_is_named_before_anything_runs(tmp_path, part, wrong, message):
    zoo.register()
    suite = suite_file.load(mine(tmp_path, GOOD.replace(part, wrong)))

    with pytest.raises(SuiteError) as error:
        check_with_zoo(suite, "mine.yml")

    assert str(error.value).startswith("mine.yml: ")
    assert message in str(error.value)
    assert "did you mean" in str(error.value)


VALUES = {
    "an option of the buffer": ("{replay_buffer_kwargs: {alpha: 7}}", r"alpha .*\[0, 1\], got 7"),
    "an argument": ("{beta_initial: 2}", "beta_initial .*got 2"),
    "what RL-Zoo evaluates": ("{policy_kwargs: 'dict(net_arch=[8], depth=2)'}", "argument 'depth'"),
    "a wrapper": ("{env_wrapper: no.such.Wrapper}", "No module named 'no'"),
    "half a sample": ("{batch_size: 32.5}", "batch_size must be a whole number .* got 32.5"),
    "no batch": ("{batch_size: 0}", "batch_size must be a whole number of at least 1, got 0"),
    "half an interval": ("{target_update_interval: 2.5}", "target_update_interval .* got 2.5"),
    "half a gradient step": ("{gradient_steps: 2.5}", "gradient_steps .*whole.* got 2.5"),
    "no steps": ("{train_freq: 0}", "train_freq must be a whole number of at least 1, got 0"),
    "episodes": ("{train_freq: [1, episode], n_envs: 2}", "train_freq must count steps, not"),
    "no learning": (
        "{learning_starts: 3000}",
        r"learning_starts must be below steps \(3000\), got 3000",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), VALUES.values(), ids=VALUES)
def test_a_model_that_cannot_be_built_is_named_before_anything_runs(tmp_path, overrides, message):
    zoo.register()
    wrong = GOOD.replace("{replay_buffer_kwargs: {alpha: 0}}", overrides)
    suite = suite_file.load(mine(tmp_path, wrong))

    place = r"mine\.yml: variants\.alpha_0 cannot be built in CartPole-v1: "
    with pytest.raises(SuiteError, match=place + f".*{message}"):
        check_with_zoo(suite, "mine.yml")


COUNTS_OF_OTHERS = {
    "td3": ("per_td3", "policy_delay", 1.5),
    "sac": ("per_sac", "sde_sample_freq", 2.5),
    "tqc": ("per_tqc", "top_quantiles_to_drop_per_net", 2.5),
}


@pytest.mark.parametrize(
    ("base", "algorithm", "name", "value"),
    [(base, *rest) for base, rest in COUNTS_OF_OTHERS.items()],
)
def test_counts_of_other_algorithms_are_whole(tmp_path, base, algorithm, name, value):
    zoo.register()
    good = GOOD.replace("CartPole-v1", "Pendulum-v1").replace(
        "algorithm: dqn", f"algorithm: {base}"
    )
    good = good.replace("    steps", f"    rl_zoo_file: {base}\n    steps").replace("3000", "30000")
    good = good.replace("every: 1000", "every: 10000").replace("per_dqn", algorithm)
    check_with_zoo(suite_file.load(mine(tmp_path, good)), "mine.yml")
    wrong = good.replace("{replay_buffer_kwargs: {alpha: 0}}", f"{{{name}: {value}}}")

    with pytest.raises(SuiteError, match=f"{name} must be a whole number .* got {value}"):
        check_with_zoo(suite_file.load(mine(tmp_path, wrong)), "mine.yml")


@pytest.mark.parametrize(
    "name", ["policy_delay", "sde_sample_freq", "top_quantiles_to_drop_per_net"]
)
def test_a_scale_keeps_the_counts_of_other_algorithms_whole(name):
    assert multiplied({name: 2}, {name: 1.5}) == {name: 3}

    with pytest.raises(Problems, match=f"must keep it whole; {name} is 2"):
        multiplied({name: 2}, {name: 1.25})


def test_no_algorithm_brings_values_that_nobody_has_named(tmp_path):
    zoo.register()
    named = "{exploration_fraction: 0.2, exploration_final_eps: 0.1, max_grad_norm: 10}"
    text = GOOD.replace(
        "    rl_zoo_section: CartPole-v1", "    hyperparameters: {policy: MlpPolicy}"
    )
    other = text + "  qr: {algorithm: qrdqn, overrides: {}}\n"
    all_named = other.replace("{}}", "{learning_rate: 1.0e-3, " + named[1:] + "}")

    with pytest.raises(
        SuiteError, match=r"qr\.overrides must name .*: exploration_final_eps 0\.01, "
    ):
        check_with_zoo(suite_file.load(mine(tmp_path, other)), "mine.yml")
    check_with_zoo(suite_file.load(mine(tmp_path, all_named)), "mine.yml")
    baseline_last = all_named.replace("baseline: dqn", "baseline: last")
    baseline_last += "  last: {algorithm: dqm}\n"
    with pytest.raises(SuiteError, match=r"variants\.last\.algorithm is not known"):
        check_with_zoo(suite_file.load(mine(tmp_path, baseline_last)), "mine.yml")


@pytest.mark.usefixtures("own_registry")
def test_an_environment_may_be_one_that_a_module_registers(tmp_path, monkeypatch):
    module = "import gymnasium as gym\n\nold = 'gymnasium.envs.classic_control:CartPoleEnv'\n"
    (tmp_path / "two_of_mine.py").write_text(f"{module}gym.register('Mine-v3', entry_point=old)\n")
    text = GOOD.replace("  CartPole-v1:", "  two_of_mine:Mine-v3:")
    suite = suite_file.load(mine(tmp_path, text))
    zoo.register()

    with pytest.raises(SuiteError, match=r"environments\.two_of_mine:Mine-v3 cannot be imported"):
        check_with_zoo(suite, "mine.yml")
    monkeypatch.syspath_prepend(tmp_path)
    check_with_zoo(suite, "mine.yml")
    wrong = suite_file.load(mine(tmp_path, text.replace("Mine-v3", "Mime-v3")))
    with pytest.raises(SuiteError, match=r"'Mime-v3'; did you mean Mine-v3\?"):
        check_with_zoo(wrong, "mine.yml")


def test_a_suite_that_is_no_text_names_the_file(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_bytes(GOOD.replace("Mine.", "Für mich.").encode("latin-1"))

    with pytest.raises(SuiteError, match=r"mine\.yml: UnicodeDecodeError: 'utf-8' codec"):
        suite_file.load(str(path))


def test_an_environment_that_cannot_be_made_is_named_before_anything_runs(tmp_path):
    zoo.register()
    with_kwargs = "    env_kwargs: {gravity: 5}\n    steps: 3000\n"
    suite = suite_file.load(mine(tmp_path, GOOD.replace("    steps: 3000\n", with_kwargs)))

    with pytest.raises(SuiteError, match=r"CartPole-v1\.env_kwargs .*'gravity': 5.*keyword"):
        check_with_zoo(suite, "mine.yml")


def test_the_template_can_be_run_as_it_stands(tmp_path, monkeypatch, capsys):
    zoo.register()
    path = tmp_path / "mine.yml"
    monkeypatch.setattr("sys.argv", ["compare", "new", str(path)])

    command.main()

    assert capsys.readouterr().out == f"Next: sb3-per compare run {path}\n"
    suite = suite_file.load(str(path))
    check_with_zoo(suite, str(path))
    assert [suite.variant_label(name) for name in suite.variants] == ["DQN", "PERDQN"]


def test_the_template_explains_every_key_and_its_examples_hold(tmp_path):
    path = tmp_path / "mine.yml"
    suite_file.write_template(path)
    # An example is a commented line with a key, and what is indented below it.
    with_examples = re.sub(r"^( *)# ((?: {2})*\w+:.*)$", r"\1\2", path.read_text(), flags=re.M)
    path.write_text(with_examples)

    suite = suite_file.load(str(path))

    values = yaml.safe_load(with_examples)
    assert values.keys() == Suite.model_fields.keys()
    assert values["environments"]["CartPole-v1"].keys() == Environment.model_fields.keys()
    assert values["variants"]["per_slow"].keys() == Variant.model_fields.keys()
    assert values["contrasts"]["slow_learning"].keys() == Contrast.model_fields.keys()
    assert suite.contrasts["slow_learning"].over == "per"


@pytest.mark.parametrize(
    ("name", "message"),
    [("here.yml", "here.yml exists already"), ("mine", "must end in .yml or .yaml, got ")],
)
def test_the_template_replaces_no_file_and_has_a_name_that_run_accepts(
    tmp_path, monkeypatch, name, message
):
    (tmp_path / "here.yml").write_text("mine")
    monkeypatch.setattr("sys.argv", ["compare", "new", str(tmp_path / name)])

    with pytest.raises(SystemExit) as error:
        command.main()

    assert message in str(error.value)
    assert (tmp_path / "here.yml").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["here.yml"]


def test_a_run_that_has_no_place_does_not_begin(monkeypatch, tmp_path):
    zoo.register()
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["compare", "run", "smoke", "--out", str(tmp_path / "file")])

    with pytest.raises(SystemExit, match=r"--out must be a folder, or a new one: .*file"):
        command.main()


def test_seeds_are_counted_from_the_first_one(tmp_path):
    suite = suite_file.load(mine(tmp_path, GOOD.replace("seeds: 2", "seeds: 2\nfirst_seed: 100")))

    assert {cell.seed for cell in cells(suite)} == {100, 101}
