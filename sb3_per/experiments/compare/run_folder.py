"""The run folder: the files of each cell, and its result as JSON."""

import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sb3_per.experiments.compare.suite import Cell, gym_id
from sb3_per.saving.atomic import new_file

SUITE = "suite.yml"
OUTPUT = "output.txt"
_RESULT = "result.json"
_FORMAT = 1
_MARK = ".sb3-per-cell"
_NOTE = "sb3-per compare removes all files in this folder when it trains this cell again.\n"


class MixedResults(ValueError):
    """Raised for a result that was made with other settings than the suite's."""


class DamagedResult(ValueError):
    """Raised for a result file that was changed after ``write`` had written it."""


class _Absent:
    """The value of a missing key, which differs from null."""

    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def cell_folder(folder: Path, cell: Cell) -> Path:
    """
    Return a cell's own folder: in RL-Zoo's layout, below one folder for each variant.

    RL-Zoo's ``all_plots``, ``plot_train`` and ``enjoy`` find it; their ``--exp-id`` is seed + 1.
    """
    name = f"{gym_id(cell.environment).replace('/', '-')}_{cell.seed + 1}"
    algorithm: str = cell.settings["algorithm"]
    return folder / cell.variant / algorithm / name


def check_places(folder: Path, cells: Iterable[Cell]) -> None:
    """
    Check that cells may use their folders, which ``clear`` empties.

    :raises FileExistsError: if a folder holds files and was not marked by a run of ours.
    """
    foreign = [str(path) for path in (cell_folder(folder, each) for each in cells) if _holds(path)]
    if foreign:
        raise FileExistsError(
            "a run removes what is in its own folder, so it must be empty or marked by "
            f"{_MARK}. Choose another --out, or move these folders away: {', '.join(foreign)}"
        )


def _holds(place: Path) -> bool:
    return place.is_dir() and not (place / _MARK).exists() and any(place.iterdir())


def claim(folder: Path, cell: Cell) -> Path:
    """
    Make a cell's folder and mark it as ours.

    :return: The folder.
    :raises FileExistsError: as in ``check_places``.
    """
    check_places(folder, [cell])
    place = cell_folder(folder, cell)
    place.mkdir(parents=True, exist_ok=True)
    (place / _MARK).write_text(_NOTE, encoding="utf-8")
    return place


def clear(folder: Path, cell: Cell) -> Path:
    """
    Claim a cell's folder and remove the files of an earlier try, except the output.

    :return: The folder.
    :raises FileExistsError: as in ``check_places``.
    """
    place = claim(folder, cell)
    for path in place.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (OUTPUT, _MARK):
            path.unlink()
    return place


def write(folder: Path, cell: Cell, measured: dict[str, Any]) -> None:
    """
    Write a cell's result; the cell is finished then.

    :param measured: Further contents of the file, of the types that JSON knows.
    """
    text = json.dumps({"format": _FORMAT, "settings": cell.settings, **measured}, indent=1)
    with new_file(cell_folder(folder, cell) / _RESULT) as file:
        file.write(f"{text}\n".encode())


def taken(place: Path) -> dict[str, bytes]:
    """Return all files of a cell's folder, by their paths in it."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in files}


def put(folder: Path, cell: Cell, files: dict[str, bytes]) -> None:
    """
    Fill a cell's folder with files from another machine; the result, if there is one, comes last.

    :param files: The files, as ``taken`` returns them; files of an earlier try are removed.
    :raises FileExistsError: as in ``check_places``.
    """
    place = clear(folder, cell)
    for name in sorted(files, key=lambda name: name == _RESULT):
        with new_file(place / name) as file:
            file.write(files[name])


def read(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """
    Read a cell's result.

    :return: The result, as ``write`` has written it; None for a cell that is not finished.
    :raises MixedResults: if it was made with other settings or by another format.
    :raises DamagedResult: if it was cut short or changed.
    """
    path = cell_folder(folder, cell) / _RESULT
    if not path.is_file():
        return None
    result = _loaded(path)
    if result.get("format") != _FORMAT:
        raise MixedResults(f"{path} must have format {_FORMAT}, got {result.get('format')!r}")
    # JSON has no tuples, and the suite's own values have not been through JSON.
    expected = json.loads(json.dumps(cell.settings))
    different = list(_differences(result.get("settings"), expected))
    if different:
        raise MixedResults(
            f"{path} was made with other settings than the suite's: {'; '.join(different)}. "
            "Choose another folder, or delete the results that shall be made again"
        )
    _check_measured(path, result, cell)
    return result


def _loaded(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no UTF-8, or no JSON
        raise _damaged(path, f"it must be JSON ({error})") from error
    if not isinstance(result, dict):
        raise _damaged(path, f"it must hold an object, got {result!r}")
    return result


def _check_measured(path: Path, result: dict[str, Any], cell: Cell) -> None:
    """Refuse a result that lacks what a report needs, or was not measured as declared."""
    budget, each = cell.settings["steps"], cell.settings["evaluation"]
    try:
        steps, returns = result["evaluations"]["steps"], result["evaluations"]["returns"]
        numbers = [result["steps_per_second"], result["steps_per_cpu_second"]]
        numbers += [result["seconds"]["cpu"], *(one for some in returns for one in some)]
        is_finite = all(math.isfinite(number) for number in numbers)
        shape = [len(steps), *map(len, returns)]
        in_budget = [step for step in steps if step <= budget]
        result["evaluation_is_greedy"], result["versions"], result["machine"]
    except (KeyError, TypeError) as error:
        raise _damaged(path, f"it must hold what was measured ({error!r})") from error
    if not is_finite:
        raise _damaged(path, "its numbers must be finite")
    expected = [*range(each["every"], budget + 1, each["every"])]
    if in_budget != expected:
        rule = f"evaluations must be {each['every']} steps apart, {len(expected)} of them"
        raise _damaged(path, f"{rule}, got {steps}")
    if shape != [len(returns), *[each["episodes"]] * len(returns)]:
        raise _damaged(path, f"evaluations must be of {each['episodes']} episodes each")


def _damaged(path: Path, rule: str) -> DamagedResult:
    return DamagedResult(f"{path}: {rule}. Delete it, and its cell is trained again")


def unfinished(folder: Path, cells: list[Cell]) -> list[Cell]:
    """
    Return the cells without a result.

    :raises MixedResults: as in ``read``.
    :raises DamagedResult: as in ``read``.
    """
    return [cell for cell in cells if read(folder, cell) is None]


def strangers(folder: Path, cells: list[Cell]) -> list[Path]:
    """Return the result files of cells that are not in the grid."""
    known = {cell_folder(folder, cell) / _RESULT for cell in cells}
    return sorted(set(folder.glob(f"*/*/*/{_RESULT}")) - known)


def _differences(found: Any, expected: Any, path: str = "") -> list[str]:
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return [] if found == expected else [f"{path} was {found!r} and is {expected!r}"]
    return [
        difference
        for key in {**expected, **found}
        for difference in _differences(
            found.get(key, _ABSENT),
            expected.get(key, _ABSENT),
            f"{path}.{key}" if path else key,
        )
    ]
