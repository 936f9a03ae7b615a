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
    "sum_tree": GROUND,
    "n_step": GROUND | {"sum_tree"},
    "draws": GROUND | {"sum_tree"},
    "priorities": GROUND | {"draws", "sum_tree"},
    "proportional": GROUND | {"draws", "priorities", "sum_tree"},
    "rank_tree": GROUND | {"sum_tree"},
    "ordered_slots": GROUND | {"rank_tree", "sum_tree"},
    "rank_based": GROUND | {"draws", "ordered_slots", "priorities", "sum_tree"},
    "draw_log": GROUND | {"sum_tree"},
    "arguments": FIRST | {"priorities", "sum_tree"},
    "slot_buffers": FIRST | {"n_step", "priorities", "sum_tree"},
    "buffers": FIRST
    | {"arguments", "draw_log", "draws", "priorities", "proportional", "rank_based"}
    | {"slot_buffers", "sum_tree"},
    "dqn": FIRST | {"gymnasium", "buffers", "priorities"},
    "__init__": {"buffers", "dqn"},
    "zoo_search": ROOF,
    "zoo_commands": ROOF,
    "zoo": ROOF | {"buffers", "dqn", "priorities", "registration", "zoo_search"},
    "registration": {"gymnasium"},
    "envs": {"gymnasium", "numpy", "registration"},
    "cliffwalk/__init__": set(),
    "cliffwalk/memory": GROUND | {"envs", "sum_tree"},
    "cliffwalk/cells": set(),
    "cliffwalk/learner": GROUND | {"cliffwalk/memory", "sum_tree"},
    "cliffwalk/methods": GROUND
    | {"cliffwalk/cells", "cliffwalk/learner", "cliffwalk/memory"}
    | {"draws", "priorities", "proportional", "rank_based", "sum_tree"},
    "cliffwalk/networks": FIRST
    | {"cliffwalk/cells", "cliffwalk/learner", "cliffwalk/memory", "dqn", "envs", "sum_tree"},
    "cliffwalk/results": {"numpy", "cliffwalk/cells"},
    "cliffwalk/plot": {"matplotlib", "numpy", "cliffwalk/cells", "cliffwalk/results"},
    "cliffwalk/report": {"numpy", "cliffwalk/cells", "cliffwalk/plot", "cliffwalk/results"},
    "cliffwalk/command": {"tqdm"}
    | {"cliffwalk/cells", "cliffwalk/methods", "cliffwalk/networks", "cliffwalk/report"}
    | {"cliffwalk/results"},
    "launcher": {"zoo"},
    "__main__": {"launcher"},
}
# No clock, no global randomness and no files below the second floor.
STANDARD_LIBRARY = {"collections", "functools", "typing"}
STANDARD_LIBRARY_OF = {
    "buffers": {"warnings"},
    "dqn": {"inspect", "io", "pathlib"},
    "zoo": {"importlib", "pathlib"},
    "zoo_commands": {"runpy", "shutil", "subprocess", "sys"},
    "launcher": {"argparse", "importlib", "runpy", "sys"},
    "__init__": {"importlib"},
    "cliffwalk/results": {"csv", "pathlib"},
    "cliffwalk/plot": {"pathlib"},
    "cliffwalk/report": {"pathlib", "sys"},
    "cliffwalk/command": {"argparse", "concurrent", "multiprocessing", "os", "pathlib"}
    | {"threading"},
}


def imports_of(path):
    """Top-level names that a module imports; rooms of ours as the table names them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield room_of(name.split("."))


def room_of(parts):
    if parts[0] != "sb3_per":
        return parts[0]
    # What is imported is a room, or something in one, in this package or in one below it.
    paths = ["/".join(parts[1:length]) for length in (3, 2)]
    return next((path for path in paths if path in MAY_IMPORT), parts[1])


def test_every_room_has_its_place_in_the_table():
    rooms = {path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.glob("**/*.py")}
    assert {room.as_posix() for room in rooms} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_its_floor_allows(room):
    allowed = MAY_IMPORT[room] | STANDARD_LIBRARY | STANDARD_LIBRARY_OF.get(room, set())

    assert set(imports_of(PACKAGE / f"{room}.py")) <= allowed
