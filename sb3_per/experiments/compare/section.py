"""YAML that is read key by key, with errors that name the file and the key."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

Value = TypeVar("Value", int, float, str, dict[str, Any])
_KINDS = {int: "a whole number", float: "a number", str: "text", dict: "a mapping"}


# What PyYAML raises: no UTF-8 or 2024-13-45; `!!bool maybe`; `!!int`; `!!timestamp soon`; 3,000
# brackets.
_NO_YAML = (yaml.YAMLError, ValueError, KeyError, IndexError, AttributeError, RecursionError)


class SuiteError(ValueError):
    """What is wrong in a suite: file, key, rule and value in one line."""


class _StrictLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """PyYAML takes the last of two equal keys without a word; this loader refuses them."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        # As it is written: later, merge keys (<<) bring in more, which may well be there already.
        node = super().compose_mapping_node(anchor)
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                mark = node.start_mark
                raise yaml.MarkedYAMLError(problem=f"two keys {name!r}", problem_mark=mark)
        return node


class Section:
    """
    A mapping in a YAML file.

    Invariant: a key that nobody has asked for is an error once ``finish`` is called.

    :param file: Named in errors.
    :param path: Keys that lead here, joined by dots; empty for the whole file.
    :param values: What stands here.
    :raises SuiteError: if that is no mapping.
    """

    def __init__(self, file: str, path: str, values: object) -> None:
        self._file, self._path = file, path
        if not isinstance(values, Mapping):
            raise SuiteError(f"{file}: {path or 'the file'} must be a mapping, got {values!r}")
        for key in values:
            if not isinstance(key, str):
                raise SuiteError(f"{file}: {self.path_of(repr(key))} must be text")
        self._values: Mapping[str, Any] = values
        self._asked_for: list[str] = []

    def take(self, key: str, kind: type[Value], default: Value | None = None) -> Value:
        """
        :param key: In this mapping.
        :param kind: A whole number is a number too; text never is.
        :param default: For a key that is not there; None if it has to be.
        :return: Its value.
        :raises SuiteError: if it is missing or of another kind.
        """
        self._asked_for.append(key)
        if key not in self._values:
            if default is None:
                raise SuiteError(f"{self._file}: {self.path_of(key)} is missing")
            return default
        value: Any = self._values[key]
        is_right = type(value) is kind or (kind is float and type(value) is int)
        if not is_right:
            self.fail(key, f"must be {_KINDS[kind]}")
        try:
            is_finite = kind is not float or math.isfinite(value)
        except OverflowError:  # a whole number that no float can hold
            is_finite = False
        if not is_finite:
            self.fail(key, "must be finite")
        return kind(value)

    def section(self, key: str) -> "Section":
        return Section(self._file, self.path_of(key), self.take(key, dict))

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def items(self) -> Iterable[tuple[str, Any]]:
        """:return: Each key with what stands there, in the file's order."""
        return self._values.items()

    def sections(self) -> Iterator[tuple[str, "Section"]]:
        """:return: Each key with its mapping, in the file's order."""
        for key in self._values:
            yield key, self.section(key)

    def finish(self) -> None:
        """:raises SuiteError: for a key that nobody has asked for."""
        for key in self._values:
            if key not in self._asked_for:
                known = ", ".join(self._asked_for)
                raise SuiteError(f"{self._file}: {self.path_of(key)} is unknown (known: {known})")

    def fail(self, key: str, rule: str) -> NoReturn:
        """:raises SuiteError: always; it says the rule and the value of ``key``."""
        value = self._values.get(key)
        raise SuiteError(f"{self._file}: {self.path_of(key)} {rule}, got {value!r}")

    def path_of(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def read_yaml(path: Path) -> Section:
    """
    :param path: A YAML file.
    :return: Its mapping.
    :raises SuiteError: if it is not YAML, holds no mapping, or a mapping holds a key twice.
    """
    try:
        with path.open(encoding="utf-8") as file:
            values = yaml.load(file, _StrictLoader)
    except _NO_YAML as error:
        raise SuiteError(f"{path}: {type(error).__name__}: {error}") from error
    return Section(str(path), "", values)
