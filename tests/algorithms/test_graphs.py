"""Gradient steps and actions as CUDA graphs: on a GPU, and with a recorder that needs none."""

import copy
import gc
import pickle
import warnings
import weakref

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
    Normed,
    both,
    observations_of,
    one_of,
    own_loss,
    state_of,
    vector_env,
    with_new_memory,
)
from models import Point, Still, all_equal, make, parameters
from recorder import CountingRecorder, OperatorRecorder
from stable_baselines3 import DQN
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.dqn.policies import DQNPolicy

from sb3_per import (
    PERDQN,
    PrioritizedReplayBuffer,
    Rainbow,
    collect,
    load_checkpoint,
    save_checkpoint,
)
from sb3_per.algorithms import graphs
from sb3_per.algorithms.graphs import CudaRecorder, RecordedStep

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
    case = {"learning_rate": lambda left: 1e-2 * left, "target_update_interval": 50}
    recorded, eager = both(kind, parts=(520, 500), device=recorder.device, **case)

    assert recorder.n_recorded == 3  # gradients, the optimizer's step, actions
    assert all_equal(recorded, eager)


@pytest.mark.parametrize("change", CHANGES)
def test_steps_are_recorded_again_after(change, recorder):
    seen = []

    def between(model):
        CHANGES[change](model)
        seen.append(recorder.n_recorded)

    options = {"env": lambda: vector_env(2), "parts": (100, 100), "device": recorder.device}
    recorded, eager = both(between=between, **options)

    assert recorder.n_recorded >= seen[0] + 2
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


@pytest.mark.parametrize("reason", OBSTACLES)
def test_steps_are_eager_where_they_cannot_be_recorded(reason, recorder, capsys):
    options = {"policy_kwargs": OBSTACLES[reason], "device": recorder.device}
    recorded, eager = both(verbose=1, **options)

    assert recorder.n_recorded == (1 if reason in ("RMSprop", "fused") else 0)  # actions
    assert all_equal(recorded, eager)
    lines = [line for line in capsys.readouterr().out.splitlines() if "CUDA graphs" in line]
    assert len(lines) == 1
    assert reason in lines[0]
    with pytest.raises(ValueError, match=f"cuda_graphs=True .*{reason}"):
        make(cuda_graphs=True, **options).learn(50)


@ON_CPU
def test_steps_are_eager_after_a_recording_that_failed(recorder, monkeypatch):
    """CUDA refuses something that nobody could have known."""
    record, calls = recorder.record, []

    def fails(function, pool):
        record(function, pool)
        calls.append(function)
        raise RuntimeError("operation not permitted")

    monkeypatch.setattr(recorder, "record", fails)
    recorded, eager = both(Rainbow, env=lambda: vector_env(2))

    assert len(calls) == 2  # the gradients and the actions, once each
    assert all_equal(recorded, eager)


def test_notice_of_the_debug_mode_is_no_wait(monkeypatch):
    modes = []

    def set_mode(mode):
        if not modes:  # torch says so once in a process
            warnings.warn(
                "Synchronization debug mode is a prototype feature and does not yet detect all "
                "synchronizing operations",
                stacklevel=1,
            )
        modes.append(mode)

    def wait():
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    monkeypatch.setattr(th.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(th.cuda, "set_sync_debug_mode", set_mode)

    assert not CudaRecorder().waits(lambda: None)
    assert CudaRecorder().waits(wait)
    assert modes == ["warn", 0] * 2


def test_autocast_is_eager(recorder):
    model = make(device=recorder.device)
    with th.autocast(recorder.device, th.bfloat16):
        model.learn(100)

    assert recorder.n_recorded == 0


def test_overridden_loss_is_recorded_only_if_wanted(recorder):
    recorded, eager = both(between=own_loss, parts=(0, 100), device=recorder.device)
    assert recorder.n_recorded == 1  # the choice of actions
    assert all_equal(recorded, eager)

    model = make(env=vector_env(), cuda_graphs=True, device=recorder.device)
    own_loss(model)
    assert all_equal(state_of(model.learn(100)), eager)
    assert recorder.n_recorded == 4

    states = []
    for cuda_graphs in (True, False):
        model = make(env=vector_env(), cuda_graphs=cuda_graphs, device=recorder.device).learn(100)
        own_loss(model, 20)
        states.append(state_of(model.learn(100, reset_num_timesteps=False)))
    assert all_equal(*states)


def test_td_errors_that_are_not_finite_raise_before_the_step(recorder):
    model = make(env=vector_env(), device=recorder.device).learn(60)
    before, replayed = parameters(model), recorder.n_replayed
    model.replay_buffer.rewards[:] = np.inf

    with pytest.raises(ValueError, match="finite"):
        model.train(1, 8)

    assert recorder.n_replayed == replayed + 1  # the gradients
    assert all_equal(parameters(model), before)
    assert model.replay_buffer.device == model.device


@ON_CPU
@pytest.mark.parametrize("case", ["two envs", "frames", "Dict", "images"])
def test_observations_are_gathered_where_the_gpu_copies_from(case, recorder, monkeypatch):
    arguments = dict(CASES[case])
    model = make(env=arguments.pop("env")(), **arguments).learn(60)
    step, n_in_place = model._graphs._step, []

    def compute_gradients(batch):
        parts = zip(step._inputs._targets, graphs.tensors_in(batch), strict=True)
        n_in_place.append(sum(place.data_ptr() == part.data_ptr() for place, part in parts))
        return RecordedStep.compute_gradients(step, batch)

    monkeypatch.setattr(step, "compute_gradients", compute_gradients)
    model.train(3, 8)

    assert n_in_place == [6 if case == "Dict" else 2] * 3
    assert model.replay_buffer.new_array is None


@ON_CPU
def test_batches_come_from_the_host(recorder):
    model = make(env=vector_env())
    model.add_demonstrations(collect(model, vector_env(), 30))
    model.learn(60)
    model.replay_buffer.device = th.device("meta")  # in place of a GPU
    model.train(5, 8)

    assert recorder.n_replayed > 50
    assert model.replay_buffer.device.type == "meta"


@ON_CPU
def test_batches_of_other_buffers_stay_on_their_device(recorder):
    class Own(PrioritizedReplayBuffer):
        def sample(self, *args, **kwargs):
            assert self.device == th.device("meta")
            self.device = th.device("cpu")
            batch = super().sample(*args, **kwargs)
            self.device = th.device("meta")
            return batch

    model = make(env=vector_env(), replay_buffer_class=Own)
    model.learn(19)
    model.replay_buffer.device = th.device("meta")
    model.learn(50)

    assert recorder.n_replayed > 0


# Files and copies.


@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_files_hold_nothing_of_graphs(kind, recorder, tmp_path, monkeypatch):
    model = make(kind, vector_env(), cuda_graphs=False, device=recorder.device).learn(60)
    model.cuda_graphs = None
    model.learn(60)
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
        assert (loaded.learn(60)._graphs._step is not None) == (device == "cuda")
        if kind is PERDQN:
            DQN.load(tmp_path / "model", **options).learn(200)


@ON_CPU
@pytest.mark.parametrize("cuda_graphs", [None, True, False])
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


def test_graphs_need_a_gpu():
    with pytest.raises(ValueError, match="cuda_graphs=True needs a CUDA device, got cpu"):
        make(cuda_graphs=True)
    with pytest.raises(ValueError, match="cuda_graphs must be one of"):
        make(cuda_graphs="yes")


@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_resumed_run_equals_an_uninterrupted_one(kind, recorder, tmp_path):
    """Both continue from a checkpoint; recording must not touch moments and generators."""
    device = recorder.device
    model = make(kind, vector_env(kind=Still), device=device).learn(63)  # to an episode's end
    save_checkpoint(model, tmp_path / "run.ckpt")
    states = [state_of(model.learn(100, reset_num_timesteps=False))]
    for cuda_graphs in (None, False):
        env = vector_env(kind=Still)
        resumed = load_checkpoint(tmp_path / "run.ckpt", env, device, cuda_graphs=cuda_graphs)
        resumed.learn(100, reset_num_timesteps=False)
        states.append(state_of(resumed))

    assert all_equal(states[0], states[2])
    assert all_equal(states[1], states[2])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_record_their_own(copied, recorder):
    model = make(env=vector_env(), device=recorder.device).learn(60)
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
    model = make(env=vector_env(2)).learn(100)
    ends = [weakref.ref(model._graphs._step), *map(weakref.ref, model._graphs._acting.values())]
    assert len(ends) == 2
    del model
    gc.collect()

    assert [end() for end in ends] == [None, None]


# Actions.


@pytest.mark.parametrize("space", [VECTOR, IMAGE, DICT], ids=["vector", "image", "dict"])
@pytest.mark.parametrize("kind", [PERDQN, Rainbow])
def test_recorded_actions_equal_those_of_the_policy(kind, space, recorder, monkeypatch):
    policy = "CnnPolicy" if space is IMAGE else "MultiInputPolicy" if space is DICT else "MlpPolicy"
    model = make(kind, vector_env(space=space), policy, device=recorder.device)
    model.exploration_rate = 0.3
    actions = []
    for records in (True, False):
        monkeypatch.setattr(recorder, "fits", lambda device, records=records: records)
        model.set_random_seed(0)
        actions += [
            [
                model.predict(shaped(observations_of(space, 3, seed)), deterministic=deterministic)[
                    0
                ]
                for seed in range(30)
                for deterministic in (False, True)
                for shaped in (lambda observations: observations, one_of)
            ]
        ]

    assert recorder.n_recorded == 4
    assert recorder.n_replayed > 50
    for left, right in zip(*actions, strict=True):
        assert type(left) is type(right)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(left, right)


@ON_CPU
def test_recorded_actions_follow_the_network(recorder):
    network = {"features_extractor_class": Normed}  # it differs while it is trained
    model = make(env=vector_env(), policy_kwargs=network).learn(60)
    model.lr_schedule = lambda left: 0.1
    observations = observations_of(VECTOR, 50)

    def check():
        for _ in range(graphs.N_SEEN + 1):
            model.train(1, 8)
            found = model.predict(observations, deterministic=True)[0]
        expected = model.policy.predict(observations, deterministic=True)[0]
        np.testing.assert_array_equal(found, expected)
        return found

    before = check()
    model.train(30, 8)
    assert (check() != before).any()
    with_new_memory(model)
    model.train(30, 8)
    check()
    model.policy.q_net = copy.deepcopy(model.policy.q_net_target)
    check()
    for change in ("new head", "assigned weights", "pruned layer"):
        CHANGES[change](model)
        check()


@ON_CPU
@pytest.mark.parametrize("name", ["predict", "obs_to_tensor"])
@pytest.mark.parametrize("is_class", [True, False])
def test_policies_that_see_other_observations_act_themselves(name, is_class, recorder):
    model = make(env=vector_env()).learn(60)
    sb3s, observations = getattr(type(model.policy), name), observations_of(VECTOR, 50)

    def own(self, observation, *args, **kwargs):
        return sb3s(self, -observation, *args, **kwargs)

    policy = model.policy
    if is_class:
        policy.__class__ = type("Own", (type(policy),), {name: own})
    else:
        setattr(policy, name, own.__get__(policy))

    for _ in range(2 * graphs.N_SEEN):
        found = model.predict(observations, deterministic=True)[0]
        np.testing.assert_array_equal(found, policy.predict(observations, deterministic=True)[0])


@pytest.mark.parametrize("cuda_graphs", [None, True])
def test_choices_of_a_users_policy_are_recorded_only_if_wanted(cuda_graphs, recorder):
    class Own(DQNPolicy):
        sign = 1

        def _predict(self, observation, deterministic=True):
            return super()._predict(self.sign * observation, deterministic)

    model = make(env=vector_env(), policy=Own, cuda_graphs=cuda_graphs, device=recorder.device)
    observations = observations_of(VECTOR, 50)
    actions = [model.predict(observations)[0] for _ in range(2 * graphs.N_SEEN)]

    model.policy.sign = -1

    is_recorded = recorder.n_recorded == 1
    assert is_recorded == (cuda_graphs is True)
    assert (model.predict(observations)[0] == actions[0]).all() == is_recorded


@ON_CPU
def test_few_shapes_of_observations_have_a_graph(recorder):
    model = make(env=vector_env())
    for _ in range(2 * graphs.N_SEEN):
        for n in range(1, 15):
            model.predict(observations_of(VECTOR, n), deterministic=True)

    assert recorder.n_recorded == graphs.N_ACTING


@ON_CPU
def test_transposed_images_are_left_to_sb3(recorder):
    model = make(env=vector_env(space=IMAGE), policy="CnnPolicy")
    observations = observations_of(IMAGE, 2)
    for _ in range(2 * graphs.N_SEEN):
        found, _ = model.predict(np.moveaxis(observations, 1, 3), deterministic=True)

    np.testing.assert_array_equal(found, model.policy.predict(observations)[0])
    assert recorder.n_recorded == 0
