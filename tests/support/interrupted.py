"""A command of ``sb3-per compare`` that is interrupted while it trains."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from filelock import FileLock
from processes import descendants, is_running, wait_until
from small_suite import ENVIRONMENT, LONG, of_environment

from sb3_per.compare.results import RESULT, read
from sb3_per.compare.suite import Suite, as_yaml

INTERRUPTIONS = [
    pytest.param(signal.SIGINT, id="Ctrl-C"),
    pytest.param(signal.SIGKILL, id="kill -9"),
]


def check_interrupted_command(how, folder, is_training, *options):
    """
    Interrupt a command when its two short runs are finished and its two long ones train.

    :param is_training: Returns whether the long runs have begun.
    :param options: Options of ``compare run``.
    """
    values = of_environment(**LONG, score={"random": 0.0, "solved": 1.0})
    short = {**values["environments"][ENVIRONMENT], "env_kwargs": {}}
    short |= {"steps": 90, "evaluation": {"every": 30, "episodes": 2}}
    values["environments"] = {"CartPole-v1": short, **values["environments"]}
    file, runs = folder / "small.yml", folder / "runs"
    file.write_text(as_yaml(Suite.model_validate({**values, "seeds": 1})))
    command = [sys.executable, "-m", "sb3_per", "compare", "run", str(file), "--out", str(runs)]
    driver = subprocess.Popen(
        [*command, *options],
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A job in the background of a script inherits that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with driver, contextlib.ExitStack() as ended:
        ended.callback(driver.kill)
        wait_until(lambda: len(list(runs.rglob(RESULT))) == 2 or driver.poll() is not None)
        wait_until(is_training)
        processes = descendants(driver.pid)
        os.kill(driver.pid, how)
        _, printed = driver.communicate(timeout=120)

    if how == signal.SIGINT:
        assert b"interrupted; the same command continues with the rest" in printed
    wait_until(lambda: not any(is_running(pid) for pid in processes))
    results = read(runs)
    assert [run.environment for run, _ in results.finished] == ["CartPole-v1"] * 2
    assert len(results.missing) == 2
    # No lock is left: the same command can continue.
    with FileLock(runs / ".lock", timeout=0):
        pass
