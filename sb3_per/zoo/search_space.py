"""What RL-Zoo's hyperparameter search suggests for PERDQN, and how a trial is read back."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna  # comes with RL-Zoo, which not everyone installs

# Options of the buffer that are searched. The other options of the configuration are stored with the
# trial, as choices of one, since RL-Zoo reads a trial back without looking at the configuration's
# own `replay_buffer_kwargs`.
_SEARCHED = ("prioritization", "alpha", "eps", "uniform_share")
_KEPT = "replay_buffer_kwargs."


def sample_per_dqn(
    trial: "optuna.Trial", n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    Suggest what RL-Zoo suggests for DQN, and the options of prioritization and double_q.

    :param trial: Draws, and remembers what it drew.
    :param n_actions: As RL-Zoo hands it over.
    :param n_envs: The same.
    :param additional_args: The same; its ``her_kwargs`` are the configuration's
        ``replay_buffer_kwargs``, of which those stay that are not searched.
    :return: Arguments of PERDQN, the same as ``convert_per_dqn`` makes of the stored trial.
    """
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_SAMPLER

    HYPERPARAMS_SAMPLER["dqn"](trial, n_actions, n_envs, additional_args)
    trial.suggest_float("alpha", 0.0, 1.0)
    trial.suggest_float("beta_initial", 0.0, 1.0)
    trial.suggest_categorical("double_q", [False, True])
    prioritization = trial.suggest_categorical("prioritization", ["proportional", "rank"])
    if prioritization == "proportional":  # ranks do not change with eps, and so refuse another one
        trial.suggest_float("eps", 1e-6, 1e-1, log=True)
    kept = additional_args.get("her_kwargs", {})
    if kept.get("replacement", True):  # without replacement a share is refused
        trial.suggest_categorical("uniform_share", [0.0, 0.1, 0.5])
    for name, value in kept.items():
        if name not in _SEARCHED:
            trial.suggest_categorical(_KEPT + name, [value])
    return convert_per_dqn(trial.params)


def convert_per_dqn(sampled_params: dict[str, Any]) -> dict[str, Any]:
    """
    :param sampled_params: What a trial of ``sample_per_dqn`` has drawn.
    :return: Arguments of PERDQN.
    """
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER

    of_buffer, others = {}, {}
    for name, value in sampled_params.items():
        if name in _SEARCHED or name.startswith(_KEPT):
            of_buffer[name.removeprefix(_KEPT)] = value
        else:
            others[name] = value
    return {**HYPERPARAMS_CONVERTER["dqn"](others), "replay_buffer_kwargs": of_buffer}
