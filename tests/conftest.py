from importlib.util import find_spec

import gymnasium as gym
import pytest
import torch as th
from hypothesis import settings

# No test asserts a time, and the first call of a kernel compiles it; the same examples every time.
settings.register_profile("sb3-per", deadline=None, derandomize=True)
settings.load_profile("sb3-per")

# Networks this small learn faster on one thread, and the tests share the cores anyway.
th.set_num_threads(1)

# RL-Zoo needs gymnasium 1.0, and make test-oldest goes below that.
_OF_RL_ZOO = ["benchmarks/*.py", "compare/*.py", "test_cli.py", "test_zoo.py"]
collect_ignore_glob = [] if find_spec("rl_zoo3") else _OF_RL_ZOO


def pytest_collection_modifyitems(items):
    """Run slow tests first: at the end, one of them would leave the other cores idle."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def own_registry():
    """Environments that a test registers are gone after it."""
    before = set(gym.registry)
    yield
    for name in set(gym.registry) - before:
        del gym.registry[name]
