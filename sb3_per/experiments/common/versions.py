"""Versions of packages, which results name."""

from collections.abc import Iterable
from importlib import metadata


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
