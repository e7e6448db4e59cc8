"""Statements that files, or columns of them, are erased.

A statement alone hides nothing: a file counts as erased only if a statement names it, and its keys
are gone. If a named file opens, that is a fault.
"""

from __future__ import annotations

import datetime
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote

from modcrypt.errors import MAX_NAME, KeyDisabledError, KeyNotFoundError, printable
from modcrypt.settings.kinds import FLAG, NAME, NAMES, Kind, table_of
from modcrypt.settings.setting import Setting

MAX_ERASURES = 10_000
"""Largest number of statements about one dataset, and of lines in a record."""

MAX_REQUEST = 200
"""Length limit of the id of a request, in characters."""

DESTROYED = "destroyed"
"""The reason of files whose master key, or its version, the key service lists as destroyed."""

NOT_ERASED = "not-erased"  # the error code of a file that is declared as erased, but opens

GONE = frozenset({KeyNotFoundError.word, DESTROYED})
"""Reasons of a file's state that mean that its keys are gone, not refused or unavailable."""

_Values: TypeAlias = tuple[tuple[str, str | None], ...]

_COMMON = (
    Setting(table_of(NAME, "a table of partitions and values"), name="partition"),
    Setting(NAMES, name="files"),
    Setting(NAME, name="when"),
    Setting(NAME, name="request"),
)
_OF_FILES = (*_COMMON, Setting(NAMES, name="columns"), Setting(FLAG, name="emptied"))
_OF_TABLES = (*_COMMON, Setting(FLAG, name="whole"), Setting(NAME, name="table"))


def _list_of(members: Iterable[Setting]) -> Kind:
    item = {
        "type": "object", "additionalProperties": False,
        "properties": {member.name: member.kind.schema for member in members},
    }  # fmt: skip
    return Kind("a list of tables [[dataset.NAME.erased]]", {"type": "array", "items": item})


ERASED, ERASED_IN_TABLES = _list_of(_OF_FILES), _list_of(_OF_TABLES)
"""The kinds of the member `erased` of a dataset of files, and of one that is a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """A statement that some files of a dataset, or columns of them, are erased."""

    # Values of the partitions that the files are in; empty for any.
    partition: Mapping[str, str] = field(default_factory=dict)
    # Paths of the files, or folders of files, inside the dataset; empty for all.
    files: Sequence[str] = ()
    columns: Sequence[str] = ()  # names of columns or groups that are erased; empty for whole files
    # Whether the dataset may be empty, because all of it was erased and removed.
    emptied: bool = False
    whole: bool = False  # whether a whole table is erased
    # Identifier of the table, for a dataset that is a namespace; empty for all tables.
    table: str = ""
    when: str = ""  # time of the erasure, ISO 8601
    request: str = ""  # id of the request that asked for it; empty if none is known

    def fields(self) -> dict[str, Any]:
        """Return the attributes that say something, as values for JSON."""
        values: dict[str, Any] = {
            "partition": dict(self.partition), "files": list(self.files),
            "columns": list(self.columns), "emptied": self.emptied, "whole": self.whole,
            "table": self.table, "when": self.when, "request": self.request,
        }  # fmt: skip
        return {name: value for name, value in values.items() if value}

    def __str__(self) -> str:
        """Return when the data was erased, and by which request."""
        return f"{self.when}, request {self.request}" if self.request else self.when


class Erasures:
    """All statements about one dataset, by what they name: there may be many, and many files.

    Args:
        unquote: Function that decodes the names and values of partitions in paths.
    """

    def __init__(
        self, statements: Sequence[Erasure] = (), unquote: Callable[[str], str] = unquote
    ) -> None:
        self.statements, self._unquote = tuple(statements), unquote
        self._by_file: defaultdict[str, list[Erasure]] = defaultdict(list)
        self._by_values: defaultdict[_Values, list[Erasure]] = defaultdict(list)
        for each in self.statements:
            for file in each.files:
                self._by_file[file].append(each)
            if not each.files and (each.partition or each.columns or each.whole):
                self._by_values[tuple(sorted(each.partition.items()))].append(each)
        self.emptied = any(each.emptied for each in self.statements)
        self._partitions = {tuple(name for name, _ in values) for values in self._by_values}

    def names(self, path: str) -> bool:
        """Return whether a statement is about a file, or about columns of it."""
        return any(True for _ in self._about(path))

    def find(self, path: str) -> Erasure | None:
        """Return the first statement that a file is erased as a whole; None if there is none."""
        return next((each for each in self._about(path) if not each.columns), None)

    def find_columns(self, path: str, names: Iterable[str]) -> dict[str, Erasure]:
        """Return those of some columns that statements call erased in a file."""
        found = [each for each in self._about(path) if each.columns]
        return {
            name: each for name in names for each in found
            if any(name == column or name.startswith(f"{column}.") for column in each.columns)
        }  # fmt: skip

    def _about(self, path: str) -> Iterator[Erasure]:
        if not self.statements:
            return
        values = read_partition(posixpath.dirname(path), self._unquote)
        for end in (*(match.start() for match in re.finditer("/", path)), len(path)):
            for each in self._by_file.get(path[:end], ()):
                if each.partition.items() <= values.items():
                    yield each
        for names in self._partitions:
            yield from self._by_values.get(tuple((n, values.get(n)) for n in names), ())


def read_partition(folder: str, unquote: Callable[[str], str] = unquote) -> dict[str, str]:
    """Return the values of the partitions that the path of a folder names."""
    folders = (each.partition("=") for each in folder.split("/"))
    return {unquote(name): unquote(value) for name, equals, value in folders if equals}


def is_gone(error: BaseException, *, is_destroyed: bool) -> bool:
    """Return whether an error says that a key is gone.

    `is_destroyed` says whether the key service lists its master key as destroyed: only then does a
    refusal mean that the key will not return. An unavailable service says nothing.
    """
    refused = isinstance(error, KeyDisabledError) and is_destroyed
    return refused or isinstance(error, KeyNotFoundError)


def list_erasure_faults(given: Mapping[str, Any], partitions: Iterable[str] | None) -> list[str]:
    """Return the faults of a statement, whose members have the right kinds or not.

    `partitions` are the names of the partitions of a dataset of files; None for a table.
    """
    known = {member.name: member for member in (_OF_TABLES if partitions is None else _OF_FILES)}
    faults = [f"unknown member {printable(name, MAX_NAME)}" for name in given if name not in known]
    for name in given.keys() & known.keys():
        faults += known[name].kind.list_faults(name, given[name])
    return faults or list(_list_contradictions(given, partitions))


def _list_contradictions(
    given: Mapping[str, Any], partitions: Iterable[str] | None
) -> Iterator[str]:
    about = [name for name in ("partition", "files", "columns") if given.get(name)]
    alone, parts = "emptied", "a partition, files or columns"
    if partitions is None:
        alone, parts = "whole", "a partition or files"
    if bool(about) == given.get(alone, False):
        yield f"an erasure names {parts}, or has {alone} = true alone"
    named = given.get("partition", {}).keys()
    for name in sorted(named - (named if partitions is None else set(partitions))):
        yield f"unknown partition {printable(name, MAX_NAME)}; add it to partitions"
    yield from list_path_faults(given.get("files", ()))
    if len(given.get("request", "")) > MAX_REQUEST:
        yield f"request is longer than {MAX_REQUEST} characters"
    if "when" not in given:
        yield 'when is missing; set it to the time of the erasure, such as "2026-11-29"'
    elif not _is_time(given["when"]):
        yield 'when must be a date or a time, such as "2026-11-29"'


def list_path_faults(paths: Iterable[str]) -> list[str]:
    """Return a fault for each path that does not lead into the dataset."""
    return [
        f"{printable(path, MAX_NAME)} is not a path inside the dataset" for path in paths
        if posixpath.normpath(path) != path or path.startswith(("/", "../")) or path in (".", "..")
    ]  # fmt: skip


def _is_time(text: str) -> bool:
    if not re.match(r"\d{4}-\d\d-\d\d", text):
        return False
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


_SINGLE = ("when", "request", "partition", "emptied", "whole", "table")


def make_erasure(given: Mapping[str, Any]) -> Erasure:
    """Return a statement whose members have no faults."""
    members: dict[str, Any] = {name: given[name] for name in _SINGLE if name in given}
    files, columns = (tuple(given.get(name, ())) for name in ("files", "columns"))
    return Erasure(files=files, columns=columns, **members)
