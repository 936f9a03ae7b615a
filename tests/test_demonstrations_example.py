"""The example with MiniGrid: its planner, and a short run."""

import numpy as np
import pytest

pytest.importorskip("minigrid")

from examples import demonstrations  # it needs minigrid


def test_agent_learns_from_the_planner(capsys, monkeypatch):
    found = demonstrations.episodes_of_the_planner(5, seed=0)

    assert found["terminations"].sum() == 5
    assert found["terminations"][-1]
    assert not found["truncations"].any()
    assert (found["rewards"] > 0).sum() == 5
    monkeypatch.setattr(demonstrations, "success_rate", lambda model: 0.5)
    assert demonstrations.main(steps=600, n_episodes=2) == 0.5
    assert "demonstrations: 50% reach the goal" in capsys.readouterr().out


def test_view_has_one_object_in_each_cell():
    env = demonstrations.make(0)
    view, _ = env.reset(seed=0)

    assert env.observation_space.contains(view)
    for first, last in ((0, 11), (11, 17), (17, 21)):
        assert np.array_equal(view.reshape(49, 21)[:, first:last].sum(axis=1), np.ones(49))
