"""RL-Zoo's hyperparameter search for our algorithms: what it samples, and how a trial is read."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna  # comes with RL-Zoo, which not everyone installs

Sampler = Callable[["optuna.Trial", int, int, dict[str, Any]], dict[str, Any]]
Converter = Callable[[dict[str, Any]], dict[str, Any]]

# Options of the buffer that are searched, the last two by RL-Zoo for hindsight replay. The other
# options of the YAML file are stored with the trial as parameters with a single choice, since
# RL-Zoo reads a trial without looking at the YAML file's own `replay_buffer_kwargs`.
_SEARCHED = ("prioritization", "alpha", "eps", "uniform_share")
_SEARCHED_WITH_GOALS = ("n_sampled_goal", "goal_selection_strategy")
_KEPT = "replay_buffer_kwargs."
_PRIORITIZATIONS = ("proportional", "rank")
# RL-Zoo has no search for CrossQ, which has SAC's hyperparameters except those of target networks.
_SEARCHED_AS = {"crossq": "sac"}
_WITHOUT = {"crossq": ("tau",)}


class _Without:
    """A trial that suggests nothing for some names."""

    def __init__(self, trial: "optuna.Trial", names: tuple[str, ...]) -> None:
        self._trial = trial
        self._names = names

    def suggest_float(self, name: str, low: float, high: float, **options: Any) -> float:
        if name in self._names:
            return low
        return self._trial.suggest_float(name, low, high, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)


@functools.lru_cache  # so that registering twice changes nothing
def sampler_of(base: str) -> Sampler:
    """
    Return a function that suggests what RL-Zoo suggests for the base, and our own options.

    RL-Zoo calls it with the trial, the numbers of actions and environments, and
    ``additional_args``, whose ``her_kwargs`` are the YAML file's ``replay_buffer_kwargs``. Options
    that are not searched keep their values. It returns the arguments of our algorithm: the trial's
    parameters, converted by ``converter_of(base)``, with the action noise of TD3 and DDPG as an
    object.

    :param base: RL-Zoo's name of an algorithm, such as dqn.
    """
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_SAMPLER

    sample_base = HYPERPARAMS_SAMPLER[_SEARCHED_AS.get(base, base)]
    convert = converter_of(base)

    def sample(
        trial: "optuna.Trial", n_actions: int, n_envs: int, additional_args: dict[str, Any]
    ) -> dict[str, Any]:
        searched: Any = _Without(trial, _WITHOUT[base]) if base in _WITHOUT else trial
        of_base = sample_base(searched, n_actions, n_envs, additional_args)
        _suggest_options(trial, base, additional_args.get("her_kwargs", {}))
        sampled = convert(trial.params)
        # RL-Zoo makes noise from these two only when it reads a stored trial.
        for name in ("noise_type", "noise_std"):
            sampled.pop(name, None)
        if "action_noise" in of_base:
            sampled["action_noise"] = of_base["action_noise"]
        return sampled

    return sample


@functools.lru_cache
def converter_of(base: str) -> Converter:
    """Return a function that makes arguments of our algorithm from the parameters of a trial."""
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER

    convert_base = HYPERPARAMS_CONVERTER[_SEARCHED_AS.get(base, base)]

    def convert(sampled_params: dict[str, Any]) -> dict[str, Any]:
        of_buffer, others = {}, {}
        for name, value in sampled_params.items():
            if name in (*_SEARCHED, *_SEARCHED_WITH_GOALS) or name.startswith(_KEPT):
                of_buffer[name.removeprefix(_KEPT)] = value
            else:
                others[name] = value
        if others.get("noise_type", "") is None:  # RL-Zoo would pass both to the algorithm
            del others["noise_type"], others["noise_std"]
        return {**convert_base(others), "replay_buffer_kwargs": of_buffer}

    return convert


def _suggest_options(trial: "optuna.Trial", base: str, kept: dict[str, Any]) -> None:
    trial.suggest_float("alpha", 0.0, 1.0)
    _suggest_betas(trial, kept.get("prioritization"))
    if base == "dqn":
        trial.suggest_categorical("double_q", [False, True])
    replaced = {*trial.params, "uniform_share"}
    # Another prioritization, such as LAP, keeps its name and its own options.
    if kept.get("prioritization", "proportional") in _PRIORITIZATIONS:
        prioritization = trial.suggest_categorical("prioritization", _PRIORITIZATIONS)
        if prioritization == "proportional":  # eps cannot affect ranks, which refuse other values
            trial.suggest_float("eps", 1e-6, 1e-1, log=True)
        replaced |= {"prioritization", "eps"}
    if kept.get("replacement", True):  # a uniform share needs replacement
        trial.suggest_categorical("uniform_share", [0.0, 0.1, 0.5])
    for name, value in kept.items():
        if name not in replaced:
            trial.suggest_categorical(_KEPT + name, [value])


def _suggest_betas(trial: "optuna.Trial", prioritization: str | None) -> None:
    if prioritization == "lap":  # which needs no weights
        for name in ("beta_initial", "beta_final"):
            trial.suggest_categorical(name, [0.0])
    else:
        trial.suggest_float("beta_initial", 0.0, 1.0)
