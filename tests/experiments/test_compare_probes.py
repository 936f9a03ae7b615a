"""Small measurements that need what compare needs: suites, or its statistics."""

import json

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.envs import FakeImageEnv

from sb3_per import PERDQN
from sb3_per.experiments.probes import dead_filters, gradient_noise, one_run, published_minatar


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # gymnasium's, of RL-Zoo's imports
def test_without_priorities_the_gradient_is_as_noisy_as_with_uniform_sampling(tmp_path):
    text = """
    about: short
    seeds: 1
    baseline: paper
    environments:
      CartPole-v1:
        hyperparameters: {policy: MlpPolicy, learning_starts: 100, learning_rate: 1.0e-3}
        steps: 600
        evaluation: {every: 200, episodes: 1}
        score: {random: 22.2, solved: 475.0, source: as in classic}
        threshold: 475.0
    variants:
      paper: {algorithm: per_dqn, label: paper}
      uniform: {algorithm: per_dqn, label: uniform, overrides: {replay_buffer_kwargs: {alpha: 0}}}
    """
    (tmp_path / "short.yml").write_text(text)

    paper, uniform = (
        gradient_noise.main("CartPole-v1", tmp_path / "short.yml", variant)
        for variant in ("paper", "uniform")
    )

    assert paper.shape == uniform.shape == (5, 2)
    assert uniform[:, 1] == pytest.approx(np.ones(5))
    assert np.ptp(paper[:, 1]) > 0
    assert all(((rows >= 0) & (rows[:, :1] <= 1)).all() for rows in (paper, uniform))


def test_published_returns_are_compared_run_by_run(tmp_path, capsys):
    path, steps = tmp_path / "returns.jsonl", [0, 500_000, 1_000_000, 1_500_000]
    # The prioritized runs are ahead at a million steps, and behind at the end.
    runs = [
        {"task": "pong", "method": method, "xs": steps, "ys": [99, *[y + i for y in ys]]}
        for method, ys in (("dqn_baseline", [0, 0, 60]), ("per_dqn_baseline", [10, 10, 10]))
        for i in range(5)
    ]
    path.write_text(json.dumps(runs))

    published_minatar.main(path)

    printed = capsys.readouterr().out
    ahead, behind = "1.00 [1.00, 1.00]", "0.00 [0.00, 0.00]"
    assert f"| pong | 2.0 | 12.0 | {ahead} | {ahead} |" in printed
    assert f"| pong | 22.0 | 12.0 | {behind} | {behind} |" in printed


def test_a_network_whose_first_layer_is_dead_reacts_to_no_image():
    model = DQN("CnnPolicy", FakeImageEnv(screen_height=36, screen_width=36), buffer_size=50)
    model.learn(40)
    alive, spread = dead_filters.reactions(model, 16)
    assert len(alive) == 4  # three convolutions and a linear layer
    assert alive[0] > 0.5
    assert spread > 0

    first = model.q_net.features_extractor.cnn[0]
    th.nn.init.zeros_(first.weight)
    th.nn.init.constant_(first.bias[:24], -1)
    th.nn.init.constant_(first.bias[24:], 1)
    dead, no_spread = dead_filters.reactions(model, 16)

    assert dead[0] == 8 / 32
    assert no_spread == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # gymnasium's, of RL-Zoo's imports
@pytest.mark.parametrize("kind", [DQN, PERDQN])
def test_the_network_of_a_saved_model_is_looked_at(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dead_filters, "N_RANDOM_STEPS", 20)
    image = spaces.Box(0, 255, (42, 42, 4), np.uint8)
    env = FakeImageEnv(42, 42, n_channels=4)
    env.observation_space, env.action_space = image, spaces.Discrete(6)
    model = kind("CnnPolicy", env, buffer_size=1)
    th.nn.init.zeros_(model.q_net.features_extractor.cnn[0].weight)
    th.nn.init.constant_(model.q_net.features_extractor.cnn[0].bias, -1)
    model.save(tmp_path / "model.zip")

    dead_filters.main(str(tmp_path / "model.zip"))

    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| saved | 0.00, ")
    assert row.endswith(" | 0.0000 |")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # gymnasium's, of RL-Zoo's imports
def test_training_ends_when_the_function_that_looks_at_it_returns_false():
    cell = one_run.cell_of("smoke", "per", "sb3_per.envs:sb3_per/BlindCliffwalk-v0")
    steps = []

    def look_at(model):
        steps.append(model.num_timesteps)
        return len(steps) < 7

    one_run.train(cell, look_at)

    assert steps == [1, 2, 3, 4, 5, 6, 7]
