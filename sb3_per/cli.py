"""The command ``sb3-per``: RL-Zoo's commands with our algorithms, and our own commands."""

import argparse
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from typing import NamedTuple

from sb3_per import __version__
from sb3_per.extras import install


class Command(NamedTuple):
    """
    A command of ``sb3-per``. Its module is imported only when the command runs.

    Every command reads its arguments from ``sys.argv[1:]``.
    """

    help: str
    module: str
    function: str | None = None  # None: the module is a script and runs as `python -m` runs it
    needs: tuple[str, ...] = ()  # modules that a bare install lacks


# Our extra that installs each module which a bare install lacks.
EXTRAS = {
    "rl_zoo3": "zoo",
    "pandas": "zoo",
    "requests": "zoo",
    "seaborn": "plots",
    "matplotlib": "plots",
    "scipy": "plots",
}
_ZOO = ("rl_zoo3", "pandas", "requests")
_PLOTS = (*_ZOO, "seaborn", "scipy")

_RL_ZOO_COMMANDS = {
    "train": Command("train an agent, or search hyperparameters", "rl_zoo3.train", "train", _ZOO),
    "enjoy": Command("watch or evaluate a trained agent", "rl_zoo3.enjoy", "enjoy", _ZOO),
    "plot_train": Command(
        "plot returns during training", "rl_zoo3.plots.plot_train", "plot_train", _PLOTS
    ),
    "all_plots": Command(
        "plot evaluations of several runs", "rl_zoo3.plots.all_plots", "all_plots", _PLOTS
    ),
    "plot_from_file": Command(
        "plot what all_plots has saved", "rl_zoo3.plots.plot_from_file", "plot_from_file", _PLOTS
    ),
    "record_video": Command("film a trained agent", "rl_zoo3.record_video", None, _ZOO),
    "record_training": Command(
        "film an agent at each checkpoint", "sb3_per.zoo.recording", "record_training", _ZOO
    ),
    "push_to_hub": Command("upload a trained agent", "rl_zoo3.push_to_hub", None, _ZOO),
    "load_from_hub": Command("download a trained agent", "rl_zoo3.load_from_hub", None, _ZOO),
}
_OUR_COMMANDS = {
    "compare": Command(
        "compare variants: run them over environments and seeds, report on the runs",
        "sb3_per.compare.command",
        "main",
        (*_ZOO, "matplotlib", "scipy"),
    ),
    "configs": Command("print the folder of our YAML files", "sb3_per.cli", "configs"),
}
COMMANDS = _RL_ZOO_COMMANDS | _OUR_COMMANDS
_COMMANDS_WITHOUT_TRAINING = (
    "enjoy",
    "record_video",
    "push_to_hub",
)  # commands that load an agent and do not train


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Run one command.

    :param arguments: The command and its arguments; None for those of this process.
    :raises SystemExit: with a message, if the command is unknown or a package is missing.
    """
    asked = _parser().parse_args(arguments)
    command = COMMANDS[asked.command]
    _check_needs(asked.command, command)
    if "rl_zoo3" in command.needs:
        _prepare_zoo(asked.command)
    defaults = _default_configuration(asked.arguments) if asked.command == "train" else []
    sys.argv = [f"sb3-per {asked.command}", *defaults, *asked.arguments]
    if command.function is None:
        runpy.run_module(command.module, run_name="__main__")
    else:
        getattr(importlib.import_module(command.module), command.function)()


def _prepare_zoo(name: str) -> None:
    from sb3_per import zoo  # not above: it imports torch and SB3, for which --help would wait

    zoo.register()
    if name in _COMMANDS_WITHOUT_TRAINING:
        zoo.load_without_buffers()


def configs() -> None:
    """Print the path of the folder that has our YAML files."""
    from sb3_per import zoo

    sys.stdout.write(f"{zoo.config_folder()}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sb3-per",
        usage="sb3-per COMMAND ...",
        description="RL-Zoo's commands, with our algorithms (per_dqn, per_sac, ...):\n\n"
        f"{_listed(_RL_ZOO_COMMANDS)}\n\nCommands of our own:\n\n{_listed(_OUR_COMMANDS)}",
        epilog="`sb3-per COMMAND --help` shows the arguments of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    rest.required = False  # otherwise the error for a missing command names it, too
    return parser


def _listed(commands: dict[str, Command]) -> str:
    return "\n".join(f"  {name:<16} {command.help}" for name, command in commands.items())


def _check_needs(name: str, command: Command) -> None:
    for module in command.needs:
        if importlib.util.find_spec(module) is None:
            raise SystemExit(
                f"sb3-per {name} needs the package {module}: {install(EXTRAS[module])}"
            )


def _default_configuration(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that name our YAML file, if the algorithm is one of ours."""
    from sb3_per import zoo

    parser = argparse.ArgumentParser(prog="sb3-per train", add_help=False)
    parser.add_argument("--algo")
    algorithm = parser.parse_known_args(arguments)[0].algo
    if algorithm not in zoo.ALGORITHMS:
        return []
    # It comes before the user's arguments: if -conf is given twice, the last one counts.
    return ["-conf", str(zoo.config_file(algorithm))]
