"""Rainbow's networks and policies: noisy layers, dueling streams, distributions of returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    create_mlp,
)
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn
from torch.nn import functional as F
from typing_extensions import TypedDict

from sb3_per._utils import require_number, require_one_of, require_whole
from sb3_per.options import require_known

# (filters, kernel size, stride) of the convolutions of DQN for Atari.
ATARI = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


class NoisyLinear(nn.Linear):
    """
    A linear layer with factorised Gaussian noise (Fortunato et al. 2018, section 3).

    Its weights are mu + sigma * outer(output noise, input noise); without noise, they are mu.

    :param sigma: Initial standard deviation of the noise times the root of the number of inputs.
    """

    def __init__(self, in_features: int, out_features: int, sigma: float) -> None:
        super().__init__(in_features, out_features)  # torch's initial mu is the paper's
        sigma /= in_features**0.5
        self.weight_sigma = nn.Parameter(th.full((out_features, in_features), sigma))
        self.bias_sigma = nn.Parameter(th.full((out_features,), sigma))

    def forward(
        self, inputs: th.Tensor, noise: tuple[th.Tensor, th.Tensor] | None = None
    ) -> th.Tensor:
        """
        Return the outputs, (B, out_features).

        :param noise: Input noise, (N, in_features), and output noise, (N, out_features); N is 1 or
            B. By default, there is none.
        """
        outputs = super().forward(inputs)
        if noise is None:
            return outputs
        # The noisy weights themselves are never computed: inputs may have different noise.
        noise_in, noise_out = noise
        return outputs + noise_out * F.linear(inputs * noise_in, self.weight_sigma, self.bias_sigma)


@dataclass(frozen=True)
class Parts:
    """
    The parts of Rainbow that its network has: options of ``policy_kwargs``.

    :param dueling: Layers of their own for values and for advantages (Wang et al. 2016,
        https://arxiv.org/abs/1511.06581).
    :param noisy: Noise in all layers after the features extractor (Fortunato et al. 2018,
        https://arxiv.org/abs/1706.10295), instead of epsilon-greedy exploration.
    :param noisy_sigma: The initial noise, >= 0.
    :param n_atoms: Atoms of the distributions of returns (Bellemare et al. 2017,
        https://arxiv.org/abs/1707.06887); 1 for plain Q-values.
    :param v_min: The first atom.
    :param v_max: The last atom.
    :raises ValueError: for an option out of its range.
    """

    dueling: bool = True
    noisy: bool = True
    noisy_sigma: float = 0.5
    n_atoms: int = 51
    v_min: float = -10.0
    v_max: float = 10.0

    def __post_init__(self) -> None:
        for name in ("dueling", "noisy"):
            require_one_of(name, getattr(self, name), (True, False))
        require_whole("n_atoms", self.n_atoms)
        require_number("noisy_sigma", self.noisy_sigma, 0, inf)
        if not -inf < self.v_min < self.v_max < inf:
            limits = f"{self.v_min} and {self.v_max}"
            raise ValueError(f"v_min must be below v_max, both finite, got {limits}")


class RainbowKwargs(TypedDict, total=False):
    """
    ``policy_kwargs`` of ``Rainbow``: arguments of SB3's ``DQNPolicy``, then Rainbow's parts.

    ``help(sb3_per.algorithms.networks.Parts)`` explains ``dueling``, ``noisy``, ``noisy_sigma``,
    ``n_atoms``, ``v_min`` and ``v_max``.
    """

    net_arch: list[int]
    activation_fn: type[nn.Module]
    features_extractor_class: type[BaseFeaturesExtractor]
    features_extractor_kwargs: dict[str, Any]
    normalize_images: bool
    optimizer_class: type[th.optim.Optimizer]
    optimizer_kwargs: dict[str, Any]
    dueling: bool
    noisy: bool
    noisy_sigma: float
    n_atoms: int
    v_min: float
    v_max: float


class RainbowNetwork(QNetwork):
    """
    Q-network with dueling streams, noisy layers and distributions of returns.

    Noise is an argument of each forward pass, from ``draw_noise``; without it, a pass has none. So
    no noise can stay behind in the network, or reach another thread.

    :param parts: Which of them it has; the other arguments are those of ``QNetwork``.
    """

    support: th.Tensor

    def __init__(
        self,
        *,
        features_dim: int,
        net_arch: list[int],
        activation_fn: type[nn.Module] = nn.ReLU,
        parts: Parts,
        **kwargs: Any,
    ) -> None:
        super(QNetwork, self).__init__(**kwargs)  # QNetwork's own would build other layers
        self.features_dim, self.net_arch, self.activation_fn = features_dim, net_arch, activation_fn
        self.parts, self.n_atoms = parts, parts.n_atoms
        self.q_net = self._stream(int(self.action_space.n) * self.n_atoms)  # advantages, if dueling
        self.value_net = self._stream(self.n_atoms) if parts.dueling else None
        support = th.linspace(parts.v_min, parts.v_max, self.n_atoms)
        self.register_buffer("support", support, persistent=False)
        streams = [*self.q_net, *(self.value_net or ())]
        noisy = [layer for layer in streams if isinstance(layer, NoisyLinear)]
        self._noise_sizes = [n for layer in noisy for n in (layer.in_features, layer.out_features)]

    def _stream(self, n_outputs: int) -> nn.Sequential:
        layers = create_mlp(self.features_dim, n_outputs, self.net_arch, self.activation_fn)
        if self.parts.noisy:
            layers = [
                NoisyLinear(layer.in_features, layer.out_features, self.parts.noisy_sigma)
                if isinstance(layer, nn.Linear)
                else layer
                for layer in layers
            ]
        return nn.Sequential(*layers)

    def draw_noise(self, n_rows: int = 1) -> th.Tensor | None:
        """
        Return new noise for a forward pass, (n_rows, size of all noise); None without noisy layers.

        :param n_rows: 1 for the same noise in a whole batch; or the size of the batch.
        """
        if not self._noise_sizes:
            return None
        drawn = th.randn(n_rows, sum(self._noise_sizes), device=self.support.device)
        return drawn.sign() * drawn.abs().sqrt()

    def logits(self, obs: PyTorchObs, noise: th.Tensor | None = None) -> th.Tensor:
        """Return the logits of the atoms, or plain Q-values if there is one, (B, A, n_atoms)."""
        features = self.extract_features(obs, self.features_extractor)
        parts = None if noise is None else iter(th.split(noise, self._noise_sizes, dim=1))
        logits = _outputs(self.q_net, features, parts)
        logits = th.unflatten(logits, 1, (-1, self.n_atoms))
        if self.value_net is not None:
            values = _outputs(self.value_net, features, parts).unsqueeze(1)  # (B, 1, n_atoms)
            logits = values + logits - logits.mean(dim=1, keepdim=True)
        return logits.to(self.support.dtype)  # with autocast, layers have half the precision

    def probabilities(self, obs: PyTorchObs, noise: th.Tensor | None = None) -> th.Tensor:
        """Return the distributions of returns over the atoms of ``support``, (B, A, n_atoms)."""
        return self.logits(obs, noise).softmax(dim=2)

    def q_values(self, logits: th.Tensor, obs: PyTorchObs) -> th.Tensor:
        """
        Return the Q-values, (B, A): the means of the distributions.

        ``forward`` and every choice of an action, also in targets, use this method: override it to
        change the values, such as those of actions that are invalid.

        :param logits: What ``logits`` returns for the observations, (B, A, n_atoms).
        :param obs: The observations.
        """
        if self.n_atoms == 1:
            return logits.squeeze(2)
        probabilities = logits.softmax(dim=2)
        device = logits.device.type  # torch knows no autocast for some
        if device in ("cpu", "cuda") and th.is_autocast_enabled(device):
            # Autocast would round a product of matrices to half the precision.
            return (probabilities * self.support).sum(dim=2)
        return probabilities @ self.support

    def forward(self, obs: PyTorchObs, noise: th.Tensor | None = None) -> th.Tensor:
        """Return the Q-values, (B, A)."""
        return self.q_values(self.logits(obs, noise), obs)

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        if deterministic:
            return super()._predict(observation)
        parts = observation.values() if isinstance(observation, Mapping) else [observation]
        noise = self.draw_noise(next(iter(parts)).shape[0])  # other noise for each environment
        q_values: th.Tensor = self(observation, noise)
        return q_values.argmax(dim=1)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"parts": self.parts}


def _outputs(
    layers: nn.Sequential, inputs: th.Tensor, noise: Iterator[th.Tensor] | None
) -> th.Tensor:
    """Return what layers make of inputs; each noisy one takes two parts of the noise."""
    if noise is None:
        outputs: th.Tensor = layers(inputs)
        return outputs
    for layer in layers:
        is_noisy = isinstance(layer, NoisyLinear)
        inputs = layer(inputs, (next(noise), next(noise))) if is_noisy else layer(inputs)
    return inputs


class ConvExtractor(BaseFeaturesExtractor):
    """
    Convolutions with ReLU, flattened, without a dense layer: ``net_arch`` says what follows.

    :param layers: (filters, kernel size, stride) of each layer; by default those of the DQN for
        Atari (Mnih et al. 2015).
    :param channels_last: Whether observations are (height, width, channels). SB3 transposes images
        of uint8 itself, but not those of other types, such as MinAtar's.
    :raises ValueError: for observations that are no images, or too small for the layers.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        layers: Sequence[tuple[int, int, int]] = ATARI,
        channels_last: bool = False,
    ) -> None:
        shape = observation_space.shape
        if len(shape) != 3:
            raise ValueError(f"{type(self).__name__} needs images, got observations of {shape}")
        axes = (2, 0, 1) if channels_last else (0, 1, 2)
        n_channels, *size = (shape[axis] for axis in axes)
        modules: list[nn.Module] = []
        for n_filters, kernel_size, stride in layers:
            modules += [nn.Conv2d(n_channels, n_filters, kernel_size, stride), nn.ReLU()]
            n_channels, size = n_filters, [(length - kernel_size) // stride + 1 for length in size]
        if min(size) < 1:
            raise ValueError(f"layers {layers} need larger images, got observations of {shape}")
        super().__init__(observation_space, n_channels * size[0] * size[1])
        self.layers = nn.Sequential(*modules, nn.Flatten())
        self.channels_last = channels_last

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """Return the features, (B, features_dim)."""
        if self.channels_last:
            observations = observations.movedim(3, 1)
        features: th.Tensor = self.layers(observations)
        return features


class RainbowPolicy(DQNPolicy):
    """Policy of Rainbow: the arguments are those of ``DQNPolicy`` and the options of ``Parts``."""

    # A subclass may have another network.
    network_class: type[RainbowNetwork] = RainbowNetwork
    q_net: RainbowNetwork
    q_net_target: RainbowNetwork

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        of_sb3 = inspect.signature(DQNPolicy).parameters
        require_known(kwargs, [*of_sb3, *Parts.__annotations__])
        names = kwargs.keys() & Parts.__annotations__.keys()
        # Before SB3's constructor, which builds the networks.
        self.parts = Parts(**{name: kwargs.pop(name) for name in names})
        super().__init__(*args, **kwargs)

    def make_q_net(self) -> RainbowNetwork:
        """Return a new network."""
        arguments = self._update_features_extractor(self.net_args)
        return self.network_class(**arguments, parts=self.parts).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | asdict(self.parts)


class CnnRainbowPolicy(RainbowPolicy):
    """
    Policy of Rainbow for images: the paper's, with 512 units after the convolutions.

    The option ``features_dim`` of DQN's features extractor is the size of the first layer after the
    convolutions here.
    """

    def __init__(
        self,
        *args: Any,
        features_extractor_class: type[BaseFeaturesExtractor] = ConvExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        options = dict(features_extractor_kwargs or {})
        kind, net_arch = features_extractor_class, kwargs.get("net_arch")
        if kind is ConvExtractor and "features_dim" in options:
            kwargs["net_arch"] = [options.pop("features_dim"), *(net_arch or [])]
        elif net_arch is None and isinstance(kind, type) and issubclass(kind, ConvExtractor):
            kwargs["net_arch"] = [512]
        super().__init__(
            *args,
            features_extractor_class=features_extractor_class,
            features_extractor_kwargs=options,
            **kwargs,
        )


class MultiInputRainbowPolicy(RainbowPolicy):
    """Policy of Rainbow for Dict observations."""

    def __init__(
        self,
        *args: Any,
        features_extractor_class: type[BaseFeaturesExtractor] = CombinedExtractor,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)
