import copy
import inspect
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from builders import BOX, TWO_ACTIONS, fill, probabilities_in
from gymnasium import spaces
from sb3_per.prioritization.sampling import SampledSlots
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack, VecNormalize

from sb3_per import (
    PERDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    save_buffer,
    save_checkpoint,
)

SMALL = {"buffer_size": 200, "learning_starts": 20, "policy_kwargs": {"net_arch": [16]}}
UNIFORM = {"replay_buffer_kwargs": {"alpha": 0.0}, "beta_initial": 0.0, "beta_final": 0.0}
SPACES = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "discrete": spaces.Discrete(5),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(4),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(4)}),
}


class Noise(gym.Env):
    """Random observations of any space; every second episode of 7 steps is cut by a time limit."""

    action_space = spaces.Discrete(3)

    def __init__(self, space_name="box"):
        self.observation_space = SPACES[space_name]
        self.n_steps = self.n_episodes = 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.n_steps = 0
        self.n_episodes += 1
        return self.observation_space.sample(), {}

    def step(self, action):
        self.n_steps += 1
        over = self.n_steps == 7
        by_time = over and self.n_episodes % 2 == 0
        reward = float(self.np_random.normal())
        return self.observation_space.sample(), reward, over and not by_time, by_time, {}


def policy_for(space_name):
    return {"image": "CnnPolicy", "dict": "MultiInputPolicy"}.get(space_name, "MlpPolicy")


def make(kind=PERDQN, env=None, **options):
    return kind("MlpPolicy", env or Noise(), **{**SMALL, "seed": 0, "device": "cpu", **options})


def ready(model, n_rows=60):
    """The same transitions for each model, and what ``train`` needs outside of ``learn``."""
    model._setup_learn(1000)
    random = np.random.default_rng(0)
    for step in range(n_rows):
        observations = random.uniform(-1, 1, (2, model.n_envs, 3)).astype(np.float32)
        model.replay_buffer.add(
            *observations,
            random.integers(3, size=model.n_envs),
            random.normal(size=model.n_envs) * 3,
            np.full(model.n_envs, step % 7 == 6),
            [{"TimeLimit.truncated": step % 14 == 6}] * model.n_envs,
        )
    return model


def parameters(model):
    return [parameter.detach().clone() for parameter in model.policy.parameters()]


def all_equal(left, right):
    return all(th.equal(one, other) for one, other in zip(left, right, strict=True))


def record(buffer, monkeypatch):
    """Lists that will hold every batch that is sampled and the arguments of every update."""
    sampled, updated = [], []
    sample, update = buffer.sample, buffer.update_priorities

    def sample_and_record(*args, **kwargs):
        sampled.append(sample(*args, **kwargs))
        return sampled[-1]

    def update_and_record(*args):
        updated.append(args)
        update(*args)

    monkeypatch.setattr(buffer, "sample", sample_and_record)
    monkeypatch.setattr(buffer, "update_priorities", update_and_record)
    return sampled, updated


def logged(model):
    return model.logger.name_to_value


# The mathematics


@pytest.mark.parametrize("n_steps", [1, 3])
def test_without_prioritization_one_step_is_dqns(n_steps, monkeypatch):
    """The same batch gives both the same loss and the same gradient."""
    ours = ready(make(n_steps=n_steps, **UNIFORM))
    theirs = ready(make(DQN, n_steps=n_steps))
    theirs.policy.load_state_dict(ours.policy.state_dict())
    batch = ours.replay_buffer.sample(32)
    for model in (ours, theirs):
        monkeypatch.setattr(model.replay_buffer, "sample", lambda *args, **kwargs: batch)
        model.train(gradient_steps=3, batch_size=32)

    assert logged(ours)["train/loss"] == pytest.approx(logged(theirs)["train/loss"], rel=1e-6)
    for own, other in zip(ours.q_net.parameters(), theirs.q_net.parameters(), strict=True):
        th.testing.assert_close(own.grad, other.grad, rtol=1e-5, atol=1e-8)
        th.testing.assert_close(own, other, rtol=1e-5, atol=1e-7)


def draw_as_sb3_does(buffer, monkeypatch):
    """From NumPy's global stream, which also says when to explore."""

    def draw(scheme, batch_size, uniforms, *, with_smallest):
        rows = np.random.randint(0, buffer.size(), size=batch_size)  # noqa: NPY002
        envs = np.random.randint(0, high=buffer.n_envs, size=batch_size)  # noqa: NPY002
        each = 1 / buffer.n_sampleable
        return SampledSlots(rows * buffer.n_envs + envs, np.full(batch_size, each), each)

    monkeypatch.setattr(buffer.prioritization, "sample", draw)


@pytest.mark.parametrize("env", ["CartPole-v1", "LunarLander-v3"])
def test_without_prioritization_a_whole_run_is_dqns(env, monkeypatch):
    """Given DQN's draws and its Adam, PERDQN takes DQN's steps and ends with its network."""
    pytest.importorskip("Box2D" if env == "LunarLander-v3" else "gymnasium")
    options = {"learning_rate": 1e-3, "max_grad_norm": 0.5, "target_update_interval": 50}
    shortest = {"CartPole-v1": 10, "LunarLander-v3": 70}[env]  # so that some end by themselves
    theirs = make(DQN, gym.make(env, max_episode_steps=shortest), **options)
    plain_adam = {**SMALL["policy_kwargs"], "optimizer_kwargs": {"fused": False}}
    ours = make(PERDQN, theirs.env, **options, **UNIFORM, policy_kwargs=plain_adam)
    draw_as_sb3_does(ours.replay_buffer, monkeypatch)
    for model in (theirs, ours):
        model.set_random_seed(1)  # PERDQN's buffer has taken its own seed from the global stream
        model.learn(1000)

    for name in ("observations", "actions", "rewards", "dones", "timeouts"):
        own, other = (getattr(model.replay_buffer, name) for model in (ours, theirs))
        np.testing.assert_array_equal(own, other)
    assert 0 < theirs.replay_buffer.timeouts.sum() < theirs.replay_buffer.dones.sum()
    th.testing.assert_close(parameters(ours), parameters(theirs), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("double_q", [False, True])
def test_loss_and_td_errors_are_worked_out_by_hand(double_q, monkeypatch):
    model = ready(make(double_q=double_q, gamma=0.5))
    batch = model.replay_buffer.sample(3)
    online_next = th.tensor([[0.0, 9.0, 1.0], [5.0, 4.0, 0.0], [0.0, 0.0, 1.0]])
    target_next = th.tensor([[4.0, 2.0, 8.0], [1.0, 6.0, 3.0], [7.0, 7.0, 7.0]])
    online_now = th.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    batch = batch._replace(
        actions=th.tensor([[2], [0], [1]]),
        rewards=th.tensor([[1.0], [-1.0], [8.5]]),
        dones=th.tensor([[0.0], [0.0], [1.0]]),
        weights=th.tensor([[1.0], [0.5], [0.25]]),
    )
    networks = {
        id(batch.observations): online_now,
        id(batch.next_observations): online_next,
    }
    monkeypatch.setattr(model, "q_net", lambda observations: networks[id(observations)])
    monkeypatch.setattr(model, "q_net_target", lambda observations: target_next)

    loss, td_errors = model._weighted_loss(batch)

    # DQN bootstraps from 8 and 6; Double Q-learning from the target's value of actions 1 and 0.
    targets = [1 + 0.5 * 2, -1 + 0.5 * 1, 8.5] if double_q else [1 + 0.5 * 8, -1 + 0.5 * 6, 8.5]
    errors = [targets[0] - 3, targets[1] - 4, targets[2] - 8]
    huber = [abs(e) - 0.5 if abs(e) > 1 else e * e / 2 for e in errors]
    assert td_errors.flatten().tolist() == errors
    assert loss.item() == pytest.approx((huber[0] + 0.5 * huber[1] + 0.25 * huber[2]) / 3)


def test_the_weighted_gradient_agrees_with_finite_differences():
    model = ready(make())
    for name in ("q_net", "q_net_target"):  # SB3's own would turn observations into float32
        layers = th.nn.Linear(3, 4), th.nn.Tanh(), th.nn.Linear(4, 3)
        setattr(model, name, th.nn.Sequential(*layers).double())
    batch = model.replay_buffer.sample(32)
    floats = {
        name: getattr(batch, name).double()
        for name in ("observations", "next_observations", "rewards", "dones")
    }
    weights = th.linspace(0.1, 1, 32, dtype=th.float64).reshape(-1, 1)
    batch = batch._replace(weights=weights, **floats)
    loss, _ = model._weighted_loss(batch)
    loss.backward()

    for parameter in model.q_net.parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        for i in range(len(flat)):
            losses = []
            for step in (1e-6, -1e-6):
                flat[i] += step
                losses.append(model._weighted_loss(batch)[0].item())
                flat[i] -= step
            assert gradient[i] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-8)


def test_each_gradient_step_gives_the_drawn_slots_their_new_priorities(monkeypatch):
    model = ready(make())
    sampled, updated = record(model.replay_buffer, monkeypatch)
    before = copy.deepcopy(model.q_net), copy.deepcopy(model.q_net_target)

    model.train(gradient_steps=3, batch_size=16)

    assert [slots.tolist() for slots, _ in updated] == [b.slots.tolist() for b in sampled]
    batch, (_, td_errors) = sampled[0], updated[0]
    values = before[0](batch.observations).gather(1, batch.actions.long())
    following = before[1](batch.next_observations).max(dim=1, keepdim=True).values
    errors = batch.rewards + 0.99 * (1 - batch.dones) * following - values
    th.testing.assert_close(th.as_tensor(td_errors), errors.detach())


def test_double_q_learning_is_off_unless_asked_for():
    assert make().double_q is False


# Arguments


def test_it_takes_every_argument_of_dqn_in_its_order_and_then_its_own():
    theirs, ours = (inspect.signature(kind).parameters for kind in (DQN, PERDQN))

    assert [*ours] == [*theirs, "beta_initial", "beta_final", "beta_fraction", "double_q"]
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind), name


def test_every_argument_reaches_dqn():
    env = make_vec_env(Noise)
    values = {name: object() for name in [*inspect.signature(DQN).parameters][2:-1]}
    checked_by_sb3 = {"policy_kwargs": {"a": 1}, "replay_buffer_kwargs": {"b": 2}, "seed": 3}
    values |= {**checked_by_sb3, "stats_window_size": 7, "verbose": 0, "device": "meta"}

    theirs, ours = (
        vars(kind("MlpPolicy", env, **values, _init_setup_model=False)) for kind in (DQN, PERDQN)
    )

    assert {name: ours[name] for name in theirs} == theirs


def test_arguments_by_position_mean_what_they_mean_to_dqn():
    model = PERDQN("MlpPolicy", Noise(), 0.5, 300, 30, 8)

    assert (model.learning_rate, model.buffer_size, model.learning_starts) == (0.5, 300, 30)
    assert model.batch_size == 8


def test_n_steps_and_gamma_reach_the_buffer_and_the_loss(recwarn):
    model = ready(make(n_steps=3, gamma=0.95))

    batch = model.replay_buffer.sample(64)

    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (3, 0.95)
    assert model.n_steps == 3
    lengths = sorted({*batch.discounts.flatten().tolist()}, reverse=True)
    assert lengths == pytest.approx([0.95, 0.95**2, 0.95**3])
    assert not recwarn.list


def test_options_of_the_buffer_reach_it():
    model = make(replay_buffer_kwargs={"alpha": 0.3, "stratified": False}, beta_initial=0.2)

    assert model.replay_buffer.prioritization.alpha == 0.3
    assert model.replay_buffer.scheme.stratified is False
    assert model.replay_buffer.beta == 0.2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"beta_initial": 1.2}, "beta_initial must .* got 1.2"),
        ({"beta_final": -0.2}, "beta_final must .* got -0.2"),
        ({"beta_fraction": 0.0}, "beta_fraction must .* got 0.0"),
        ({"beta_fraction": 1.1}, "beta_fraction must .* got 1.1"),
        ({"beta_initial": "0.4"}, "beta_initial must .* got '0.4'"),
        ({"beta_final": len}, "beta_final must .* got <built-in function len>"),
        ({"beta_fraction": None}, "beta_fraction must .* got None"),
        ({"double_q": "no"}, "double_q must be True or False, got 'no'"),
        ({"alpha": 0.7}, r"no argument 'alpha': pass replay_buffer_kwargs=dict\(alpha=\.\.\.\)$"),
        ({"prioritization": "rank"}, r"pass replay_buffer_kwargs=dict\(prioritization="),
        ({"beta": 0.5}, "no argument 'beta': beta is annealed .* so pass beta_initial$"),
        ({"replay_buffer_kwargs": {"beta": 0.5}}, "so pass beta_initial to the algorithm$"),
        ({"lerning_rate": 1e-3}, "PERDQN has no argument 'lerning_rate': did you mean 'learning_r"),
        ({"double_dqn": True}, "did you mean 'double_q'. It takes policy, env, .*, beta_fraction"),
        ({"priority": 1}, "PERDQN has no argument 'priority': It takes policy, env, learning_rate"),
        ({"prioritized_replay": True}, "replay is always prioritized, so leave it out$"),
        ({"prioritized_replay_alpha": 0.5}, r"pass replay_buffer_kwargs=dict\(alpha=\.\.\.\)$"),
        ({"prioritized_replay_beta0": 0.5}, "pass beta_initial$"),
        ({"prioritized_replay_beta_iters": 100}, "pass beta_fraction, a part of the training"),
        ({"target_network_update_freq": 100}, "pass target_update_interval$"),
        (
            {"replay_buffer_kwargs": {"aplha": 0.3}},
            "PrioritizedReplayBuffer has no option 'aplha': did you mean 'alpha'. It takes .*eps,",
        ),
        ({"replay_buffer_kwargs": {"prioritized_replay_eps": 0.1}}, "pass eps$"),
        ({"replay_buffer_kwargs": {"buffer_size": 10}}, "no option 'buffer_size': .*It takes hand"),
        ({"replay_buffer_kwargs": {"n_steps": 3}}, "n_steps=1 .*got 3"),
        ({"replay_buffer_kwargs": {"gamma": 0.9}}, "gamma=0.99 .*got 0.9"),
        ({"replay_buffer_class": ReplayBuffer}, "PrioritizedReplayBuffer .* got ReplayBuffer"),
        ({"replay_buffer_class": "ReplayBuffer"}, "class must be a class, got 'ReplayBuffer'"),
        (
            {"replay_buffer_class": HerReplayBuffer},
            "needs Dict observations .*leave replay_buffer_class",
        ),
        (
            {"replay_buffer_class": PrioritizedDictReplayBuffer},
            "PrioritizedReplayBuffer .* got PrioritizedDictReplayBuffer",
        ),
        ({"n_steps": 3, "optimize_memory_usage": True}, "n_steps must be 1 .* got 3"),
        (
            {"replay_buffer_kwargs": {"replacement": False}, "batch_size": 201},
            "batch_size must be at most 200, .* with replacement=False, got 201",
        ),
    ],
)
def test_bad_arguments_are_named_with_their_value(options, complaint):
    if options.get("optimize_memory_usage"):
        options["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    with pytest.raises(ValueError, match=complaint):
        make(**options)


def test_a_users_subclass_of_the_buffer_is_taken():
    class Mine(PrioritizedReplayBuffer):
        pass

    assert type(make(replay_buffer_class=Mine).replay_buffer) is Mine


def test_the_buffer_class_follows_the_observation_space():
    env = Noise("dict")
    for named in (None, PrioritizedReplayBuffer, PrioritizedDictReplayBuffer):
        model = PERDQN("MultiInputPolicy", env, replay_buffer_class=named, **SMALL)
        assert type(model.replay_buffer) is PrioritizedDictReplayBuffer


# Learning on everything that DQN learns on


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
@pytest.mark.parametrize("space_name", SPACES)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_it_learns_from_every_kind_of_observation_in_several_environments(
    space_name, n_envs, prioritization
):
    env = make_vec_env(lambda: Noise(space_name), n_envs=n_envs)
    options = {"n_steps": 2, "double_q": True, "train_freq": 2, "batch_size": 8}
    options["replay_buffer_kwargs"] = {"prioritization": prioritization}
    model = PERDQN(policy_for(space_name), env, seed=0, device="cpu", **SMALL, **options)
    before = parameters(model)

    model.learn(60)

    assert not all_equal(before, parameters(model))
    assert model.replay_buffer.n_envs == n_envs
    assert len(set(probabilities_in(model.replay_buffer, np.arange(20)))) > 2


def test_it_learns_in_subprocesses():
    env = make_vec_env(Noise, n_envs=2, vec_env_cls=SubprocVecEnv)
    try:
        model = make(env=env).learn(60)
    finally:
        env.close()

    assert model._n_updates > 0


def test_it_learns_from_normalized_and_stacked_observations():
    env = VecNormalize(VecFrameStack(make_vec_env(Noise, n_envs=2), 3))
    model = make(env=env).learn(100)

    batch = model.replay_buffer.sample(8, env=model._vec_normalize_env)

    stored = model.replay_buffer.observations.reshape(-1, 9)[batch.slots]
    np.testing.assert_allclose(batch.observations, env.normalize_obs(stored), rtol=1e-6)


def test_it_learns_from_memory_optimised_storage():
    model = make(
        buffer_size=40,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
    ).learn(150)

    assert model.replay_buffer.full
    head = probabilities_in(model.replay_buffer, np.array([model.replay_buffer.pos]))
    assert head == 0


@pytest.mark.parametrize(
    ("options", "n_updates"),
    [
        ({"train_freq": 4, "gradient_steps": 1}, 20),
        ({"train_freq": 4, "gradient_steps": -1}, 80),
        ({"train_freq": 10, "gradient_steps": 2}, 16),
        ({"train_freq": (1, "episode"), "gradient_steps": 3}, 39),
        ({"gradient_steps": 0}, 0),
    ],
)
def test_as_many_updates_as_dqn_makes(options, n_updates):
    ours, theirs = (make(kind, **options).learn(100) for kind in (PERDQN, DQN))

    assert ours._n_updates == theirs._n_updates == n_updates


# What is logged


def test_metrics_are_those_of_the_batches(monkeypatch):
    model = ready(make())
    batches, updates = record(model.replay_buffer, monkeypatch)

    model.train(gradient_steps=4, batch_size=16)

    errors = [np.asarray(td_errors) for _, td_errors in updates]
    weights = [batch.weights.numpy().astype(np.float64) for batch in batches]
    shares = [w.sum() ** 2 / (16 * (w**2).sum()) for w in weights]
    assert logged(model)["train/td_error"] == pytest.approx(np.abs(errors).mean())
    assert logged(model)["train/weight_mean"] == pytest.approx(np.mean(weights))
    assert logged(model)["train/effective_sample_size"] == pytest.approx(np.mean(shares))
    assert logged(model)["train/priority_max"] == pytest.approx(np.abs(errors).max(), rel=1e-4)
    assert logged(model)["train/n_updates"] == 4
    assert logged(model)["train/beta"] == model.replay_buffer.beta


class BetaOf(BaseCallback):
    """Notes the beta of the weights that each rollout ends with."""

    def __init__(self):
        super().__init__()
        self.betas = {}

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        self.betas[self.num_timesteps] = self.model.replay_buffer.beta


@pytest.mark.parametrize(("fraction", "at_half"), [(1.0, 0.75), (0.5, 1.0), (0.25, 1.0)])
def test_beta_is_half_way_at_half_time_and_final_at_its_end(fraction, at_half):
    callback = BetaOf()
    model = make(beta_initial=0.5, beta_final=1.0, beta_fraction=fraction)

    model.learn(400, callback=callback)

    assert callback.betas[200] == pytest.approx(at_half)
    assert callback.betas[100] == pytest.approx(min(0.5 + 0.125 / fraction, 1.0))
    assert model.replay_buffer.beta == logged(model)["train/beta"] == 1.0


def test_beta_may_fall_and_may_stand_still():
    falling, fixed = make(beta_initial=0.9, beta_final=0.0), make(beta_initial=0.3, beta_final=0.3)

    assert falling.learn(100).replay_buffer.beta == 0.0
    assert fixed.learn(100).replay_buffer.beta == 0.3


@pytest.mark.filterwarnings("ignore:rich is experimental")  # tqdm says so of its own bar
def test_a_progress_bar_and_tensorboard_work(tmp_path):
    model = make(tensorboard_log=str(tmp_path))

    model.learn(100, progress_bar=True)

    assert (tmp_path / "PERDQN_1").is_dir()


# Randomness, saving, going on


def test_the_same_seed_gives_the_same_weights_and_another_seed_does_not():
    trained = [parameters(make(seed=seed).learn(120)) for seed in (3, 3, 4)]

    assert all_equal(trained[0], trained[1])
    assert not all_equal(trained[0], trained[2])


RANK = {"replay_buffer_kwargs": {"prioritization": "rank", "alpha": 0.7}, "beta_initial": 0.5}


@pytest.mark.parametrize("options", [{}, RANK, {"n_steps": 3, "double_q": True, **RANK}])
def test_a_run_saved_loaded_and_continued_makes_the_same_steps(options, tmp_path):
    model = make(**options).learn(150)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")

    loaded = PERDQN.load(tmp_path / "model", env=Noise())
    loaded.load_replay_buffer(tmp_path / "buffer")
    loaded.set_logger(model.logger)

    assert loaded.beta_initial == model.beta_initial
    for _ in range(5):
        model.train(gradient_steps=2, batch_size=16)
        loaded.train(gradient_steps=2, batch_size=16)
    assert all_equal(parameters(model), parameters(loaded))
    everyone = np.arange(150)
    shares = [probabilities_in(m.replay_buffer, everyone) for m in (model, loaded)]
    assert (shares[0] == shares[1]).all()


def test_betas_clock_goes_on_after_loading(tmp_path):
    whole = make(beta_initial=0.0).learn(200)
    make(beta_initial=0.0).learn(100).save(tmp_path / "half")
    callback = BetaOf()

    loaded = PERDQN.load(tmp_path / "half", env=Noise())
    loaded.learn(100, reset_num_timesteps=False, callback=callback)

    assert callback.betas[152] == pytest.approx(152 / 200, abs=0.03)
    assert loaded.replay_buffer.beta == whole.replay_buffer.beta == 1.0


def test_arguments_may_change_on_loading(tmp_path):
    make(n_steps=3).save(tmp_path / "model")

    loaded = PERDQN.load(tmp_path / "model", env=Noise(), n_steps=5, gamma=0.9, beta_final=0.8)

    assert (loaded.replay_buffer.n_steps, loaded.replay_buffer.gamma) == (5, 0.9)
    with pytest.raises(ValueError, match=r"beta_final must .* got 8"):
        PERDQN.load(tmp_path / "model", env=Noise(), beta_final=8)
    with pytest.raises(
        ValueError, match=r"PERDQN has no argument 'alpha': pass replay_buffer_kwargs="
    ):
        PERDQN.load(tmp_path / "model", env=Noise(), alpha=0.9)
    with pytest.raises(ValueError, match=r"so pass beta_initial$"):
        PERDQN.load(tmp_path / "model", env=Noise(), beta=0.9)


def test_a_model_of_dqn_goes_on_with_priorities(tmp_path):
    model = make(DQN).learn(60)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="with replay_buffer_class=PrioritizedReplayBuffer"):
        PERDQN.load(tmp_path / "model", env=Noise())

    loaded = PERDQN.load(
        tmp_path / "model", env=Noise(), replay_buffer_class=PrioritizedReplayBuffer
    )

    assert all_equal(parameters(loaded), parameters(model))
    assert loaded.learn(60, reset_num_timesteps=False).num_timesteps == 120


def test_adam_goes_on_from_the_steps_of_dqns(tmp_path):
    """The first step after the change is the plain Adam's, up to rounding."""
    model = make(DQN).learn(60)
    model.save(tmp_path / "model")
    loaded = PERDQN.load(
        tmp_path / "model", env=Noise(), replay_buffer_class=PrioritizedReplayBuffer
    )
    for each in (model, loaded):
        for parameter in each.q_net.parameters():
            parameter.grad = th.ones_like(parameter)
        each.policy.optimizer.step()

    for own, other in zip(loaded.q_net.parameters(), model.q_net.parameters(), strict=True):
        th.testing.assert_close(own, other, rtol=1e-6, atol=1e-7)


def test_a_model_tells_of_the_buffer_that_it_goes_on_with(tmp_path):
    options = {"prioritization": "rank", "alpha": 0.3}
    make(replay_buffer_kwargs=options).learn(60).save_replay_buffer(tmp_path / "buffer.pkl")
    model = make(replay_buffer_kwargs={"alpha": 0.9})

    with pytest.warns(UserWarning, match=r"own alpha=0\.3 instead of the 0\.9 of replay_buffer_kw"):
        model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert model.replay_buffer_kwargs == options
    model.save(tmp_path / "model")
    again = PERDQN.load(tmp_path / "model", env=Noise())
    assert type(again.replay_buffer.prioritization) is type(model.replay_buffer.prioritization)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_replay_buffer(tmp_path / "buffer.pkl")


def test_a_buffer_may_be_deleted_before_another_one_is_loaded(tmp_path):
    model = make().learn(60)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    del model.replay_buffer
    with pytest.raises(AttributeError):  # as with SB3
        model.replay_buffer  # noqa: B018  # the access itself is tested

    model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert model.replay_buffer.size() == 60


def test_a_deleted_buffer_leaves_a_model_that_can_go_on_with_another(tmp_path):
    buffer = make(replay_buffer_kwargs={"alpha": 0.3}).learn(60).replay_buffer
    model = make(replay_buffer_kwargs={"alpha": 0.9})
    del model.replay_buffer
    model.set_random_seed(1)

    with pytest.warns(UserWarning, match=r"own alpha=0\.3 instead of the 0\.9") as caught:
        model.use_replay_buffer(buffer)

    assert [each.filename for each in caught] == [__file__]
    model.save(tmp_path / "model")
    assert PERDQN.load(tmp_path / "model", env=Noise()).replay_buffer.alpha == 0.3


def test_the_same_options_are_no_news_after_a_buffer_was_deleted(tmp_path):
    model = make(replay_buffer_kwargs={"td_error_clip": "loss", "prioritization": "rank"})
    model.learn(60).save_replay_buffer(tmp_path / "buffer.pkl")
    del model.replay_buffer

    model.load_replay_buffer(tmp_path / "buffer.pkl")  # a warning would be an error

    assert model.replay_buffer_kwargs == {"td_error_clip": "loss", "prioritization": "rank"}
    del model.replay_buffer
    other = make(replay_buffer_kwargs={"td_error_clip": 2.0, "prioritization": "rank"})
    with pytest.warns(UserWarning, match=r"own td_error_clip=2\.0 instead of the 'loss'"):
        model.use_replay_buffer(other.replay_buffer)
    assert model.replay_buffer_kwargs["td_error_clip"] == 2.0


def test_a_buffer_of_sb3_is_refused_by_the_method_that_was_called(tmp_path):
    DQN("MlpPolicy", Noise(), buffer_size=100).save_replay_buffer(tmp_path / "buffer.pkl")

    with pytest.raises(ValueError, match=r"load_replay_buffer needs .* got 'ReplayBuffer'"):
        make().load_replay_buffer(tmp_path / "buffer.pkl")


def test_a_buffer_class_that_cannot_take_our_options_is_told_which():
    class Old(PrioritizedReplayBuffer):
        def __init__(self, buffer_size, observation_space, action_space, device, n_envs=1):
            pass

    with pytest.raises(
        ValueError, match=r"must take beta, n_steps, gamma .* got 'Old without beta"
    ):
        make(replay_buffer_class=Old)


def test_a_subclass_tells_of_its_own_arguments():
    class Mine(PERDQN):
        def __init__(self, *args, extra=0, **kwargs):
            super().__init__(*args, **kwargs)

    with pytest.raises(ValueError, match=r"'extraa': did you mean 'extra'"):
        Mine("MlpPolicy", Noise(), extraa=1)


def test_the_buffer_of_another_class_changes_no_options(tmp_path):
    class Mine(PrioritizedReplayBuffer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, alpha=0.9, **kwargs)

    make(replay_buffer_kwargs={"alpha": 0.3}).learn(60).save_replay_buffer(tmp_path / "buffer.pkl")
    model = make(replay_buffer_class=Mine)

    model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert model.replay_buffer.alpha == 0.3
    assert model.replay_buffer_kwargs == {}


def test_a_seed_that_is_set_later_reaches_the_draws():
    def after(seed, before):
        th.manual_seed(0)
        np.random.seed(before)  # noqa: NPY002
        model = make(seed=None)
        model.set_random_seed(seed)
        return parameters(model.learn(100))

    assert all_equal(after(7, before=0), after(7, before=1))


def test_weights_that_are_next_to_nothing_can_be_logged():
    tiny = {"weight_normalization": "buffer", "td_error_clip": 1e-35, "alpha": 1.0, "eps": 1e-36}

    model = make(beta_initial=1.0, replay_buffer_kwargs=tiny).learn(60)

    assert 0 <= logged(model)["train/effective_sample_size"] <= 1


def test_options_of_the_buffer_are_a_dict():
    with pytest.raises(ValueError, match=r"replay_buffer_kwargs must be a dict, got \['alpha'\]"):
        make(replay_buffer_kwargs=["alpha"])


# SB3 leaves open what it cannot read.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_file_of_save_buffer_is_told_what_reads_it(tmp_path):
    model = make().learn(60)
    save_buffer(model.replay_buffer, tmp_path / "buffer.npz")
    own = model.replay_buffer

    (tmp_path / "empty.pkl").touch()

    for name in ("buffer.npz", "empty.pkl"):
        with pytest.raises(ValueError, match=f"{name} must be a whole file .*load_buffer"):
            model.load_replay_buffer(tmp_path / name)
    assert model.replay_buffer is own


def test_each_kind_of_file_is_told_what_reads_it(tmp_path):
    model = make()
    save_checkpoint(model, tmp_path / "model.ckpt")
    save_buffer(model.replay_buffer, tmp_path / "buffer.npz")

    for name in ("model.ckpt", "buffer.npz"):
        with pytest.raises(
            ValueError, match=f"{name} must be a file of PERDQN.save .use load_check"
        ):
            PERDQN.load(tmp_path / name)
    for path in ("buffer.npz", tmp_path / "buffer.npz"):
        with pytest.raises(ValueError, match=r"load_buffer reads a file of save_buffer.*, got '"):
            model.use_replay_buffer(path)


def test_loading_into_more_environments_makes_a_buffer_for_them(tmp_path):
    make().save(tmp_path / "model")

    loaded = PERDQN.load(tmp_path / "model", env=make_vec_env(Noise, n_envs=3))

    assert loaded.learn(60).replay_buffer.n_envs == 3


def test_the_buffer_size_follows_a_buffer_of_another_size(tmp_path):
    make(buffer_size=100).learn(60).save_replay_buffer(tmp_path / "buffer.pkl")
    model = make(buffer_size=200)

    with pytest.warns(UserWarning, match="buffer_size is now 100, the loaded buffer's, instead of"):
        model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert model.buffer_size == 100
    model.save(tmp_path / "model")
    again = PERDQN.load(tmp_path / "model", env=Noise())
    assert again.replay_buffer.n_slots == 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_replay_buffer(tmp_path / "buffer.pkl")


def test_a_size_that_environments_do_not_divide_is_the_same_size(tmp_path):
    env = make_vec_env(Noise, n_envs=3)
    model = make(env=env, buffer_size=200).learn(60)
    model.save_replay_buffer(tmp_path / "buffer.pkl")

    model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert model.buffer_size == 200


@pytest.mark.parametrize(("n_steps", "marked"), [(1, 0), (3, 1)])
def test_a_loaded_buffers_last_episode_is_cut_where_returns_would_cross_its_end(
    n_steps, marked, tmp_path
):
    model = make(n_steps=n_steps).learn(60)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    model.load_replay_buffer(tmp_path / "buffer.pkl")

    assert model.replay_buffer.dones[59] == 0
    assert model.replay_buffer.timeouts[59] == marked


@pytest.mark.parametrize(
    ("buffer", "complaint"),
    [
        (lambda: ReplayBuffer(10, SPACES["box"], Noise.action_space), "got 'ReplayBuffer'"),
        (
            lambda: PrioritizedReplayBuffer(10, SPACES["box"], Noise.action_space, n_envs=2),
            "n_envs must equal the model's 1, got 2",
        ),
        (lambda: fill(PrioritizedReplayBuffer(10, BOX, TWO_ACTIONS), 3), "observation_space must"),
        (
            lambda: PrioritizedReplayBuffer(
                10, SPACES["box"], Noise.action_space, replacement=False
            ),
            "batch_size must be at most 10, .*with replacement=False, got 32",
        ),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused_and_the_model_keeps_its_own(
    buffer, complaint, tmp_path
):
    other, model = make(), make()
    other.replay_buffer = buffer()
    other.save_replay_buffer(tmp_path / "buffer")
    own = model.replay_buffer

    with pytest.raises(ValueError, match=complaint):
        model.load_replay_buffer(tmp_path / "buffer")

    assert model.replay_buffer is own


def test_a_file_that_holds_no_buffer_is_refused_and_the_model_keeps_its_own(tmp_path):
    save_to_pkl(tmp_path / "buffer.pkl", {"not": "a buffer"})
    model = make()
    own = model.replay_buffer

    with pytest.raises(ValueError, match="ReplayBuffer"):
        model.load_replay_buffer(tmp_path / "buffer")

    assert model.replay_buffer is own


def test_no_gradient_step_changes_nothing():
    model = make().learn(60)
    before = [parameter.clone() for parameter in model.policy.parameters()]

    model.train(0)

    assert all(map(th.equal, before, model.policy.parameters()))


def test_set_env_and_predict_work_as_with_dqn():
    model = make().learn(60)
    model.set_env(Noise())
    model.learn(60)

    action, state = model.predict(np.zeros((4, 3), dtype=np.float32), deterministic=True)

    assert action.shape == (4,)
    assert state is None


@pytest.mark.parametrize("replaced", [None, ReplayBuffer(9, BOX, TWO_ACTIONS)])
def test_a_buffer_without_priorities_that_was_put_in_by_hand_is_refused(replaced):
    model = make().learn(20)
    model.replay_buffer = replaced

    with pytest.raises(ValueError, match=f"with priorities, got '{type(replaced).__name__}'"):
        model.learn(20)

    assert model.num_timesteps == 20


def test_td_errors_that_are_not_finite_stop_the_training_before_the_network_is_spoiled():
    model = ready(make())
    model.replay_buffer.rewards[:] = np.nan
    before = parameters(model)

    with pytest.raises(ValueError, match="TD error must be finite in float32, got nan for slot"):
        model.train(gradient_steps=1, batch_size=16)

    assert all_equal(before, parameters(model))


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_sb3s_algorithms_may_use_the_buffer_and_are_warned_once(kind):
    env = Noise() if kind is DQN else gym.make("Pendulum-v1")
    options = {"replay_buffer_class": PrioritizedReplayBuffer, "policy_kwargs": {}}

    with pytest.warns(UserWarning, match="use the algorithm of sb3_per instead") as caught:
        model = make(kind, env, **options).learn(100)

    assert len([warning for warning in caught if "sb3_per" in str(warning.message)]) == 1
    assert model._n_updates > 0


@pytest.mark.parametrize("n_updates", [0, 20])
def test_dqn_is_warned_of_a_buffer_that_perdqn_has_trained_with(n_updates, tmp_path):
    model = ready(make())
    model.train(n_updates)
    model.replay_buffer.sample(4)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    theirs = make(DQN)
    theirs.load_replay_buffer(tmp_path / "buffer.pkl")

    with pytest.warns(UserWarning, match="so priorities are out of date"):
        theirs.learn(100)


def test_the_warning_comes_again_with_the_next_owner_of_a_buffer(tmp_path):
    model = make(DQN, replay_buffer_class=PrioritizedReplayBuffer)
    for _ in range(2):
        with pytest.warns(UserWarning, match="so priorities are out of date"):
            model.learn(100)
        model.save_replay_buffer(tmp_path / "buffer.pkl")
        model = make(DQN)
        model.load_replay_buffer(tmp_path / "buffer.pkl")
