"""The house: which room may import from which."""

import ast
from pathlib import Path

import pytest

import sb3_per

PACKAGE = Path(sb3_per.__file__).parent

# Rooms by floor, the ground floor first. A room may import from its own list and nothing else.
GROUND = {"numpy", "numba"}
FIRST = GROUND | {"torch", "stable_baselines3"}
ROOF = {"gymnasium", "minatar", "optuna", "rl_zoo3", "stable_baselines3"}
MAY_IMPORT = {
    "rules": set(),
    "signatures": set(),
    "sum_tree": GROUND,
    "n_step": GROUND | {"sum_tree"},
    "draws": GROUND | {"sum_tree"},
    "priorities": GROUND | {"draws", "rules", "sum_tree"},
    "proportional": GROUND | {"draws", "priorities", "sum_tree"},
    "rank_tree": GROUND | {"sum_tree"},
    "ordered_slots": GROUND | {"rank_tree", "sum_tree"},
    "rank_based": GROUND | {"draws", "ordered_slots", "priorities", "rules", "sum_tree"},
    "prioritizations": {"priorities", "proportional", "rank_based", "rules"},
    "draw_log": GROUND | {"sum_tree"},
    "arguments": FIRST | {"priorities", "rules", "sum_tree"},
    "slot_buffers": FIRST | {"gymnasium", "n_step", "rules", "sum_tree"},
    "buffers": FIRST
    | {"arguments", "draw_log", "draws", "priorities", "prioritizations"}
    | {"rules", "signatures", "slot_buffers", "sum_tree"},
    "gradients": {"torch"},
    "metrics": {"numpy"},
    "buffer_choice": {"gymnasium", "stable_baselines3", "buffers", "prioritizations", "rules"},
    "dqn": FIRST | {"buffer_choice", "buffers", "gradients", "metrics", "rules", "signatures"},
    "bench.quartiles": {"numpy"},
    "bench.contestants": FIRST | {"gymnasium", "buffers", "draws", "proportional", "rank_based"},
    "bench.peers": {"numpy", "cpprb", "tianshou", "torchrl", "bench.contestants"},
    "bench.ops": {"numpy", "bench.contestants", "bench.peers", "bench.quartiles"},
    "bench.train": FIRST | {"gymnasium", "bench.quartiles", "dqn"},
    "bench.profile": {"stable_baselines3", "bench.quartiles", "bench.train", "dqn"},
    "bench.plot": {"matplotlib", "bench.ops", "command_line"},
    "bench.memory": FIRST | {"bench.contestants", "bench.quartiles", "buffers"},
    "bench.command": {
        "torch",
        "command_line",
        "devices",
        "prioritizations",
        "bench.memory",
        "bench.ops",
        "bench.plot",
        "bench.profile",
        "bench.train",
    },
    "bench.__init__": set(),
    "archive": {"numpy", "rules"},
    "space_json": {"gymnasium", "numpy", "rules"},
    "buffer_files": {"numpy", "torch", "archive", "buffers", "priorities", "prioritizations"}
    | {"rules", "space_json"},
    "streams": FIRST - {"numba"},
    "normalization": {"numpy", "stable_baselines3", "rules"},
    "checkpoint": {
        "numpy",
        "torch",
        "stable_baselines3",
        "archive",
        "buffer_choice",
        "buffer_files",
    }
    | {"buffers", "dqn", "normalization", "rules", "streams"},
    "__init__": {"buffer_files", "buffers", "checkpoint", "dqn"},
    "command_line": set(),
    "devices": {"stable_baselines3", "torch"},
    "compare.section": {"yaml"},
    "compare.overlay": set(),
    "compare.suite": {"compare.overlay"},
    "compare.scores": {"numpy", "compare.suite"},
    "compare.results": {"archive", "compare.suite"},
    "compare.declare": {"yaml", "archive", "compare.overlay", "compare.results", "compare.scores"}
    | {"compare.section", "compare.suite"},
    "compare.experiment": {"rl_zoo3", "yaml", "compare.results", "compare.suite"},
    "compare.zoo_check": {"gymnasium", "rl_zoo3", "buffers", "compare.experiment"}
    | {"compare.results", "compare.section", "compare.suite"},
    "compare.stopwatch": {"numpy", "stable_baselines3"},
    "compare.worker": {"numpy", "stable_baselines3", "torch", "buffer_files", "buffers"}
    | {"compare.experiment", "compare.results", "compare.stopwatch", "compare.suite", "zoo"},
    "compare.engine": {"compare.results", "compare.suite"},
    "compare.run": {"compare.engine", "compare.suite"},
    "compare.progress": {"rich", "compare.engine", "compare.suite"},
    "compare.statistics": {"numpy", "scipy", "compare.scores"},
    "compare.summary": {"numpy", "compare.scores", "compare.statistics", "compare.suite"},
    "compare.tables": {"numpy", "compare.scores", "compare.statistics", "compare.suite"}
    | {"compare.summary"},
    "compare.figures": {"matplotlib", "numpy", "compare.scores", "compare.statistics"}
    | {"compare.suite", "compare.summary"},
    "compare.report": {"archive", "compare.declare", "compare.figures", "compare.results"}
    | {"compare.scores", "compare.section", "compare.statistics", "compare.suite"}
    | {"compare.summary", "compare.tables"},
    "compare.command": {"filelock", "rich", "command_line", "compare.declare", "compare.engine"}
    | {"compare.progress", "compare.report", "compare.results", "compare.run", "compare.section"}
    | {"compare.suite", "compare.zoo_check", "devices"},
    "compare.__init__": set(),
    "zoo_search": ROOF,
    "zoo_commands": ROOF,
    "zoo": ROOF | {"buffers", "dqn", "registration", "rules", "zoo_search"},
    "registration": {"gymnasium"},
    "envs": {"gymnasium", "numpy", "registration", "rules"},
    "cliffwalk.__init__": set(),
    "cliffwalk.memory": GROUND | {"envs", "sum_tree"},
    "cliffwalk.cells": set(),
    "cliffwalk.learner": GROUND | {"cliffwalk.memory", "sum_tree"},
    "cliffwalk.methods": GROUND
    | {"cliffwalk.cells", "cliffwalk.learner", "cliffwalk.memory"}
    | {"draws", "priorities", "proportional", "rank_based", "sum_tree"},
    "cliffwalk.networks": FIRST
    | {"cliffwalk.cells", "cliffwalk.learner", "cliffwalk.memory", "dqn", "envs", "sum_tree"},
    "cliffwalk.results": {"numpy", "cliffwalk.cells"},
    "cliffwalk.plot": {"matplotlib", "numpy", "command_line"}
    | {"cliffwalk.cells", "cliffwalk.results"},
    "cliffwalk.report": {"numpy", "cliffwalk.cells", "cliffwalk.plot", "cliffwalk.results"},
    "cliffwalk.command": {"filelock", "tqdm", "command_line"}
    | {"cliffwalk.cells", "cliffwalk.methods", "cliffwalk.networks", "cliffwalk.report"}
    | {"cliffwalk.results"},
    "launcher": {"__version__", "zoo"},
    "__main__": {"launcher"},
}
# No clock, no global randomness and no files below the second floor.
STANDARD_LIBRARY = {"collections", "functools", "typing"}
STANDARD_LIBRARY_OF = {
    "bench.ops": {"time"},
    "bench.train": {"importlib", "time"},
    "bench.profile": {"cProfile", "pathlib", "pstats", "time"},
    "bench.plot": {"pathlib"},
    "bench.memory": {"resource", "sys", "tracemalloc"},
    "bench.command": {"argparse", "importlib", "json", "pathlib", "platform", "sys"},
    "archive": {"contextlib", "hashlib", "json", "os", "pathlib", "types", "zipfile"},
    "buffer_files": {"os"},
    "envs": {"numbers"},
    "compare.section": {"math", "pathlib"},
    "compare.overlay": {"ast", "math"},
    "compare.suite": {"dataclasses"},
    "compare.scores": {"dataclasses"},
    "compare.declare": {"dataclasses", "importlib", "json", "math", "pathlib", "re"},
    "compare.experiment": {"argparse", "importlib", "pathlib"},
    "compare.zoo_check": {"contextlib", "dataclasses", "difflib", "inspect", "io", "pathlib"}
    | {"tempfile"},
    "compare.results": {"json", "math", "pathlib"},
    "compare.stopwatch": {"time"},
    "compare.worker": {"importlib", "json", "os", "pathlib", "platform"}
    | {"shutil", "signal", "sys", "threading"},
    "compare.engine": {"contextlib", "json", "os", "pathlib", "subprocess", "sys", "time"},
    "compare.run": {"traceback"},
    "compare.progress": {"datetime", "time"},
    "compare.summary": {"dataclasses"},
    "compare.tables": {"csv", "dataclasses", "math", "pathlib"},
    "compare.figures": {"contextlib", "math", "pathlib"},
    "compare.report": {"itertools", "pathlib", "textwrap"},
    "command_line": {"argparse", "pathlib"},
    "devices": {"argparse"},
    "compare.command": {"argparse", "pathlib", "sys"},
    "buffers": {"warnings"},
    "rules": {"numbers", "operator"},
    "signatures": {"inspect"},
    "checkpoint": {"io", "os", "pathlib", "re", "sys", "warnings"},
    "streams": {"random"},
    "buffer_choice": {"warnings"},
    "dqn": {"io", "pathlib", "pickle"},
    "zoo": {"importlib", "pathlib"},
    "zoo_commands": {"runpy", "shutil", "subprocess", "sys"},
    "launcher": {"argparse", "importlib", "runpy", "sys"},
    "__init__": {"importlib"},
    "cliffwalk.results": {"csv", "pathlib"},
    "cliffwalk.plot": {"pathlib"},
    "cliffwalk.report": {"pathlib", "sys"},
    "cliffwalk.command": {"argparse", "concurrent", "multiprocessing", "os", "pathlib"}
    | {"threading"},
}


def imports_of(path):
    """Top-level names that a module imports; rooms of ours by their path in the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            is_folder = (PACKAGE.parent / node.module.replace(".", "/")).is_dir()
            whole = node.module.split(".")[0] == "sb3_per" and is_folder
            names = [f"{node.module}.{a.name}" if whole else node.module for a in node.names]
        else:
            continue
        for name in names:
            top, _, room = name.partition(".")
            yield room if top == "sb3_per" else top


def test_every_room_has_its_place_in_the_table():
    rooms = {path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.glob("**/*.py")}

    assert {".".join(room.parts) for room in rooms} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_its_floor_allows(room):
    allowed = MAY_IMPORT[room] | STANDARD_LIBRARY | STANDARD_LIBRARY_OF.get(room, set())

    assert set(imports_of(PACKAGE / f"{room.replace('.', '/')}.py")) <= allowed
