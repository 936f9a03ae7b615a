"""Rainbow: each part against a slow reference, and all of them together."""

import copy
import functools
import math

import numpy as np
import pytest
import torch as th
from corridor import Corridor, DictCorridor, make
from gymnasium import spaces
from models import Point
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import NatureCNN

from sb3_per import PERDQN, Rainbow
from sb3_per.algorithms.networks import (
    CnnRainbowPolicy,
    ConvExtractor,
    NoisyLinear,
    RainbowNetwork,
    RainbowPolicy,
)
from sb3_per.algorithms.rainbow import cross_entropies, project

PLAIN = {"n_atoms": 1, "dueling": False, "noisy": False}
REPLAY = {"prioritization": "proportional", "alpha": 0.6, "beta": (0.4, 1.0), "uniform_share": 0.0}
REPLAY |= {"td_error_clip": "loss", "weight_normalization": "batch"}


def rainbow(env=None, network=(), **options):
    return make(env, Rainbow, policy_kwargs={"net_arch": [8], **dict(network)}, **options)


def filled(network=(), **options):
    """A model with 60 transitions in its buffer, but without training."""
    return rainbow(None, network, **{"learning_starts": 60, **options}).learn(60)


def test_rainbow_without_its_parts_is_perdqn_bit_by_bit():
    for double_q, n_steps in ((False, 1), (True, 3)):
        options = {"double_q": double_q, "n_steps": n_steps, "replay_buffer_kwargs": REPLAY}
        env = make_vec_env(Corridor, n_envs=2)
        model = make(env, PERDQN, **options).learn(300)
        same = rainbow(env, PLAIN, **options).learn(300)
        parameters, others = model.get_parameters(), same.get_parameters()
        assert str(parameters["policy.optimizer"]) == str(others["policy.optimizer"])
        for name, value in parameters["policy"].items():
            assert th.equal(value, others["policy"][name])
        slots = np.arange(100)
        probabilities = model.replay_buffer.probabilities(slots)
        np.testing.assert_array_equal(same.replay_buffer.probabilities(slots), probabilities)


@pytest.mark.parametrize("network", [{}, {"n_atoms": 1}, {"dueling": False}, {"noisy": False}])
@pytest.mark.parametrize(
    ("env", "options"),
    [
        (Corridor, {}),
        (DictCorridor, {"n_envs": 3}),
        (Corridor, {"prioritization": "rank", "uniform_share": 0.5}),
    ],
)
def test_rainbow_trains_with_and_without_each_part(env, options, network):
    options = dict(options)
    env = make_vec_env(env, n_envs=options.pop("n_envs", 1))
    model = rainbow(env, network, replay_buffer_kwargs=options)

    before = [parameter.clone() for parameter in model.q_net.parameters()]
    model.learn(90)

    assert all(not th.equal(*pair) for pair in zip(before, model.q_net.parameters(), strict=True))
    actions, _ = model.predict(env.reset(), deterministic=True)
    assert actions.shape == (env.num_envs,)


def images(n_envs=1):
    return make_vec_env(lambda: Point(True, spaces.Box(0, 255, (36, 36, 1), np.uint8)), n_envs)


def reference_projection(probabilities, values, v_min, v_max):
    """Bellemare et al. 2017, algorithm 1: a loop over the atoms of each distribution."""
    n_atoms = len(probabilities[0])
    step = (v_max - v_min) / (n_atoms - 1)
    result = np.zeros((len(values), n_atoms))
    for row, (shares, places) in enumerate(zip(probabilities, values, strict=True)):
        for share, value in zip(shares, places, strict=True):
            place = (min(max(value, v_min), v_max) - v_min) / step
            low = min(math.floor(place), n_atoms - 2)
            result[row, low] += share * (low + 1 - place)
            result[row, low + 1] += share * (place - low)
    return result


def random_distributions(*shape, seed=0):
    return th.rand(*shape, generator=th.Generator().manual_seed(seed)).softmax(-1)


def test_projection_is_that_of_a_loop_over_atoms():
    probabilities = random_distributions(64, 21)
    values = th.randn(64, 21, generator=th.Generator().manual_seed(1)) * 3  # some are outside
    values[:5] = th.tensor([-2.0, 3.0, -1.0, -1e9, 1e9])[:, None]  # on atoms, and far beyond

    projected = project(probabilities, values, -2.0, 3.0)

    expected = reference_projection(probabilities.tolist(), values.tolist(), -2.0, 3.0)
    np.testing.assert_allclose(projected, expected, atol=1e-5)


def test_projection_is_never_negative():
    """Rounding can put a value behind the last atom."""
    probabilities, values = th.full((1, 51), 1 / 51), th.full((1, 51), 1e9)
    for end in np.linspace(0.001, 7, 500):
        assert (project(probabilities, values, -end, end) >= 0).all()


@pytest.mark.parametrize("double_q", [False, True])
def test_target_distributions_equal_those_of_a_loop(double_q):
    network = {"noisy": False, "n_atoms": 11, "v_min": -3.0, "v_max": 3.0}
    model = filled(network, n_steps=3, gamma=0.9, double_q=double_q)
    with th.no_grad():  # else both networks choose the same actions
        for parameter in model.q_net_target.parameters():
            parameter.add_(th.randn_like(parameter) / 2)
    batch = model.replay_buffer.sample(64)

    targets = model.td_targets(batch)

    support = np.linspace(-3, 3, 11)
    online = model.q_net(batch.next_observations).detach().numpy()
    distributions = model.q_net_target.probabilities(batch.next_observations).detach().numpy()
    for row in range(64):
        means = online[row] if double_q else distributions[row] @ support
        share = 0.0 if batch.dones[row] else float(batch.discounts[row])
        atoms = float(batch.rewards[row]) + share * support
        expected = reference_projection([distributions[row][means.argmax()]], [atoms], -3, 3)[0]
        np.testing.assert_allclose(targets[row], expected, atol=1e-5)


def test_gradient_and_priorities_are_those_worked_out_by_hand():
    model = filled({"noisy": False, "n_atoms": 5}, gamma=0.7)
    batch = model.replay_buffer.sample(16)
    batch = batch._replace(weights=th.linspace(0.1, 2, 16).reshape(-1, 1))
    logits = model.q_net.logits(batch.observations).detach().requires_grad_()
    targets = model.td_targets(batch)
    model.q_net.logits = lambda *_: logits
    model.td_targets = lambda _: targets

    loss, divergences = model.weighted_loss(batch)
    loss.backward()

    for row in range(16):
        action = int(batch.actions[row])
        prediction = logits[row, action].detach().softmax(0)
        gradient = batch.weights[row] / 16 * (prediction - targets[row])
        np.testing.assert_allclose(logits.grad[row, action], gradient, atol=1e-7)
        assert not logits.grad[row, 1 - action].any()
        pairs = zip(targets[row].tolist(), prediction.tolist(), strict=True)
        divergence = sum(t * math.log(t / p) for t, p in pairs if t > 0)
        assert divergences[row].item() == pytest.approx(divergence, abs=1e-6)


def test_priority_is_zero_where_the_prediction_is_the_target():
    """The loss is not: it contains the entropy of the target."""
    logits = th.randn(32, 51, generator=th.Generator().manual_seed(0))

    losses, divergences = cross_entropies(logits, logits.softmax(dim=1))

    assert losses.min() > 1
    np.testing.assert_allclose(divergences, 0, atol=1e-5)
    assert (divergences >= 0).all()


@pytest.mark.parametrize("n_atoms", [1, 7])
def test_dueling_values_are_the_mean_over_the_actions(n_atoms):
    network = filled({"n_atoms": n_atoms, "noisy": False}).q_net
    observations = th.randn(5, 2)
    features = network.extract_features(observations, network.features_extractor)
    values, advantages = network.value_net(features), network.q_net(features)
    assert advantages.shape == (5, 2 * n_atoms)

    logits = network.logits(observations)

    th.testing.assert_close(logits.mean(dim=1), values)
    expected = advantages.view(5, 2, n_atoms)[:, 0] - advantages.view(5, 2, n_atoms)[:, 1]
    th.testing.assert_close(logits[:, 0] - logits[:, 1], expected)


def test_noisy_layer_is_a_linear_layer_with_noisy_weights():
    layer = NoisyLinear(3, 4, sigma=0.5)
    th.nn.init.uniform_(layer.weight_sigma)
    th.nn.init.uniform_(layer.bias_sigma)
    inputs = th.randn(6, 3)
    noise_in, noise_out = th.randn(6, 3), th.randn(6, 4)

    outputs = layer(inputs, (noise_in, noise_out))

    for row in range(6):
        weight = layer.weight + layer.weight_sigma * th.outer(noise_out[row], noise_in[row])
        bias = layer.bias + layer.bias_sigma * noise_out[row]
        th.testing.assert_close(outputs[row], weight @ inputs[row] + bias)


def test_noise_has_the_variance_of_the_paper():
    """f(x) = sgn(x) sqrt(abs(x)) of a normal x has the second moment sqrt(2 / pi)."""
    th.manual_seed(0)
    model = filled({"dueling": False, "n_atoms": 1, "net_arch": [], "noisy_sigma": 0.8})
    observation, n = th.tensor([[2.0, -1.0]]), 100_000
    with th.no_grad():
        drawn = model.q_net(observation.expand(n, 2), model.q_net.draw_noise(n))
    quiet = model.q_net(observation).detach()[0]
    second, sigma = math.sqrt(2 / math.pi), 0.8 / math.sqrt(2)

    variance = sigma**2 * second * (second * (2.0**2 + 1.0**2) + 1)

    # The fourth moment of the noise is about ten times the squared variance: 4 standard errors.
    np.testing.assert_allclose(drawn.var(dim=0).detach(), variance, rtol=4 * math.sqrt(9 / n))
    np.testing.assert_allclose(drawn.mean(dim=0), quiet, atol=4 * math.sqrt(variance / n))


def test_only_stochastic_actions_have_noise():
    model = filled({"noisy_sigma": 20.0})
    observations = np.tile(np.array([[1.0, 2.0]], np.float32), (200, 1))
    state = th.get_rng_state()

    quiet = {int(action) for action in model.predict(observations, deterministic=True)[0]}
    assert th.equal(state, th.get_rng_state())
    noisy = {int(action) for action in model.predict(observations, deterministic=False)[0]}

    assert len(quiet) == 1
    assert len(noisy) == 2


@pytest.fixture
def draws(monkeypatch):
    """The noise of each forward pass with noise: which network, how many rows, what was drawn."""
    noted, forward = [], RainbowNetwork.logits

    def noting(network, obs, noise=None):
        if noise is not None:
            noted.append((network, th.is_grad_enabled(), noise))
        return forward(network, obs, noise)

    monkeypatch.setattr(RainbowNetwork, "logits", noting)
    return noted


def test_each_action_and_each_network_draws_its_own_noise(draws):
    """Training must not leave its noise to acting, nor the online to the target network."""
    model = rainbow(make_vec_env(Corridor, n_envs=2), learning_starts=20).learn(60)

    # In 20 steps of two environments: an action, the loss, the target, and the target's action.
    counts = {"action": 0, "loss": 0, "target": 0, "target's action": 0}
    for network, has_gradient, drawn in draws:
        if network is model.q_net_target:
            counts["target"] += 1
        elif has_gradient:
            counts["loss"] += 1
        else:
            counts["action" if len(drawn) == 2 else "target's action"] += 1
    assert counts["loss"] == counts["target"] == counts["target's action"] == model._n_updates
    assert counts["action"] == 20
    rows = th.cat([drawn for _, _, drawn in draws])
    assert len(rows.unique(dim=0)) == len(rows)


class PlainValues(RainbowPolicy):
    """A policy of the user's, which fixes two options."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{**kwargs, "noisy": False, "n_atoms": 1})


@pytest.mark.parametrize(
    ("policy", "options", "expected"),
    [
        ("MlpPolicy", {}, (0.0, 0.0)),
        ("MlpPolicy", {"exploration_initial_eps": 0.5}, (0.5, 0.0)),
        ("MlpPolicy", {"exploration_initial_eps": 1.0, "exploration_final_eps": 0.1}, (1.0, 0.1)),
        ("MlpPolicy", {"exploration_final_eps": 0.1}, (1.0, 0.1)),
        ("MlpPolicy", {"exploration_final_eps": 0.0, "exploration_fraction": 0.5}, (0.0, 0.0)),
        (PlainValues, {}, (1.0, 0.05)),
        (PlainValues, {"exploration_final_eps": 0.3}, (1.0, 0.3)),
    ],
)
def test_epsilon_is_zero_with_noise_unless_it_is_set(policy, options, expected, tmp_path):
    model = Rainbow(policy, Corridor(), buffer_size=100, device="cpu", **options)

    model.save(tmp_path / "model")
    loaded = Rainbow.load(tmp_path / "model", device="cpu")
    for each in (model, loaded):
        assert (each.exploration_schedule(1.0), each.exploration_schedule(0.0)) == expected
    assert model.learn(30).exploration_rate == expected[1]
    other = Rainbow.load(tmp_path / "model", device="cpu", exploration_final_eps=0.7)
    assert other.exploration_schedule(0.0) == 0.7


def test_support_edge_is_the_probability_at_the_ends():
    # All returns of a corridor lie between -5.5 and 5.5.
    wide = filled({"noisy": False, "v_min": -60.0, "v_max": 60.0, "n_atoms": 121}).learn(60)
    narrow = rainbow(None, {"noisy": False, "v_min": -0.001, "v_max": 0.001}).learn(60)
    for model in (wide, narrow):
        model.train(1, 16)  # logged here: EvalCallback writes the log without `dump_logs`

    assert wide.logger.name_to_value["train/support_edge"] < 0.05
    assert narrow.logger.name_to_value["train/support_edge"] > 0.9


def test_support_that_is_too_narrow_is_warned_of_once():
    model = rainbow(None, {"v_min": -0.001, "v_max": 0.001}).learn(60)
    model._n_updates = 998
    model.train(1, 8)

    with pytest.warns(UserWarning, match=r"outside of the support from -0.001 to 0.001"):
        model.train(1, 8)
    model.train(1, 8)  # warnings are errors


@pytest.mark.parametrize("n_atoms", [1, 51])
@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_rewards_that_are_not_finite_are_refused(reward, n_atoms):
    model = filled({"n_atoms": n_atoms}, n_steps=1)
    model.replay_buffer.rewards[:50] = reward
    before = copy.deepcopy(model.policy.state_dict())

    with pytest.raises(ValueError, match="rewards or observations in it are not finite"):
        model.train(1, 32)

    assert all(th.equal(before[name], now) for name, now in model.policy.state_dict().items())


def test_lap_trains_without_distributions_alone():
    lap = {"replay_buffer_kwargs": {"prioritization": "lap"}}

    without = rainbow(None, {"n_atoms": 1}, **lap).learn(60)
    assert without._n_updates > 0
    model = rainbow()
    model.replay_buffer = without.replay_buffer
    with pytest.raises(ValueError, match=r"n_atoms must be 1 with 'lap' priorities.* got 51"):
        model.learn(60)
    assert model.num_timesteps == 0


@pytest.mark.parametrize("network", [{}, {"noisy": False}, {"n_atoms": 1}, PLAIN])
def test_rainbow_trains_with_autocast_for_a_part_of_the_training(network):
    model = filled(network)
    model.train(2, 8)
    with th.autocast("cpu", th.bfloat16):
        model.train(2, 8)
        batch = model.replay_buffer.sample(8)
        loss, td_errors = model.weighted_loss(batch)
        targets = model.td_targets(batch)
        model.replay_buffer.update_priorities(batch.slots, td_errors)
        model.predict(np.zeros((2, 2), np.float32))
    model.train(2, 8)

    assert {loss.dtype, td_errors.dtype, targets.dtype} == {th.float32}
    if model.q_net.n_atoms > 1:  # the projection moves probabilities, and loses none
        th.testing.assert_close(targets.sum(dim=1), th.ones(8))


def test_logged_loss_is_the_mean_divergence():
    model = filled()
    batch = model.replay_buffer.sample(8)
    divergences = th.linspace(0, 1, 8).reshape(-1, 1)
    model.replay_buffer.sample = lambda *_, **__: batch
    model.weighted_loss = lambda _: (model.q_net(batch.observations).sum(), divergences)

    model.train(1, 8)

    logged = model.logger.name_to_value
    assert logged["train/loss"] == pytest.approx(0.5)
    assert "train/td_error" not in logged


def test_saved_model_predicts_the_same_and_has_its_parts(tmp_path):
    network = {"n_atoms": 7, "v_max": 4.0, "dueling": False, "noisy_sigma": 0.3}
    model = rainbow(DictCorridor(), network).learn(60)
    model.save(tmp_path / "model")

    loaded = Rainbow.load(tmp_path / "model", device="cpu")

    for part in (model.policy, model.q_net):
        part.save(tmp_path / "part")
        again = type(part).load(tmp_path / "part", device="cpu")
        assert again.parts == loaded.policy.parts == part.parts
    observation = {"both": np.array([[1.0, 2.0]], np.float32)}
    assert loaded.n_steps == 3
    assert loaded.double_q
    tensors = model.policy.obs_to_tensor(observation)[0]
    assert th.equal(loaded.q_net.probabilities(tensors), model.q_net.probabilities(tensors))


class OwnConvExtractor(ConvExtractor):
    pass


def test_images_have_the_papers_layer_after_convolutions_of_ones_own():
    for kind in (OwnConvExtractor, functools.partial(ConvExtractor)):
        network = {"features_extractor_class": kind}
        model = Rainbow("CnnPolicy", images(), policy_kwargs=network, buffer_size=10)

        assert model.q_net.net_arch == ([512] if kind is OwnConvExtractor else [64, 64])


def test_autocast_does_not_round_means_of_distributions():
    network = filled({"v_max": 110.0}).q_net
    logits = th.randn(1000, 2, 51)
    exact = network.q_values(logits, None)

    with th.autocast("cpu", th.bfloat16):
        found = network.q_values(logits, None)

    th.testing.assert_close(found, exact)


@pytest.mark.parametrize(
    ("network", "net_arch"),
    [
        ({}, [512]),
        ({"net_arch": [32]}, [32]),
        ({"features_extractor_kwargs": {"features_dim": 64}}, [64]),
        ({"features_extractor_kwargs": {"features_dim": 64}, "net_arch": [32]}, [64, 32]),
    ],
)
def test_features_dim_is_a_first_layer_as_in_dqns_network(network, net_arch, tmp_path):
    model = Rainbow("CnnPolicy", images(), policy_kwargs=network, buffer_size=10)

    assert model.q_net.net_arch == net_arch
    model.save(tmp_path / "model")
    assert Rainbow.load(tmp_path / "model", model.get_env()).q_net.net_arch == net_arch
    model.policy.save(tmp_path / "policy")
    assert CnnRainbowPolicy.load(tmp_path / "policy").q_net.net_arch == net_arch


def test_policy_that_fixes_one_atom_has_a_huber_loss():
    model = Rainbow(PlainValues, Corridor(), device="cpu")

    assert model.loss_threshold == model.huber_threshold == 1


def test_convolutions_are_those_of_nature_cnn():
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    theirs, ours = NatureCNN(space), ConvExtractor(space)
    ours.layers.load_state_dict(theirs.cnn.state_dict())
    observations = th.rand(2, 4, 84, 84)

    features = ours(observations)

    assert features.shape == (2, ours.features_dim)
    th.testing.assert_close(features, theirs.cnn(observations))


@pytest.mark.parametrize(
    ("shape", "message"),
    [((4,), r"needs images, got .*\(4,\)"), ((4, 36, 35), r"larger images, got .*35\)")],
)
def test_observations_that_convolutions_do_not_fit_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        ConvExtractor(spaces.Box(0, 255, shape, np.uint8))


def test_convolutions_take_channels_last():
    space = spaces.Box(0, 1, (10, 10, 6), bool)
    extractor = ConvExtractor(space, layers=[(16, 3, 1)], channels_last=True)
    observations = th.rand(2, 10, 10, 6)

    features = extractor(observations)

    assert features.shape == (2, extractor.features_dim) == (2, 1024)
    convolution = extractor.layers[0](observations.permute(0, 3, 1, 2))
    th.testing.assert_close(features, convolution.relu().flatten(1))
