"""Small measurements that need what compare needs: suites, or its statistics."""

import json

import numpy as np
import pytest

from sb3_per.experiments.probes import gradient_noise, published_minatar


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
