"""The lake that a command finds or names, and its datasets.

A dataset is named by its name, or by FILE#NAME, which says which declaration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import click
from click.core import ParameterSource

from modcrypt.cli.shared_options import parameters_of
from modcrypt.errors import printable
from modcrypt.runtime.plugins import DECLARATIONS, load_all

KEYS = {"kms", "policy_file", "key", "column_key_refs"}
"""Parameters that name keys which a declaration names, too."""

NAME = re.compile(r"[\w-]+")  # names of datasets

_NAME_OR_TABLE = re.compile(rf"{NAME.pattern}(/[\w.-]+)?")
"""Names of datasets, and of tables of namespaces."""

_LAKES = "modcrypt.lakes"


class Lake(Protocol):
    """A lake, as its plug-in offers it: see `modcrypt.lake.found_lake.FoundLake`."""

    path: str
    refusal: Exception | None
    is_valid: bool
    kms: str

    def dataset_at(self, where: str) -> str | None:
        """Return the name of the dataset that a path belongs to."""

    def may_have(self, where: str) -> bool:
        """Return whether a path may belong to a dataset or table, be the lake trusted or not."""

    def is_place_of(self, name: str, where: str, *, is_part: bool) -> bool:
        """Return whether a path is that of a dataset or table, or is inside it."""

    def split(self, text: str) -> tuple[str, str]:
        """Return the name of a dataset or table, and the path inside it, of an argument."""

    def has(self, name: str) -> bool:
        """Return whether a dataset is declared."""

    def inside(self, name: str, where: str) -> str:
        """Return the path of a file or folder inside a dataset; empty for all of it."""

    def locate(self, name: str) -> str | None:
        """Return the path or URL of a dataset; None for a table."""

    def table_at(self, where: str, *, is_part: bool = False) -> str | None:
        """Return the name of the table at a path, or in whose folder it is."""

    def table_options(self, name: str) -> dict[str, Any] | None:
        """Return the values that options of commands for tables have by declaration."""

    def suggest(self, name: str) -> str:
        """Return a question for the name of a dataset that resembles another."""

    def settings(self, name: str, **options: Any) -> Any:
        """Return the settings of a dataset."""

    def record_erasure(
        self, parts: Mapping[str, Sequence[str]], *, signing_key: Any, **shredding: Any
    ) -> AbstractContextManager[Callable[[int, Mapping[str, int]], None]]:
        """Record what is erased in datasets, and with the function that is returned how it ends."""

    def record_event(
        self, event: str, names: Sequence[str], signing_key: Any
    ) -> AbstractContextManager[Callable[[int, Mapping[str, int]], None]]:
        """Record what is done to datasets, and with the function that is returned how it ends."""

    def record_partition(
        self, name: str, partition: Mapping[str, str], request: str, signing_key: Any
    ) -> AbstractContextManager[Callable[[int, int], None]]:
        """Record what is erased in a table, and with the function that is returned how it ends."""

    def advise(self, name: str, command: str) -> str:
        """Return which command works on a table instead of one that works on files."""


def find_lake(file: str | None = None) -> Lake | None:
    """Return the lake of a named declaration, or the one that is found; None if there is none.

    It is read once in a command. The option --config of a command names it, too.
    """
    context = click.get_current_context()
    file = file or context.params.get("config")
    known: dict[str | None, Lake | None] = context.meta.setdefault(_LAKES, {})
    if file not in known:
        found = [find(file) for find in load_all(DECLARATIONS)]
        known[file] = found[0] if found else None
    return known[file]


class Declared(NamedTuple):
    """The dataset that has the files of a command."""

    lake: Lake
    name: str
    file: str | None = None  # the declaration, if the user named it by FILE#NAME

    @property
    def key(self) -> tuple[str, str]:
        """Values that two objects for the same dataset share."""
        return os.path.realpath(self.lake.path), self.name

    def __str__(self) -> str:
        return f"{printable(self.lake.path)} declares {printable(self.name)}"


def split_reference(text: str | None) -> tuple[str, str] | None:
    """Return the declaration and the dataset of FILE#NAME; None for anything else."""
    file, mark, name = (text or "").rpartition("#")
    if not mark or not file or not name or os.path.exists(text or "") or not os.path.isfile(file):
        return None
    return file, name


def find_named(policy: str | None) -> Declared | None:
    """Return the dataset that the value of an option for policies names: FILE#NAME, or NAME alone.

    A file that exists is a policy.
    """
    if (reference := split_reference(policy)) is not None:
        lake = find_lake(reference[0])
        return None if lake is None else Declared(lake, *reference[::-1])
    if policy is None or not _NAME_OR_TABLE.fullmatch(policy) or os.path.isfile(policy):
        return None
    lake = find_lake()
    return None if lake is None or not lake.has(policy) else Declared(lake, policy)


def refuse_ambiguity(lake: Lake, name: str, text: str) -> None:
    """Raise a usage error for an existing path, if it begins like a dataset at another place."""
    if lake.is_place_of(name, text, is_part=text != name):
        return
    raise click.UsageError(
        f"{text} is a path, and {name} a dataset of {lake.path} at another place; write ./{text} "
        f"or {lake.path}#{text}"
    )


def usage_error(error: Exception) -> click.UsageError:
    """Return a usage error with the message of another error."""
    return click.UsageError(str(error))


def list_typed(is_wanted: Callable[[str], bool]) -> list[str]:
    """Return the parameters of the running command that are typed, and wanted."""
    command = click.get_current_context().command
    names = [parameter.name or "" for parameter in parameters_of(command)]
    return [p.name or "" for p in find_typed([name for name in names if is_wanted(name)])]


def find_typed(parameters: Collection[str]) -> list[click.Parameter]:
    """Return those of some parameters of the running command that are typed."""
    context = click.get_current_context()
    return [
        parameter
        for parameter in parameters_of(context.command)
        if parameter.name in parameters
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
