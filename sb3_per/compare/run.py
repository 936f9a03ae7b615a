"""Runs of a suite: made by processes on this machine, or as Ray's tasks on a cluster."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
from filelock import FileLock, Timeout
from tqdm import tqdm

from sb3_per.compare.results import (
    OUTPUT,
    RESULT,
    SUITE,
    curve,
    read_result,
    run_folder,
    write_file,
)
from sb3_per.compare.suite import FINAL_EVALUATIONS, Run, Suite, as_yaml, load, runs_of

Finished = Generator[Run, None, None]
# Networks this small gain nothing from more threads, and lose much where runs share a machine.
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}


class RayOptions(NamedTuple):
    """How Ray makes runs."""

    address: str | None = None  # of the cluster; None starts Ray on this machine
    cpus: float = 1  # Ray's logical CPUs for each run
    gpus: float = 0
    retries: int = 3  # how often Ray makes a run again if its process or node is lost


def make_runs(
    suite: Suite, folder: Path, jobs: int | None, device: str, ray: RayOptions | None = None
) -> list[Run]:
    """
    Make the runs of a suite that the folder does not have yet, and return those that failed.

    :param jobs: Number of runs at a time; None for one, or for as many as Ray has CPUs for.
    :param ray: None for processes on this machine.
    :raises ValueError: before anything has run, if the folder belongs to something else, or if a
        variant cannot be built in an environment.
    """
    _check_folder(folder, suite)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            runs = runs_of(suite)
            todo = [run for run in runs if read_result(folder, run) is None]
            check(todo)
            write_file(folder / SUITE, as_yaml(suite).encode())
            made = (
                run_on_ray(todo, folder, device, jobs, ray)
                if ray
                else run_locally(todo, folder, device, jobs)
            )
            return _failed(made, folder, len(todo), len(runs) - len(todo))
    except Timeout as error:
        raise ValueError(f"another sb3-per compare is running in {folder}") from error


def _check_folder(folder: Path, suite: Suite) -> None:
    known = folder / SUITE
    if known.is_file():
        name = load(known).name
        if name != suite.name:
            raise ValueError(f"{folder} has the runs of {name}, not of {suite.name}")
    elif folder.is_dir() and {path.name for path in folder.iterdir()} - {".lock", "report"}:
        raise ValueError(f"--out must be empty or a run folder, got {folder}")


def _failed(made: Finished, folder: Path, n_todo: int, n_finished: int) -> list[Run]:
    """Follow the runs as they end; return those that ended without a result."""
    failed = []
    with (
        contextlib.closing(made),
        tqdm(total=n_finished + n_todo, initial=n_finished, unit="run") as bar,
    ):
        for run in made:
            result = read_result(folder, run)
            if result is None:
                failed.append(run)
                output = run_folder(folder, run) / OUTPUT
                bar.write(f"{run} failed: {_last_line(output)} (all output: {output})", sys.stderr)
            else:
                final = curve(run, result)[1][-FINAL_EVALUATIONS:].mean()
                bar.write(f"{run}: final return {final:.4g}")
            bar.update()
    return failed


def _last_line(output: Path) -> str:
    lines = output.read_text(encoding="utf-8").split("\n") if output.is_file() else []
    lines = [line for line in lines if line.strip()]
    is_traceback = any(line.startswith("Traceback") for line in lines)
    return lines[-1] if is_traceback else "its process ended without an error, as if it was killed"


def check(runs: Sequence[Run]) -> None:
    """
    Build the model of each variant in each environment once, as training will, and discard it.

    :raises ValueError: with the errors of all models that cannot be built.
    """
    errors = []
    for run in {(run.variant, run.environment): run for run in runs}.values():
        try:
            _build(run)
        except gym.error.UnregisteredEnv:
            raise  # the command says what to write
        except Exception as error:
            errors.append(f"{run.variant} in {run.environment}: {type(error).__name__}: {error}")
    if errors:
        raise ValueError("\n  ".join(["these cannot be built:", *errors]))


def _build(run: Run) -> None:
    from sb3_per.compare.training import manager_of  # RL-Zoo takes seconds

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run_folder(Path(folder), run).mkdir(parents=True)
        manager = manager_of(run, Path(folder), "cpu")
        model, _ = manager.setup_experiment()
        for env in (model.env, manager.callbacks[-1].eval_env):
            env.close()  # before the folder with their logs goes
    starts, steps = getattr(model, "learning_starts", 0), run.settings["steps"]
    if starts >= steps:
        raise ValueError(f"learning_starts must be below steps ({steps}), got {starts}")


def run_locally(runs: Sequence[Run], folder: Path, device: str, jobs: int | None) -> Finished:
    """
    Make runs on this machine, each in a process of its own, and yield each when it has ended.

    A process that is killed takes no other run with it, which process pools cannot offer.
    """
    os.environ.update(ONE_THREAD)
    context = _context()
    waiting = deque(runs)
    running: dict[Any, tuple[Any, Run]] = {}  # by what ``wait`` waits for
    try:
        while waiting or running:
            while waiting and len(running) < (jobs or 1):
                run = waiting.popleft()
                process = context.Process(target=_train_alone, args=(run, folder, device))
                process.start()
                running[process.sentinel] = process, run
            for sentinel in wait(running):
                process, run = running.pop(sentinel)
                process.join()
                yield run
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()


def _context() -> Any:
    """Return how processes start: forked from one that has imported everything, if possible."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sb3_per.compare.training"])
    return context


def _train_alone(run: Run, folder: Path, device: str) -> None:
    from sb3_per.compare.training import train

    # Ctrl-C reaches the whole process group; RL-Zoo would stop and save. The parent ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    train(run, folder, device)


def _end_with_parent() -> None:
    """End this process when its parent does: a killed command cannot stop its processes."""
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)


def run_on_ray(
    runs: Sequence[Run], folder: Path, device: str, jobs: int | None, options: RayOptions
) -> Finished:
    """
    Make runs as Ray's tasks, and yield each when it has ended.

    Nodes send the files of a run, so they need no disk in common; they are written here.
    """
    import ray

    ray.init(address=options.address or "local", runtime_env={"env_vars": ONE_THREAD})
    try:
        task = ray.remote(train_away).options(
            num_cpus=options.cpus, num_gpus=options.gpus, max_retries=options.retries
        )
        waiting = deque(runs)
        running: dict[Any, Run] = {}
        while waiting or running:
            while waiting and len(running) < (jobs or len(runs)):
                run = waiting.popleft()
                running[task.remote(run, device)] = run
            # Files stay on their node until `get`: they may be larger than the free memory here.
            ready, _ = ray.wait([*running], fetch_local=False)
            run = running.pop(ready[0])
            _take(ray, ready[0], run_folder(folder, run))
            yield run
    finally:
        ray.shutdown()


def train_away(run: Run, device: str) -> dict[str, bytes]:
    """Train a run in a temporary folder, and return the files of its folder by name."""
    from sb3_per.compare.training import train

    with tempfile.TemporaryDirectory(prefix="sb3-per-run-") as folder:
        train(run, Path(folder), device)
        place = run_folder(Path(folder), run)
        files = (path for path in place.rglob("*") if path.is_file())
        return {path.relative_to(place).as_posix(): path.read_bytes() for path in files}


def _take(ray: Any, reference: Any, place: Path) -> None:
    """Write the files of a run that a node has made; its result comes last."""
    try:
        files = ray.get(reference)
    except ray.exceptions.RayError as error:
        files = {OUTPUT: f"Traceback of Ray\n{type(error).__name__}: {error}".encode()}
    for name in sorted(files, key=lambda name: name == RESULT):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(place / name, files[name])
