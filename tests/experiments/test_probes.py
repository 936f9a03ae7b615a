"""The small measurements behind single tables of the documentation."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import stable_baselines3
import torch as th
from stable_baselines3 import DQN

from sb3_per import PERDQN
from sb3_per.experiments.probes import (
    alpha_zero,
    cost_of_a_batch,
    cost_of_ranks,
    cost_of_saving,
    denormals,
    first_rewards,
    from_scratch,
    long_run,
    overestimation,
    sb3_tests,
    zoo_results,
)


def test_alpha_zero_prints_each_pair_and_the_interval_of_the_difference(capsys):
    mean, half = alpha_zero.main(n_seeds=2, total_timesteps=1500)

    printed = capsys.readouterr().out
    pairs = re.findall(r"DQN ([\d.]+), PERDQN\(alpha=0\) ([\d.]+)", printed)
    differences = [float(ours) - float(uniform) for uniform, ours in pairs]
    assert mean == pytest.approx(sum(differences) / 2, abs=0.1)
    # Of two numbers the standard error of the mean is half their distance.
    assert half == pytest.approx(12.71 * abs(differences[0] - differences[1]) / 2, abs=1.3)
    assert f"{mean - half:+.1f} to {mean + half:+.1f}" in printed


def test_the_cost_of_a_batch_is_printed_for_each_size(capsys):
    cost_of_a_batch.main(sizes=(100, 1000), n_rounds=20)

    rows = capsys.readouterr().out.splitlines()[1:]
    assert [int(row.split()[0]) for row in rows] == [100, 1000]
    assert all(float(cost) > 0 for row in rows for cost in row.split()[1:])


def test_the_cost_of_ranks_is_printed_for_each_batch_size(capsys, monkeypatch):
    monkeypatch.setattr(cost_of_ranks, "N_SLOTS", 100_000)
    cost_of_ranks.main(n_rounds=3)

    rows = [row.split() for row in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["32", "256", "1024"]
    for _, proportional, rank_based, ratio in rows:
        assert float(rank_based) / float(proportional) == pytest.approx(float(ratio), rel=0.05)


def test_the_results_of_rl_zoo_runs_are_put_beside_the_published_ones(tmp_path, capsys):
    for seed, name, algorithm in ((0, "per_dqn", PERDQN), (0, "dqn", DQN), (1, "dqn", DQN)):
        run = tmp_path / str(seed) / name / "CartPole-v1_1"
        run.mkdir(parents=True)
        algorithm("MlpPolicy", "CartPole-v1", device="cpu", seed=seed).save(run / "CartPole-v1.zip")

    results = zoo_results.main(tmp_path, n_episodes=2)

    printed = capsys.readouterr().out
    (ours,) = results["CartPole-v1", "per_dqn"]
    one, two = results["CartPole-v1", "dqn"]
    assert f"| CartPole-v1 | per_dqn | {ours:.1f} | {ours:.1f} |  | 500 |" in printed
    # Of two numbers, the standard deviation is their distance over the root of two.
    spread = f"{abs(one - two) / 2**0.5:.1f}"
    mean = f"{(one + two) / 2:.1f}"
    assert f"| CartPole-v1 | dqn | {one:.1f}, {two:.1f} | {mean} | {spread} | 500 |" in printed


def test_the_control_from_scratch_draws_from_a_ring_that_has_come_round(capsys, monkeypatch):
    pytest.importorskip("Box2D")
    monkeypatch.setattr(from_scratch, "CAPACITY", 200)

    rows = from_scratch.main(n_steps=300)

    assert np.shape(rows) == (20, 3)
    assert np.isfinite(rows).all()
    assert capsys.readouterr().out.splitlines()[-1].startswith("| 300 | ")


def test_the_control_from_scratch_works_out_td_errors_and_heeds_weights():
    nets = [from_scratch.network() for _ in range(2)]
    with th.no_grad():
        for net, last in zip(nets, ([1.0, 2.0, 3.0, 4.0], [5.0, 9.0, 7.0, 8.0]), strict=True):
            net[4].weight.zero_()
            net[4].bias.copy_(th.tensor(last))
    optimizer = th.optim.SGD(nets[0].parameters(), lr=1.0)
    state = np.zeros((2, 8), np.float32)
    column = [np.array([[0], [3]]), np.array([[1], [1]]), np.array([[0], [1]])]
    actions, rewards, terminated = (part.astype(np.float32) for part in column)

    batch = [state, actions, rewards, state, terminated]
    td_errors = from_scratch.gradient_step(*nets, optimizer, batch, np.array([1.0, 0.0]))

    assert td_errors.tolist() == pytest.approx([1 + 0.99 * 9 - 1, 1 - 4])
    # Beyond 1 the Huber loss pulls by 1, here times the weight and over the batch of two.
    assert nets[0][4].bias.tolist() == pytest.approx([1.5, 2.0, 3.0, 4.0])


def test_where_nothing_was_trained_the_folder_is_named(tmp_path):
    with pytest.raises(SystemExit, match=f"no agents trained by per_dqn or dqn in {tmp_path}"):
        zoo_results.main(tmp_path)
    with pytest.raises(SystemExit, match=f"no models of CartPole-v1 in {tmp_path}"):
        overestimation.main(tmp_path, "CartPole-v1")
    with pytest.raises(SystemExit, match=f"no episodes of CartPole-v1 in {tmp_path}"):
        first_rewards.main(tmp_path, "CartPole-v1")


def test_first_rewards_are_counted_in_steps_of_training(tmp_path, capsys):
    """Episodes of 10 and 30 steps; every second one is rewarded, in one run from the start."""
    for number, returns in enumerate([[-5, -1] * 10, [-1, -5] * 4], start=1):
        run = tmp_path / "per" / "per_dqn" / f"own-A-v0_{number}"
        run.mkdir(parents=True)
        episodes = [f"{total},{(10, 30)[n % 2]},{n}" for n, total in enumerate(returns)]
        lines = ['#{"t_start": 0.0, "env_id": "own/A-v0"}', "r,l,t", *episodes]
        (run / "0.monitor.csv").write_text("\n".join(lines) + "\n")

    found = first_rewards.main(tmp_path, "own/A-v0", -5)

    assert found == {"per": [[40, 400, np.inf], [10, np.inf, np.inf]]}
    assert "| per | 2 | 25 | inf | inf |" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux")
def test_a_long_run_reports_speed_memory_and_the_sum(capsys):
    rows = long_run.main(total_timesteps=2000)

    assert [row[0] for row in rows] == [*range(100, 2001, 100)]
    assert all(speed > 0 and step > 0 and memory > 50 for _, speed, step, memory in rows)
    error = float(re.search(r"- 1 = (\S+)", capsys.readouterr().out).group(1))
    assert abs(error) < 1e-12


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
def test_the_cost_of_saving_is_printed_for_both_ways(capsys, prioritization):
    cost_of_saving.main(100_000, prioritization)

    pattern = r"file (\d+) MB, memory beyond the transitions at most (\d+) MB"
    found = re.findall(pattern, capsys.readouterr().out)
    (size, saving), (_, loading) = [(int(size), int(peak)) for size, peak in found]
    assert size in (9, 11)  # 93 bytes a transition, and 16 more of the order by rank
    assert (saving < 3) == (prioritization == "proportional")
    assert 1 <= loading <= size


def test_sb3s_tests_are_run_with_our_classes(tmp_path):
    (tmp_path / "test_her.py").write_text(
        "from stable_baselines3 import DDPG, DQN, SAC, TD3, HerReplayBuffer\n"
        "def test_ours():\n"
        "    names = [each.__name__ for each in (DDPG, DQN, SAC, TD3, HerReplayBuffer)]\n"
        "    assert names[:4] == ['PERDDPG', 'PERDQN', 'PERSAC', 'PERTD3'], names\n"
        "    assert names[4] == 'PrioritizedHerReplayBuffer'\n"
        "def test_that_fails():\n"
        "    assert False\n"
        "def test_of_PPO():\n"
        "    assert False\n"
    )
    module = "sb3_per.experiments.probes.sb3_tests"

    done = subprocess.run(
        [sys.executable, "-m", module, str(tmp_path), "-q"], capture_output=True, text=True
    )

    assert done.returncode == 1, done.stdout
    assert "| test_her | 1 | 1 | 0 |" in done.stdout
    assert done.stdout.rstrip().endswith("| all | 1 | 1 | 0 |")


def test_a_folder_without_sb3s_tests_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the folder must be that of SB3's tests, got"):
        sb3_tests.main(str(tmp_path))
    assert stable_baselines3.DQN is DQN is not PERDQN


def test_the_share_of_denormal_numbers_in_adam_is_printed(tmp_path, capsys):
    model = DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [4]}, device="cpu")
    parameters = list(model.q_net.parameters())
    for parameter in parameters:
        parameter.grad = th.zeros_like(parameter)
    model.policy.optimizer.step()  # makes the averages, all of them zero
    # exp_avg of the 16 input weights: of the 60 averages of 30 weights, 16 are denormal
    model.policy.optimizer.state[parameters[0]]["exp_avg"].fill_(1e-40)
    model.save(tmp_path / "small.zip")

    ((share, slow, fast),) = denormals.main(tmp_path / "small.zip")

    assert share == pytest.approx(16 / 60)
    assert slow > 0
    assert fast > 0
    row = f"| {tmp_path.name}/small | 27% | {slow:.0f} | {fast:.0f} | {slow / fast:.1f} |"
    assert row in capsys.readouterr().out
    assert (th.tensor([1e-40]) * 1.0).item() > 0  # the setting is as before


def test_the_probe_of_denormal_numbers_needs_a_model():
    with pytest.raises(SystemExit, match="give the files of saved models"):
        denormals.main()
