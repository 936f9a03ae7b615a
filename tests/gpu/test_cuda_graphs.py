"""
CUDA graphs on a GPU: ``python -m pytest -m gpu tests/gpu``.

The tests in ``tests/algorithms/test_graphs.py`` have the same cases, and need no GPU.
"""

import copy
import gc
import threading

import numpy as np
import pytest
import torch as th
from graph_cases import (
    CASES,
    CHANGES,
    DICT,
    IMAGE,
    OBSTACLES,
    VECTOR,
    both,
    observations_of,
    one_of,
    own_loss,
    state_of,
    vector_env,
)
from models import all_equal, make, parameters
from stable_baselines3 import DQN
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_per import PERDQN, Rainbow, load_checkpoint, save_checkpoint
from sb3_per.algorithms import graphs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(autouse=True)
def same_convolutions(monkeypatch):
    """cuDNN may otherwise add gradients in another order each time."""
    monkeypatch.setattr(th.backends.cudnn, "deterministic", True)


def model_of(kind=PERDQN, **arguments):
    return make(kind, arguments.pop("env", vector_env)(), device="cuda", **arguments)


def has_step(model):
    return model._graphs._step is not None


@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_equal_eager_steps(case):
    recorded, eager = both(device="cuda", **CASES[case])

    assert all_equal(recorded, eager)


@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_a_thousand_steps(kind):
    case = {"learning_rate": lambda left: 1e-2 * left, "target_update_interval": 50}
    recorded, eager = both(kind, parts=(600, 600), device="cuda", **case)

    assert all_equal(recorded, eager)


def test_steps_and_actions_are_recorded():
    model = model_of(cuda_graphs=True, verbose=1).learn(200)

    assert has_step(model)
    assert len(model._graphs._acting) == 1
    assert model.replay_buffer.sample(4).observations.is_cuda


@pytest.mark.parametrize("change", CHANGES)
def test_steps_are_recorded_again_after(change):
    recorded, eager = both(
        between=CHANGES[change], env=lambda: vector_env(2), parts=(100, 100), device="cuda"
    )

    assert all_equal(recorded, eager)


@pytest.mark.parametrize("reason", OBSTACLES)
def test_steps_are_eager_where_they_cannot_be_recorded(reason, capsys):
    recorded, eager = both(policy_kwargs=OBSTACLES[reason], verbose=1, device="cuda")

    assert all_equal(recorded, eager)
    assert capsys.readouterr().out.count("CUDA graphs") == 1
    with pytest.raises(ValueError, match=f"cuda_graphs=True .*{reason}"):
        model_of(policy_kwargs=OBSTACLES[reason], cuda_graphs=True).learn(50)


class WaitsWhileRecorded(FlattenExtractor):
    """A network whose recording fails as late as possible."""

    def forward(self, observations):
        features = super().forward(observations)
        if th.cuda.is_current_stream_capturing():
            features.sum().item()
        return features


@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_nothing_is_lost_after_a_recording_that_failed(kind):
    other = model_of(Rainbow).learn(100)
    waits = {"policy_kwargs": {"features_extractor_class": WaitsWhileRecorded}}
    recorded, eager = both(kind, device="cuda", **waits)

    assert all_equal(recorded, eager)
    th.randn(3, device="cuda")
    th.cuda.empty_cache()
    assert has_step(other.learn(50, reset_num_timesteps=False))
    assert has_step(model_of(Rainbow).learn(100))


def test_autocast_is_eager():
    model = model_of()
    with th.autocast("cuda", th.bfloat16):
        model.learn(100)

    assert not has_step(model)


def test_overridden_loss_is_recorded_only_if_wanted():
    recorded, eager = both(between=own_loss, parts=(0, 100), device="cuda")
    model = model_of(cuda_graphs=True)
    own_loss(model)

    assert all_equal(recorded, eager)
    assert all_equal(state_of(model.learn(100)), eager)
    assert has_step(model)


def test_td_errors_that_are_not_finite_raise_before_the_step():
    model = model_of().learn(60)
    before = parameters(model)
    model.replay_buffer.rewards[:] = np.inf

    with pytest.raises(ValueError, match="finite"):
        model.train(1, 8)
    assert all_equal(parameters(model), before)


@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_files_hold_nothing_of_graphs(kind, tmp_path):
    model = model_of(kind).learn(100)
    model.save(tmp_path / "model")

    assert has_step(model)
    for device, cuda_graphs in (("cpu", None), ("cuda", False), ("cuda", None)):
        loaded = kind.load(
            tmp_path / "model", env=model.get_env(), device=device, cuda_graphs=cuda_graphs
        )
        loaded.learn(60)
        assert has_step(loaded) == (device == "cuda" and cuda_graphs is None)
    if kind is PERDQN:
        for device in ("cpu", "cuda"):
            DQN.load(tmp_path / "model", env=model.get_env(), device=device).learn(60)


@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_resumed_runs_are_the_same_with_and_without_graphs(kind, tmp_path):
    save_checkpoint(model_of(kind).learn(60), tmp_path / "run.ckpt")
    states = []
    for cuda_graphs in (None, False):
        vector_env().observation_space.seed(0)  # the environments share it
        resumed = load_checkpoint(
            tmp_path / "run.ckpt", vector_env(), device="cuda", cuda_graphs=cuda_graphs
        )
        states.append(state_of(resumed.learn(100, reset_num_timesteps=False)))

    assert all_equal(*states)


@pytest.mark.parametrize("space", [VECTOR, IMAGE, DICT], ids=["vector", "image", "dict"])
@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_recorded_actions_equal_those_of_the_policy(kind, space):
    policy = "CnnPolicy" if space is IMAGE else "MultiInputPolicy" if space is DICT else "MlpPolicy"
    actions = []
    for cuda_graphs in (None, False):
        env = lambda: vector_env(space=space)  # noqa: E731
        model = model_of(kind, env=env, policy=policy, cuda_graphs=cuda_graphs)
        model.exploration_rate = 0.3
        actions += [
            [
                model.predict(shaped(observations_of(space, 3, seed)), deterministic=deterministic)[
                    0
                ]
                for seed in range(50)
                for deterministic in (False, True)
                for shaped in (lambda observations: observations, one_of)
            ]
        ]
        assert len(model._graphs._acting) == (4 if cuda_graphs is None else 0)

    for left, right in zip(*actions, strict=True):
        np.testing.assert_array_equal(left, right)


def test_noise_is_new_in_each_replay():
    model = model_of(Rainbow, policy_kwargs={"noisy_sigma": 5.0})
    observations = observations_of(VECTOR, 50)
    actions = [model.predict(observations)[0] for _ in range(3 * graphs.N_SEEN)]

    assert len(model._graphs._acting) == 1
    assert len({action.tobytes() for action in actions}) == len(actions)


def test_two_models_take_turns():
    models = [model_of(seed=seed).learn(100) for seed in (0, 1)]
    eager = [model_of(seed=seed, cuda_graphs=False).learn(100) for seed in (0, 1)]
    for _ in range(50):
        for model in models + eager:
            model.train(1, 8)

    for recorded, other in zip(models, eager, strict=True):
        assert has_step(recorded)
        assert all_equal(parameters(recorded), parameters(other))


def test_copies_record_their_own():
    model = model_of().learn(60)
    other, before = copy.deepcopy(model), parameters(model)
    other.train(20, 8)

    assert has_step(other)
    assert all_equal(parameters(model), before)
    assert not all_equal(parameters(other), before)


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
        models = [model_of(cuda_graphs=True, seed=seed).learn(100) for seed in range(3)]
    finally:
        stop.set()
        thread.join()

    assert not errors
    assert all(map(has_step, models))


def test_threads_may_share_a_model():
    model = model_of()
    observations = [observations_of(VECTOR, 7, seed) for seed in range(4)]
    expected = [model.policy.predict(one, deterministic=True)[0] for one in observations]
    wrong = []

    def act(index):
        for _ in range(300):
            found, _ = model.predict(observations[index], deterministic=True)
            if (found != expected[index]).any():
                wrong.append(index)

    threads = [threading.Thread(target=act, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(model._graphs._acting) == 1
    assert not wrong


def test_predict_in_inference_mode():
    model, observations = model_of(), observations_of(VECTOR, 7)
    with th.inference_mode():
        actions = [model.predict(observations, deterministic=True)[0] for _ in range(15)]
    actions.append(model.predict(observations, deterministic=True)[0])

    assert len(model._graphs._acting) == 1
    assert all((action == actions[0]).all() for action in actions)
