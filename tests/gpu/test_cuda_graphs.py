"""
CUDA graphs, where only a GPU can tell: ``python -m pytest -m gpu``.

The tests in ``tests/algorithms/test_graphs.py`` run both with and without a GPU.
"""

import gc
import threading

import pytest
import torch as th
from graph_cases import IMAGE, vector_env
from models import all_equal, make, parameters

from sb3_per import PERDQN, Rainbow

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(autouse=True)
def same_convolutions(monkeypatch):
    """cuDNN may otherwise add gradients in another order each time."""
    monkeypatch.setattr(th.backends.cudnn, "deterministic", True)


def model_of(kind=PERDQN, cuda_graphs=True, **arguments):
    env = arguments.pop("env", vector_env)()
    return make(kind, env, cuda_graphs=cuda_graphs, device="cuda", **arguments)


def has_step(model):
    return model._graphs.compute_gradients is not None


def test_two_models_take_turns():
    models = [model_of(seed=seed).learn(100) for seed in (0, 1)]
    eager = [model_of(seed=seed, cuda_graphs=False).learn(100) for seed in (0, 1)]
    for _ in range(50):
        for model in models + eager:
            model.train(1, 8)

    for recorded, other in zip(models, eager, strict=True):
        assert has_step(recorded)
        assert all_equal(parameters(recorded), parameters(other))


def test_graphs_outlive_those_of_another_model():
    options = {"policy": "CnnPolicy", "env": lambda: vector_env(space=IMAGE)}
    models = [make(device="cuda", cuda_graphs=on, **options).learn(100) for on in (True, False)]
    other = make(device="cuda", cuda_graphs=True, **options).learn(100)
    del other
    gc.collect()
    th.cuda.empty_cache()
    taken = [th.full((2**20,), th.nan, device="cuda") for _ in range(64)]  # where it was
    for model in models:
        model.train(50, 8)

    assert all(tensor.isnan().all() for tensor in taken)
    assert has_step(models[0])
    assert all_equal(*map(parameters, models))


def test_ten_models_leave_no_memory_behind():
    def memory_after(n_models):
        for seed in range(n_models):
            model_of(Rainbow, env=lambda: vector_env(2), seed=seed).learn(100)
            gc.collect()
        th.cuda.empty_cache()
        return th.cuda.memory_allocated(), th.cuda.memory_reserved()

    before = memory_after(2)  # workspaces of cuBLAS stay
    after = memory_after(10)

    assert after[0] <= before[0] + 2**20
    assert after[1] <= before[1] + 2**22


def test_another_thread_may_use_the_gpu_meanwhile():
    stop, errors = threading.Event(), []

    def work():
        try:
            while not stop.is_set():
                th.randn(1000, device="cuda").sum().item()
                th.empty(2**20, dtype=th.uint8).pin_memory()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        models = [model_of(seed=seed).learn(100) for seed in range(3)]
    finally:
        stop.set()
        thread.join()

    assert not errors
    assert all(map(has_step, models))
