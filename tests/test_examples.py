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
    save_and_resume,
)
from sb3_per import PrioritizedReplayBuffer

EXAMPLES = sorted(Path(cartpole.__file__).parent.glob("*.py"))
QUIET = pytest.mark.filterwarnings("ignore:rich is experimental")  # tqdm says so of its own bar


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_on_a_screen(path):
    assert len(path.read_text().splitlines()) <= 50


@QUIET
def test_cartpole_trains_and_reports_the_last_policy_and_the_best(capsys):
    last, best = cartpole.main(steps=1500)

    assert f"mean return {last:.1f}, best policy {best:.1f}" in capsys.readouterr().out
    assert best > 0


@QUIET
@pytest.mark.slow
@pytest.mark.parametrize("variant", cartpole.VARIANTS)
def test_a_fifth_of_the_steps_teaches_the_pole_to_stay_up(variant):
    # A random policy comes to 22. docs/results/first-run.md has the whole runs.
    assert cartpole.main(seed=200, variant=variant, steps=10_000)[1] >= 200


def test_the_buffer_is_checked_during_training(capsys):
    check_during_training.main(total_timesteps=500)

    assert "5 checks passed" in capsys.readouterr().out


def test_a_slot_that_cannot_be_drawn_is_found():
    buffer = fill(PrioritizedReplayBuffer(10, BOX, TWO_ACTIONS), 3)
    check_during_training.check(buffer)

    buffer.prioritization.remove(np.array([1]))

    with pytest.raises(RuntimeError, match="2 slots can be sampled, 3 should be"):
        check_during_training.check(buffer)


def test_images_are_read_better_than_by_chance(capsys):
    image_observations.main(total_timesteps=1000)

    n_right = float(re.match(r"[\d.]+", capsys.readouterr().out).group())
    assert n_right > 10


def test_the_goal_is_reached_with_dict_observations(capsys):
    dict_observations.main()

    percent = int(re.search(r"(\d+)%", capsys.readouterr().out).group(1))
    assert percent > 75


def test_bits_are_set_with_hindsight(capsys):
    solved = hindsight.main(total_timesteps=500, n_bits=4)

    assert f"all 4 bits set in {solved:.0%} of 50 episodes" in capsys.readouterr().out
    assert solved > 0.75


def test_a_resumed_run_makes_the_same_steps(capsys):
    save_and_resume.main(total_timesteps=300)

    printed = capsys.readouterr().out
    assert "10 more gradient steps: the same" in printed
    assert "600 steps in all, beta 1.00" in printed


def test_a_prioritization_of_ones_own_sees_every_update(capsys):
    custom_priorities.main(total_timesteps=1000)

    # One batch of 32 for each step after the first 100: 28.8 replays of each of 1000 transitions,
    # of which those are counted once that a batch holds twice.
    n_replays = int(re.search(r"replayed (\d+) times", capsys.readouterr().out).group(1))
    assert 25 <= n_replays <= 29
