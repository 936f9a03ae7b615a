"""Gradient steps and actions as CUDA graphs: on a GPU, and with a recorder that needs none."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch as th
from graph_cases import (
    CASES,
    CHANGES,
    ReadsNumbers,
    both,
    own_loss,
    state_of,
    vector_env,
)
from models import Point, Still, all_equal, make, parameters
from recorder import CountingRecorder, OperatorRecorder
from stable_baselines3 import DQN
from stable_baselines3.common.save_util import load_from_zip_file

from sb3_per import (
    PERDQN,
    PrioritizedReplayBuffer,
    Rainbow,
    load_checkpoint,
    save_checkpoint,
)
from sb3_per.algorithms import graphs

GPU = [pytest.mark.gpu, pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")]
ON_CPU = pytest.mark.parametrize("recorder", ["cpu"], indirect=True)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=GPU)])
def recorder(request, monkeypatch):
    """CUDA's recorder, or what records on a CPU in its place."""
    found = {"cpu": OperatorRecorder, "cuda": CountingRecorder}[request.param]()
    monkeypatch.setattr(graphs, "RECORDER", found)
    # cuDNN may otherwise add gradients in another order each time.
    monkeypatch.setattr(th.backends.cudnn, "deterministic", True)
    return found


@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_equal_eager_steps(case, recorder):
    recorded, eager = both(device=recorder.device, **CASES[case])

    assert recorder.n_replayed > 200
    assert all_equal(recorded, eager)


@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_long_training_equals_eager_steps(kind, recorder):
    case = {
        "learning_rate": lambda left: float(np.float32(1e-2 * left)),
        "target_update_interval": 50,
    }
    recorded, eager = both(kind, parts=(520, 500), device=recorder.device, **case)

    assert recorder.n_recorded == 6  # gradients, the optimizer's step, actions; in both calls
    assert all_equal(recorded, eager)


@pytest.mark.parametrize("change", CHANGES)
def test_steps_are_recorded_again_after(change, recorder):
    """Within a call of ``learn``, as by a callback."""
    seen = []

    def between(model):
        CHANGES[change](model)
        seen.append(recorder.n_recorded)
        model.train(20, model.batch_size)
        seen.append(recorder.n_recorded)

    recorded, eager = both(env=lambda: vector_env(2), between=between, device=recorder.device)

    assert seen[1] == seen[0] + 2
    assert all_equal(recorded, eager)


def test_steps_are_recorded_again_for_batches_with_other_fields(recorder):
    """With discounts and without infos, as many tensors have the same shapes."""

    def between(model):
        buffer = model.replay_buffer
        options = {**buffer.arguments(), "info_keys": [], "n_steps": 3}
        spaces = buffer.observation_space, buffer.action_space
        model.replay_buffer = PrioritizedReplayBuffer(200, *spaces, buffer.device, 2, **options)

    class Costs(Point):
        def step(self, action):
            *others, info = super().step(action)
            return *others, {**info, "cost": 1.0}

    options = {"env": lambda: vector_env(2, kind=Costs), "options": {"info_keys": ["cost"]}}
    recorded, eager = both(between=between, parts=(100, 100), device=recorder.device, **options)

    assert all_equal(recorded, eager)


@pytest.mark.parametrize(
    "optimizer",
    [{"optimizer_class": th.optim.RMSprop}, {"optimizer_kwargs": {"fused": False}}],
    ids=["RMSprop", "not fused"],
)
def test_other_optimizers_are_refused(optimizer, recorder):
    model = make(cuda_graphs=True, policy_kwargs=optimizer, device=recorder.device)

    with pytest.raises(ValueError, match=r"needs torch's fused Adam.*got (RMSprop|Adam)$"):
        model.learn(50)


def test_autocast_is_refused(recorder):
    model = make(cuda_graphs=True, device=recorder.device)
    with (
        th.autocast(recorder.device, th.bfloat16),
        pytest.raises(ValueError, match="no autocast"),
    ):
        model.learn(100)


def test_network_that_waits_for_the_device_is_an_error_with_advice(recorder):
    options = {"policy_kwargs": {"features_extractor_class": ReadsNumbers}}
    model = make(cuda_graphs=True, device=recorder.device, **options)
    with pytest.raises(RuntimeError, match="use cuda_graphs=False: "):
        model.learn(100)


def test_steps_are_eager_by_default(recorder):
    make(device=recorder.device).learn(100)

    assert recorder.n_recorded == 0


def test_overridden_loss_is_recorded(recorder):
    options = {"between": own_loss, "parts": (100, 100), "device": recorder.device}
    recorded, eager = both(**options)

    assert recorder.n_recorded == 6
    assert all_equal(recorded, eager)


def test_td_errors_that_are_not_finite_raise_before_the_step(recorder):
    model = make(env=vector_env(), cuda_graphs=True, device=recorder.device).learn(60)
    before, replayed = parameters(model), recorder.n_replayed
    model.replay_buffer.rewards[:] = np.inf

    with pytest.raises(ValueError, match="finite"):
        model.train(1, 8)

    assert recorder.n_replayed == replayed + 1  # the gradients
    assert all_equal(parameters(model), before)
    assert model.replay_buffer.device == model.device


# Files and copies.


@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_files_hold_nothing_of_graphs(kind, recorder, tmp_path, monkeypatch):
    model = make(kind, vector_env(), cuda_graphs=True, device=recorder.device).learn(60)
    model.save(tmp_path / "model")

    for name, value in model.policy.optimizer.state_dict()["param_groups"][0].items():
        assert not isinstance(value, th.Tensor), name
    assert not model.policy.optimizer.param_groups[0]["capturable"]
    assert "_graphs" not in load_from_zip_file(tmp_path / "model")[0]
    monkeypatch.undo()
    for device in sorted({"cpu", recorder.device}):
        options = {"env": model.get_env(), "device": device}
        loaded = kind.load(tmp_path / "model", **options)
        assert all_equal(*([x.cpu() for x in parameters(one)] for one in (loaded, model)))
        assert (loaded.learn(60)._graphs.compute_gradients is not None) == (device == "cuda")
        if kind is PERDQN:
            DQN.load(tmp_path / "model", **options).learn(200)


@ON_CPU
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_cuda_graphs_argument_is_stored(cuda_graphs, recorder, tmp_path, monkeypatch):
    model = make(env=vector_env(), cuda_graphs=cuda_graphs).learn(60)
    model.save(tmp_path / "model")
    save_checkpoint(model, tmp_path / "run.ckpt")

    loaded = PERDQN.load(tmp_path / "model", env=model.get_env())
    assert loaded.cuda_graphs is cuda_graphs
    assert load_checkpoint(tmp_path / "run.ckpt", model.get_env()).cuda_graphs is cuda_graphs
    assert PERDQN.load(tmp_path / "model", cuda_graphs=False).cuda_graphs is False
    monkeypatch.undo()  # the choice does not stop a machine without a GPU
    PERDQN.load(tmp_path / "model", env=model.get_env()).learn(60)


@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_resumed_run_equals_an_uninterrupted_one(kind, recorder, tmp_path):
    """Both continue from a checkpoint; recording must not touch moments and generators."""
    device = recorder.device
    graphs_on = {"cuda_graphs": True, "device": device}
    model = make(kind, vector_env(kind=Still), **graphs_on).learn(63)  # to an episode's end
    save_checkpoint(model, tmp_path / "run.ckpt")
    states = [state_of(model.learn(100, reset_num_timesteps=False))]
    for cuda_graphs in (True, False):
        env = vector_env(kind=Still)
        resumed = load_checkpoint(tmp_path / "run.ckpt", env, device, cuda_graphs=cuda_graphs)
        resumed.learn(100, reset_num_timesteps=False)
        states.append(state_of(resumed))

    assert all_equal(states[0], states[2])
    assert all_equal(states[1], states[2])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_record_their_own(copied, recorder):
    model = make(env=vector_env(), cuda_graphs=True, device=recorder.device).learn(60)
    other, before = copied(model), parameters(model)
    n_recorded = recorder.n_recorded
    other.train(5, 8)

    assert recorder.n_recorded == n_recorded + 2
    assert all_equal(parameters(model), before)
    assert not all_equal(parameters(other), before)
    model.train(5, 8)
    assert recorder.n_recorded == n_recorded + 2


@ON_CPU
def test_graphs_end_with_their_model(recorder):
    model = make(env=vector_env(2), cuda_graphs=True).learn(100)
    end = weakref.ref(model._graphs.compute_gradients)
    del model
    gc.collect()

    assert end() is None
