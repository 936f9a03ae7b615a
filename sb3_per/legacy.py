"""Module names of version 0.1.0, which pickles of models and buffers still hold."""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

# Old module names, below ``sb3_per``, and where their contents are now. ``sb3_per.buffers`` is a
# package that still has its classes.
MOVED = {
    "draw_log": "prioritization.pending_updates",
    "draws": "prioritization.sampling",
    "dqn": "algorithms.dqn",
    "ordered_slots": "prioritization.ranking",
    "priorities": "prioritization.base",
    "proportional": "prioritization.proportional",
    "rank_based": "prioritization.rank_based",
    "rank_tree": "prioritization.rank_tree",
    "sum_tree": "prioritization.sum_tree",
}
# Old names of classes that pickles hold.
RENAMED = {"DrawLog": "PendingUpdates", "OrderedSlots": "Ranking", "Scheme": "SamplingScheme"}


class MovedModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports an old module name with the contents of the new module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != "sb3_per" or name not in MOVED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Return None, so that Python makes an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with the contents of the new one, under their new and old names."""
        new = importlib.import_module(f"sb3_per.{MOVED[module.__name__.removeprefix('sb3_per.')]}")
        names = {old: getattr(new, name) for old, name in RENAMED.items() if hasattr(new, name)}
        module.__dict__.update({**vars(new), **names, "__name__": module.__name__})


def resolve_moved_modules() -> None:
    """Let unpickling find classes under the module names of 0.1.0. A second call does nothing."""
    if not any(isinstance(finder, MovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.append(MovedModuleFinder())
