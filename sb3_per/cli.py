"""The command ``sb3-per``: RL-Zoo's commands with our algorithms, and our own commands."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from typing import NamedTuple

from sb3_per import __version__, zoo
from sb3_per._utils import install
from sb3_per.algorithms import ALGORITHMS


class Command(NamedTuple):
    """A command. Its module is imported only when it runs; it reads ``sys.argv[1:]``."""

    help: str
    module: str
    function: str | None = None  # None: the module is a script and runs as `python -m` runs it
    extras: tuple[str, ...] = ("zoo",)


# The modules of our extras that a bare install lacks.
EXTRAS = {"zoo": ("rl_zoo3", "pandas", "requests"), "plots": ("seaborn", "matplotlib", "scipy")}
_PLOTS = ("zoo", "plots")
_RL_ZOO_COMMANDS = {
    "train": Command("train an agent, or search hyperparameters", "sb3_per.experiment", "train"),
    "enjoy": Command("watch or evaluate a trained agent", "rl_zoo3.enjoy", "enjoy"),
    "plot_train": Command(
        "plot returns during training", "rl_zoo3.plots.plot_train", "plot_train", _PLOTS
    ),
    "all_plots": Command(
        "plot evaluations of several runs", "rl_zoo3.plots.all_plots", "all_plots", _PLOTS
    ),
    "plot_from_file": Command(
        "plot what all_plots has saved", "rl_zoo3.plots.plot_from_file", "plot_from_file", _PLOTS
    ),
    "record_video": Command("film a trained agent", "rl_zoo3.record_video"),
    "push_to_hub": Command("upload a trained agent", "rl_zoo3.push_to_hub"),
    "load_from_hub": Command("download a trained agent", "rl_zoo3.load_from_hub"),
}
_OUR_COMMANDS = {
    "compare": Command(
        "compare algorithms over environments and seeds",
        "sb3_per.compare.command",
        "main",
    ),
    "configs": Command("print the folder of our YAML files", "sb3_per.cli", "configs", ()),
}
COMMANDS = _RL_ZOO_COMMANDS | _OUR_COMMANDS


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Run one command.

    :param arguments: The command and its arguments; None for those of this process.
    :raises SystemExit: with a message, if the command is unknown or a package is missing.
    """
    given = _parser().parse_args(arguments)
    command = COMMANDS[given.command]
    for extra in command.extras:
        for module in EXTRAS[extra]:
            if importlib.util.find_spec(module) is None:
                needs = f"sb3-per {given.command} needs the package {module}"
                raise SystemExit(f"{needs}: {install(extra)}")
    # As with `python -m`, for modules of the user's own: --gym-packages my_module.
    sys.path.insert(0, "")
    sys.argv = [f"sb3-per {given.command}", *given.arguments]
    if command.extras:
        _prepare_zoo(given.command)
    if command.function is None:
        try:
            runpy.run_module(command.module, run_name="__main__")
        except ImportError as error:
            raise SystemExit(f"{sys.argv[0]} does not work with these packages: {error}") from error
    else:
        getattr(importlib.import_module(command.module), command.function)()


def _prepare_zoo(name: str) -> None:
    """Register our algorithms; check the trial of ``train``, and let it use our YAML file."""
    zoo.register()
    if name != "train":
        return
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("--algo", "--trial-id", "--storage", "--study-name"):
        parser.add_argument(option)
    given = parser.parse_known_args(sys.argv[1:])[0]
    if given.trial_id and not (int(given.trial_id) and given.storage and given.study_name):
        rule = "--trial-id needs --storage, --study-name and a trial other than 0"
        raise SystemExit(f"{rule}: RL-Zoo would train the YAML file instead")
    if given.algo in ALGORITHMS:
        # Before the user's arguments: if -conf is given twice, the last one counts.
        sys.argv[1:1] = ["-conf", str(zoo.config_file(given.algo))]


def configs() -> None:
    """Print the path of the folder that has our YAML files."""
    sys.stdout.write(f"{zoo.config_folder()}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sb3-per",
        usage="sb3-per COMMAND ... (sb3-per --help lists the commands)",
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
