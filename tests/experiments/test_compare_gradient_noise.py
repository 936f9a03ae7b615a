"""The probe that prints how noisy the gradient of a run of a suite is."""

import numpy as np
import pytest

from sb3_per.experiments.probes import gradient_noise


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
