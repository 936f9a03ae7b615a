"""
Success on MiniGrid with demonstrations and without: docs/results/demonstrations.md.

Runs that the file of results has are skipped; delete it to repeat them.
"""

import argparse
import gzip
import json
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import DQN

from examples.demonstrations import SETTINGS, episodes_of_the_planner, make, success_rate
from sb3_per import PERDQN

RESULTS = Path(__file__).parents[1] / "results" / "demonstrations.jsonl.gz"
OURS: dict[str, Any] = {"double_q": True}
STEPS = 10_000

# The algorithm, its options, and the number of episodes of the planner.
VARIANTS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "PERDQN with demonstrations": (PERDQN, OURS, 20),
    "PERDQN": (PERDQN, OURS, 0),
    "DQN": (DQN, {}, 0),
}


def run(variant: str, seed: int) -> dict[str, Any]:
    """Train and test one agent, and return a row of the results."""
    th.set_num_threads(1)
    warnings.simplefilter("ignore")
    started = process_time()
    kind, options, n_episodes = VARIANTS[variant]
    model = kind("MlpPolicy", make(seed), seed=seed, **SETTINGS, **options)
    if n_episodes > 0:
        model.add_demonstrations(episodes_of_the_planner(n_episodes, 10_000 + seed))
    row: dict[str, Any] = {"variant": variant, "seed": seed, "steps": STEPS}
    row["success"] = success_rate(model.learn(STEPS))
    return {**row, "cpu_seconds": round(process_time() - started)}


def read() -> list[dict[str, Any]]:
    """Return the rows that are finished."""
    return [json.loads(line) for line in gzip.open(RESULTS, "rt")] if RESULTS.exists() else []


def main(seeds: int, jobs: int) -> None:
    rows = read()
    done = {(row["variant"], row["seed"]) for row in rows}
    left = [(name, seed) for name in VARIANTS for seed in range(seeds) if (name, seed) not in done]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, *which) for which in left]):
            rows.append(future.result())
            print(json.dumps(rows[-1]), flush=True)
            lines = sorted(json.dumps(row) + "\n" for row in rows)
            RESULTS.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    for name in VARIANTS:
        found = [row["success"] for row in rows if row["variant"] == name]
        print(f"| {name} | {np.mean(found):.0%} | {', '.join(f'{share:.0%}' for share in found)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    main(**vars(parser.parse_args()))
