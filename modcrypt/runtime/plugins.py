"""Plug-ins: the packages above the core, found by the entry points of modcrypt's distribution.

    modcrypt.commands   a function that adds commands to the program, which is its argument
    modcrypt.engines    a module with the jobs that run elsewhere than in threads, such as on Spark
    modcrypt.tables     a module for a format of tables that a lake declares
    modcrypt.declarations  a function that finds the declaration of a command's files
    modcrypt.subjects   a function that returns the keys of subjects, by the address of their vault

The core never imports a plug-in, and one that is not there is left out. Key services have a group
of entry points that every distribution may use, see `modcrypt.kms.references`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from typing import Any

COMMANDS, ENGINES, TABLES = "modcrypt.commands", "modcrypt.engines", "modcrypt.tables"
DECLARATIONS, SUBJECTS = "modcrypt.declarations", "modcrypt.subjects"  # groups of entry points


def load_all(group: str) -> list[Any]:
    """Return the objects that the plug-ins of a group offer, in the order of their names."""
    return [found for entry in _list_entries(group) if (found := _load(entry)) is not None]


def load(group: str, name: str) -> Any:
    """Return the object that a plug-in offers; raise ModuleNotFoundError if it is not there."""
    for entry in _list_entries(group):
        if entry.name == name and (found := _load(entry)) is not None:
            return found
    raise ModuleNotFoundError(f"this modcrypt has no {name}; install the complete package")


def _list_entries(group: str) -> list[EntryPoint]:
    """Return the entry points of a group by name; none of a checkout that is not installed."""
    try:
        return sorted(distribution("modcrypt").entry_points.select(group=group))
    except PackageNotFoundError:
        return []


def _load(entry: EntryPoint) -> Any:
    """Return the object that an entry point names; None if its package is not there."""
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        if error.name is None or not f"{entry.module}.".startswith(f"{error.name}."):
            raise  # it is something that the plug-in imports
        return None
