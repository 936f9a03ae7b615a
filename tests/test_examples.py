import json
import re
from pathlib import Path

import numpy as np
import pytest
from builders import BOX, TWO_ACTIONS, fill

from examples import (
    cartpole,
    check_during_training,
    custom_priorities,
    dict_observations,
    hindsight,
    image_observations,
    masked_actions,
    rainbow_parts,
    save_and_resume,
)
from examples.image_observations import BrightColumn
from sb3_per import PERDQN, PrioritizedReplayBuffer
from sb3_per.zoo import config_folder

QUIET = pytest.mark.filterwarnings("ignore:rich is experimental")  # tqdm says so of its own bar
NOTEBOOK = Path(cartpole.__file__).parent / "quickstart.ipynb"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@QUIET
def test_cartpole_keeps_the_best_policy(capsys, tmp_path):
    last, best = cartpole.main(steps=1500)

    assert f"mean return {last:.1f}, best policy {best:.1f}" in capsys.readouterr().out
    assert best > 0
    kept = PERDQN.load(tmp_path / "runs" / "cartpole" / "best_model.zip", device="cpu")
    assert kept.double_q


@QUIET
@pytest.mark.slow
@pytest.mark.parametrize("variant", cartpole.VARIANTS)
def test_cartpole_learns_in_a_fifth_of_its_steps(variant):
    # A random policy reaches 22. docs/results/first-run.md has the whole runs.
    assert cartpole.main(seed=200, variant=variant, steps=10_000)[1] >= 200


def test_rare_rewards_compares_both_algorithms(capsys):
    rare_rewards = pytest.importorskip("examples.rare_rewards")

    returns = rare_rewards.main(steps=1200)

    assert [*returns] == [("DQN", 1), ("PERDQN", 1), ("DQN", 3), ("PERDQN", 3)]
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_check_during_training_passes(capsys):
    check_during_training.main(total_timesteps=500)

    assert "5 checks passed" in capsys.readouterr().out


def test_check_during_training_finds_an_unsampleable_slot():
    buffer = fill(PrioritizedReplayBuffer(10, BOX, TWO_ACTIONS), 3)
    check_during_training.check(buffer)

    buffer.prioritization.remove(np.array([1]))

    with pytest.raises(RuntimeError, match="2 slots can be sampled, 3 should be"):
        check_during_training.check(buffer)


def test_image_observations_learns_better_than_chance(capsys):
    image_observations.main(total_timesteps=1000)

    n_right = float(re.match(r"[\d.]+", capsys.readouterr().out).group())
    assert n_right > 10


def test_dict_observations_reaches_the_goal(capsys):
    dict_observations.main()

    percent = int(re.search(r"(\d+)%", capsys.readouterr().out).group(1))
    assert percent > 75


def test_hindsight_sets_all_bits():
    assert hindsight.main(total_timesteps=500, n_bits=4) > 0.75


def test_save_and_resume_continues_with_the_same_steps(capsys):
    save_and_resume.main(total_timesteps=300)

    printed = capsys.readouterr().out
    assert "10 more gradient steps: the same" in printed
    assert "600 steps in all, beta 1.00" in printed


def test_custom_priorities_count_every_replay(capsys):
    custom_priorities.main(total_timesteps=1000)

    # One batch of 32 for each step after the first 100: 28.8 replays of each of 1000 transitions,
    # where those that a batch holds twice count once.
    n_replays = int(re.search(r"replayed (\d+) times", capsys.readouterr().out).group(1))
    assert 25 <= n_replays <= 29


@QUIET
@pytest.mark.slow
def test_atari_learns_and_continues(capsys, monkeypatch):
    atari = pytest.importorskip("examples.atari")
    monkeypatch.setitem(atari.SETTINGS, "learning_starts", 100)

    assert atari.main("Pong", total_timesteps=120, n_games=1)._n_updates == 20
    assert atari.main("Pong", total_timesteps=140, n_games=1).num_timesteps == 140
    assert capsys.readouterr().out.count("mean return of 1 games -2") == 2


def test_atari_has_the_settings_of_its_yaml_file():
    atari, yaml = map(pytest.importorskip, ("examples.atari", "yaml"))
    text = (config_folder() / "rainbow_atari100k.yml").read_text(encoding="utf-8")
    section = yaml.safe_load(text)["atari"]
    for name in ("policy", "env_wrapper", "frame_stack", "n_timesteps"):
        del section[name]

    ours, theirs = (
        atari.Rainbow("CnnPolicy", BrightColumn(), **settings)
        for settings in (atari.SETTINGS, section)
    )

    for name in section.keys() - {"policy_kwargs"}:
        assert getattr(ours, name) == getattr(theirs, name)
    assert str(ours.policy) == str(theirs.policy)
    assert ours.policy.parts == theirs.policy.parts
    assert ours.policy.optimizer.defaults == theirs.policy.optimizer.defaults


def test_notebook_runs_and_draws_its_figures(monkeypatch, capsys):
    """As a kernel runs it: cell by cell in one namespace. No kernel has to be installed."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.setattr(pyplot, "show", lambda: None)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    namespace = {"__name__": "notebook"}

    for cell in cells:
        if cell["cell_type"] == "code":
            program = re.sub(r"N_STEPS = [\d_]+", "N_STEPS = 600", "".join(cell["source"]))
            exec(program, namespace)

    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    pyplot.close("all")
    assert [len(figure.axes) for figure in figures] == [2, 1]
    assert re.search(r"mean return [\d.]+ with priorities", capsys.readouterr().out)


def test_rainbow_runs_without_each_part():
    returns = rainbow_parts.main(total_timesteps=520)

    assert all(mean > 0 for mean in returns.values())


def test_masked_actions_learn_the_order():
    returns = masked_actions.main(total_timesteps=1_500)

    assert min(returns.values()) > 1.9  # a random order: 1.52


def test_agent_learns_from_the_planner(capsys, monkeypatch):
    demonstrations = pytest.importorskip("examples.demonstrations")  # it needs minigrid
    found = demonstrations.episodes_of_the_planner(5, seed=0)

    assert found["terminations"].sum() == 5
    assert found["terminations"][-1]
    assert not found["truncations"].any()
    assert (found["rewards"] > 0).sum() == 5
    monkeypatch.setattr(demonstrations, "success_rate", lambda model: 0.5)
    assert demonstrations.main(steps=600, n_episodes=2) == 0.5
    assert "demonstrations: 50% reach the goal" in capsys.readouterr().out


def test_view_has_one_object_in_each_cell():
    demonstrations = pytest.importorskip("examples.demonstrations")  # it needs minigrid
    env = demonstrations.make(0)
    view, _ = env.reset(seed=0)

    assert env.observation_space.contains(view)
    for first, last in ((0, 11), (11, 17), (17, 21)):
        assert np.array_equal(view.reshape(49, 21)[:, first:last].sum(axis=1), np.ones(49))
