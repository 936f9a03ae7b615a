"""
Small mistakes, one at a time, in prioritization and the buffers: does a test notice?

``python tests/support/mutants.py --n 200`` copies the checkout, breaks one place in the copy, runs
the tests that know it, and prints what survived. First without numba, whose compiling would take
most of the time, and without the tests that are slow then; what survives that meets all of them.
``--first 78`` goes on where an earlier run was broken off: the same seed gives the same mutants.
``--modules saving/archive`` looks at some modules alone.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 300  # seconds for the tests of one module
# Slow without numba, or started as programs of their own.
SLOW = [
    "frequencies",
    "memory",
    "starve",
    "often",
    "131072",
    "million",
    "follow",
    "rejects",
    "killed",
]
# What knows a module best.
TESTS = {
    "prioritization/sum_tree": "prioritization/test_sum_tree prioritization/test_proportional"
    " buffers/test_prioritized_buffer",
    "prioritization/sampling": "prioritization/test_sampling buffers/test_prioritized_buffer",
    "prioritization/base": "prioritization/test_proportional prioritization/test_rank_based"
    " buffers/test_prioritized_buffer",
    "prioritization/proportional": "prioritization/test_proportional"
    " buffers/test_prioritized_buffer saving/test_buffer_files",
    "prioritization/rank_based": "prioritization/test_rank_based buffers/test_prioritized_buffer"
    " saving/test_buffer_files",
    "prioritization/ranking": "prioritization/test_ranking prioritization/test_rank_based"
    " saving/test_buffer_files",
    "prioritization/rank_tree": "prioritization/test_ranking prioritization/test_rank_based",
    "prioritization/pending_updates": "buffers/test_prioritized_buffer buffers/test_faults",
    "buffers/n_step": "buffers/test_storage",
    "buffers/arguments": "buffers/test_prioritized_buffer",
    "buffers/storage": "buffers/test_storage buffers/test_frames buffers/test_prioritized_buffer"
    " saving/test_buffer_files",
    "buffers/prioritized": "buffers/test_prioritized_buffer saving/test_buffer_files",
    "buffers/frames": "buffers/test_frames",
    "buffers/her": "buffers/test_her",
    "buffers/goals": "buffers/test_her saving/test_crafted_files",
    "buffers/ring": "buffers/test_storage buffers/test_prioritized_buffer",
    "buffers/upgrade": "saving/test_files_of_0_1_0",
    "prioritization/lap": "prioritization/test_sampler prioritization/test_proportional",
    "prioritization/sampler": "prioritization/test_sampler buffers/test_prioritized_buffer"
    " saving/test_buffer_files",
    "prioritization/stored_state": "saving/test_crafted_files saving/test_buffer_files",
    "saving/archive": "saving/test_archive saving/test_crafted_files saving/test_buffer_files",
    "saving/atomic": "saving/test_archive saving/test_buffer_files saving/test_checkpoint",
    "saving/buffer_files": "saving/test_buffer_files saving/test_crafted_files",
    "saving/checkpoint": "saving/test_checkpoint saving/test_crafted_files",
    "saving/checkpoint_callback": "saving/test_checkpoint",
    "saving/random_state": "saving/test_checkpoint",
    "saving/structure": "saving/test_crafted_files saving/test_archive",
    "algorithms/prioritized": "algorithms/test_dqn algorithms/test_critics",
    "algorithms/critic_loss": "algorithms/test_critics",
    "algorithms/buffer_options": "algorithms/test_dqn",
}
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip  # pairs read best side by side


def mutations(tree):
    """(node, what to do with it) for each place where a mistake can be made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield node, "ops"
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
            yield node, "op"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node, "value"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node, "call"
        elif isinstance(node, ast.Assign | ast.AugAssign):
            yield node, "assignment"


def mutate(node, what):
    if what == "ops":
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif what == "op":
        node.op = SWAPS[type(node.op)]()
    elif what == "value":
        node.value += 1
    else:
        node.__class__ = ast.Pass


def mutants_of(module):
    """(line, what, text) of every mutant of a module."""
    text = (ROOT / "sb3_per" / f"{module}.py").read_text()
    n_places = sum(1 for _ in mutations(ast.parse(text)))
    for place in range(n_places):
        tree = ast.parse(text)
        node, what = list(mutations(tree))[place]
        line, before = node.lineno, ast.unparse(node)
        mutate(node, what)
        yield module, line, f"{what} of {before}", ast.unparse(tree)


def passes(copy, module, *, compiled=False):
    """Whether the tests of a module pass; None if they take too long: a loop may never end."""
    tests = [f"tests/{name}.py" for name in TESTS[module].split()]
    chosen = ["-m", "not slow"]
    chosen += [] if compiled else ["-k", " and ".join(f"not {word}" for word in SLOW)]
    command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", *chosen, *tests]
    with tempfile.TemporaryDirectory() as cache:  # its own: numba does not see changed callees
        numba = {"NUMBA_CACHE_DIR": cache} if compiled else {"NUMBA_DISABLE_JIT": "1"}
        environment = {**os.environ, **numba, "PYTHONPATH": str(copy)}
        try:
            run = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return None
    return run.returncode == 0


def verdict_on(copy, module, text):
    path = copy / "sb3_per" / f"{module}.py"
    original = path.read_text()
    path.write_text(text)
    try:
        verdict = passes(copy, module) and passes(copy, module, compiled=True)
        return {True: "SURVIVED", False: "killed", None: "killed or slow"}[verdict]
    finally:
        path.write_text(original)


def main(n_mutants, seed, first, last, among):
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
        # Tests that fail on the unbroken code, or take too long, would kill everything.
        modules = [module for module in among if passes(copy, module)]
        left_out = sorted({*among} - {*modules})
        say(f"not looked at, since their tests fail or are too slow: {left_out}")
        everything = [mutant for module in modules for mutant in mutants_of(module)]
        chosen = random.Random(seed).sample(everything, min(n_mutants, len(everything)))
        for i, (module, line, what, text) in list(enumerate(chosen, start=1))[first - 1 : last]:
            say(f"{i}/{len(chosen)} {verdict_on(copy, module, text)} {module}.py:{line} {what}")


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int)
    parser.add_argument("--modules", nargs="+", default=[*TESTS], choices=[*TESTS])
    arguments = parser.parse_args()
    main(arguments.n, arguments.seed, arguments.first, arguments.last, arguments.modules)
