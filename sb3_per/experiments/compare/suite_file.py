"""Suites as YAML files: ours, a user's, and the copy in a run folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sb3_per.experiments.compare.environment import Environment, Evaluation, Score, Section
from sb3_per.experiments.compare.problems import Problem, Problems, SuiteError, fail, similar
from sb3_per.experiments.compare.suite import Contrast, Suite, Variant
from sb3_per.saving.atomic import new_file

_TEMPLATE = Path(__file__).parent / "template.yml"
_FOLDER = Path(__file__).parent / "suites"
# What PyYAML raises: no UTF-8 or 2024-13-45; `!!bool maybe`; `!!int`; `!!timestamp soon`; 3,000
# brackets.
_NO_YAML = (yaml.YAMLError, ValueError, KeyError, IndexError, AttributeError, RecursionError)
# Our words for pydantic's kinds of errors.
_RULES = {
    "dict_type": "must be a mapping",
    "finite_number": "must be finite",
    "float_type": "must be a number",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be a whole number",
    "model_type": "must be a mapping",
    "string_type": "must be text",
    "too_short": "must not be empty",
}
_SECTIONS: dict[str, type[Section]] = {
    "environments": Environment,
    "variants": Variant,
    "contrasts": Contrast,
    "evaluation": Evaluation,
    "score": Score,
}


def names() -> list[str]:
    """Return the names of the suites that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.yml"))


def load(which: str) -> Suite:
    """
    Read a suite.

    :param which: The name of one of our suites, or the path of a YAML file.
    :return: The suite, with RL-Zoo's hyperparameters filled in.
    :raises SuiteError: if there is no such suite, or with all problems in it.
    """
    path = Path(which)
    if path.suffix not in (".yml", ".yaml"):
        path = _FOLDER / f"{which}.yml"
    if not path.is_file():
        known = ", ".join(names())
        raise SuiteError(f"there is no suite {which!r} (there are {known}, or your own YAML file)")
    values = _read_yaml(path)
    variants = values.get("variants") if isinstance(values, dict) else None
    # A validator of Suite would only know the variants without problems.
    context = {"variants": [*variants] if isinstance(variants, dict) else []}
    try:
        return Suite.model_validate(values, context=context)
    except ValidationError as error:
        fail(str(path), [*_problems_of(error)])


def save(suite: Suite, path: Path) -> None:
    """Write a suite as a file that ``load`` reads, with every hyperparameter spelled out."""
    values = suite.model_dump(exclude_defaults=True)
    with new_file(path) as file:
        file.write(yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode())


def write_template(path: Path) -> None:
    """
    Write a suite that runs as it stands, with a comment for each key.

    :raises SuiteError: for a name that ``load`` takes for one of our suites, or a file that exists.
    """
    if path.suffix not in (".yml", ".yaml"):
        raise SuiteError(f"the name of a suite's file must end in .yml or .yaml, got {path}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise SuiteError(f"{path} exists already: choose another name") from error


class _StrictLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Refuses equal keys; PyYAML would silently use the last one."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        # As it is written: later, merge keys (<<) bring in more, which may well be there already.
        node = super().compose_mapping_node(anchor)
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                mark = node.start_mark
                raise yaml.MarkedYAMLError(problem=f"two keys {name!r}", problem_mark=mark)
        return node


def _read_yaml(path: Path) -> Any:
    """Return what a file holds, under the file's name if it has no other."""
    try:
        with path.open(encoding="utf-8") as file:
            values = yaml.load(file, _StrictLoader)
    except _NO_YAML as error:
        raise SuiteError(f"{path}: {type(error).__name__}: {error}") from error
    return {"name": path.stem, **values} if isinstance(values, dict) else values


def _problems_of(error: ValidationError) -> Iterator[Problem]:
    """Return the problems that pydantic has found, in our words."""
    for found in error.errors():
        path, kind, value = tuple(map(str, found["loc"])), found["type"], found["input"]
        inner = found.get("ctx", {}).get("error")
        if path[-1:] == ("[key]",):  # pydantic's mark of a key that is wrong itself
            path = path[:-1]
        if isinstance(inner, Problems):
            yield from (Problem(path + each.path, each.rule) for each in inner.problems)
        elif isinstance(inner, ValueError):
            yield Problem(path, str(inner))
        elif kind == "missing":
            yield Problem(path, "is missing")
        elif kind == "extra_forbidden":
            yield Problem(path, _unknown(path))
        else:
            if kind == "float_type" and type(value) is int:  # more than a float can hold
                kind = "finite_number"
            rule = _RULES.get(kind, found["msg"]).format(**found.get("ctx", {}))
            yield Problem(path, f"{rule}, got {value!r}")


def _unknown(path: tuple[str, ...]) -> str:
    known = [*_section_at(path[:-1]).model_fields]
    return f"is unknown{similar(path[-1], known)} (known: {', '.join(known)})"


def _section_at(path: tuple[str, ...]) -> type[Section]:
    """Return the class of a part of a suite, by the keys that lead there."""
    if len(path) < 2:
        return Suite
    return _SECTIONS[path[0] if len(path) == 2 else path[2]]
