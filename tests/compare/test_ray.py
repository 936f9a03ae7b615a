"""The same with Ray: equal returns, and nothing that was finished is lost. `make test-ray`."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from interrupted import INTERRUPTIONS, check_interrupted_command
from processes import descendants, wait_until
from small_suite import of_environment, suite

from sb3_per.compare.results import OUTPUT, RESULT, read, run_folder
from sb3_per.compare.run import RayOptions, make_runs
from sb3_per.compare.suite import Suite

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# Some ten seconds of training: long enough to be killed in the middle.
TEN_SECONDS = {"steps": 9_000, "evaluation": {"every": 3_000, "episodes": 2}}


@pytest.fixture
def cluster():
    """A cluster without CPUs on its head, so that runs are made by the nodes that a test adds."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield made
    made.shutdown()


def workers():
    """Return the processes below this one that train a run."""
    found = descendants(os.getpid())
    return [pid for pid, name in found.items() if name.startswith("ray::train_away")]


def returns(folder):
    return {run[:3]: result["returns"] for run, result in read(folder).finished}


def test_both_engines_give_the_same_returns(tmp_path):
    """PERDQN and DQN, bit by bit; the second folder begins with one engine and continues."""
    assert make_runs(suite(), tmp_path / "local", 1, "cpu") == []
    assert make_runs(suite(seeds=1), tmp_path / "ray", 1, "cpu") == []

    assert make_runs(suite(), tmp_path / "ray", None, "cpu", RayOptions()) == []

    assert len(returns(tmp_path / "ray")) == 4
    assert returns(tmp_path / "ray") == returns(tmp_path / "local")
    for run, _ in read(tmp_path / "ray").finished:
        place = run_folder(tmp_path / "ray", run)
        names = {path.name for path in place.rglob("*") if path.is_file()}
        assert names >= {OUTPUT, RESULT, "0.monitor.csv", "args.yml", "best_model.zip"}


@pytest.mark.parametrize(("retries", "lost"), [(3, []), (0, ["dqn"])])
def test_killed_worker_is_replaced_if_there_are_retries(retries, lost, tmp_path):
    declared = Suite.model_validate({**of_environment(**TEN_SECONDS), "seeds": 1})
    with ThreadPoolExecutor(1) as thread:
        thread.submit(kill_a_worker)
        failed = make_runs(declared, tmp_path, 1, "cpu", RayOptions(retries=retries))

    assert [run.variant for run in failed] == lost
    assert len(returns(tmp_path)) == 2 - len(lost)
    for run in failed:
        assert "WorkerCrashedError" in (run_folder(tmp_path, run) / OUTPUT).read_text()


def kill_a_worker():
    wait_until(workers)
    os.kill(workers()[0], signal.SIGKILL)


def test_lost_node_is_replaced_by_another(tmp_path, cluster):
    declared = Suite.model_validate({**of_environment(**TEN_SECONDS), "seeds": 1})
    first = cluster.add_node(num_cpus=1)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(
            make_runs, declared, tmp_path, None, "cpu", RayOptions(cluster.address)
        )
        wait_until(lambda: workers() or running.done())
        cluster.add_node(num_cpus=1)
        cluster.remove_node(first, allow_graceful=False)

        assert running.result() == []
    assert len(returns(tmp_path)) == 2


@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_interrupted_command_keeps_finished_runs(how, tmp_path):
    check_interrupted_command(how, tmp_path, lambda: True, "--engine", "ray")
