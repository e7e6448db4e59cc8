"""Options of the data source `modcrypt`, parsed from Spark's text and checked.

The options about keys are the settings of the table, `KEY_OPTIONS`, the others `_OWN`.
Spark logs and shows options, also those of SQL. So messages never repeat a value, and values that
may contain a key are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from modcrypt.io.addresses import local_path
from modcrypt.kms.key_references import absolute_reference, check_reference
from modcrypt.kms.policy import Policy
from modcrypt.kms.recipients.recipient import Recipient
from modcrypt.kms.settings import Settings
from modcrypt.kms.signing.signing_keys import names_service, read_verifying_keys
from modcrypt.lake.lake_reference import LakeReference
from modcrypt.pkmt1.strict_json import load_json
from modcrypt.settings.kinds import COUNT, FLAG, NAMES, TEXT, Kind
from modcrypt.spark.key_options import KEY_OPTIONS

Alternatives: TypeAlias = tuple[tuple[tuple[str, str, Any], ...], ...]
"""Filters in disjunctive normal form: column, operator and a value out of JSON."""

OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in")

SPLIT_BYTES = 128 << 20  # default maximum input of a task in bytes, as in Spark

MAX_RESTRICTIONS = 1 << 20
"""Most bytes of a file with read restrictions; far more than restrictions of all columns take."""

_DECLARED = KEY_OPTIONS.keys() - {"masterKeyIds", "onErased", "onMissingKey"}
"""Options that a lake replaces."""

_OWN: Mapping[str, Kind] = {
    "path": TEXT, "paths": NAMES,  # `paths` of load() with a list
    "lake": TEXT, "dataset": TEXT,
    "columns": NAMES, "filters": TEXT, "readRestrictions": TEXT, "mergeSchema": FLAG,
    "rowCounts": FLAG, "maxSplitBytes": COUNT, "minPartitionNum": COUNT,
    "maxFilesPerTrigger": COUNT, "ignoreMissingFiles": FLAG,
    "partitionBy": NAMES, "compression": TEXT, "rowGroupRows": COUNT, "maxRowsPerFile": COUNT,
}  # fmt: skip
_OF_STREAMS = ("maxFilesPerTrigger", "ignoreMissingFiles")  # known if the caller handles them
_KNOWN = frozenset({*KEY_OPTIONS, *_OWN} - {*_OF_STREAMS})

_PASSWORD_IN_URL = re.compile(r"://[^/@]*:[^/@]*@")
_NO_REFERENCE = re.compile(r"[?&;](?:passphrase|pin|pin-value|token)=(?!(?:env|file):)", re.I)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of a read."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    filters: Alternatives = ()
    restrictions: Mapping[str, Any] | None = field(default=None, repr=False)
    split_bytes: int = SPLIT_BYTES
    fewest_tasks: int | None = None  # None for as many as are usually enough
    merge_schema: bool = False
    row_counts: bool = False
    max_files: int | None = None
    ignore_missing: bool = False
    include: str | None = None  # pattern of the paths of files in folders; None for all

    def includes(self, path: str) -> bool:
        """Return whether a file of a folder belongs to the table."""
        return self.include is None or PurePosixPath(path).match(self.include)


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of a write."""

    folder: str
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    row_group_rows: int | None = None
    max_rows_per_file: int | None = None


def read_options(
    options: Mapping[str, str], also: Collection[str] = ()
) -> tuple[ReadSettings, ReadOptions]:
    """Parse the options of a read, whose names are not case-sensitive.

    `also` names further options, which the caller handles. Raise ValueError if an option is
    unknown, a value is invalid, or a key is given instead of a reference, and OSError if the policy
    can't be read.
    """
    given = _Options(options, also)
    columns = given.value("columns")
    if given.text("columns") is not None and not columns:
        raise ValueError("columns has no names; remove the option to read all columns")
    settings, paths = given.read_settings()
    return settings, ReadOptions(
        paths=paths,
        include=settings.dataset.include if isinstance(settings, LakeReference) else None,
        columns=columns,
        filters=given.filters(),
        restrictions=given.restrictions(),
        split_bytes=given.value("maxSplitBytes") or SPLIT_BYTES,
        fewest_tasks=given.value("minPartitionNum"),
        merge_schema=given.value("mergeSchema") or False,
        row_counts=given.value("rowCounts") or False,
        max_files=given.value("maxFilesPerTrigger"),
        ignore_missing=given.value("ignoreMissingFiles") or False,
    )


def write_options(
    options: Mapping[str, str], also: Collection[str] = ()
) -> tuple[Settings, WriteOptions]:
    """Parse the options of a write; raises as `read_options`."""
    given = _Options(options, also)
    settings = given.settings()
    settings.check_writing()
    if settings.root is not None:
        raise ValueError(
            "root is only for reading; remove it: paths in a new table are relative to its folder"
        )
    if given.text("readRestrictions") is not None:
        raise ValueError("readRestrictions is only for reading; remove it")
    settings.check_distinct(("part-0.parquet", "part-1.parquet"))
    paths = given.paths()
    if len(paths) > 1:
        raise ValueError("path must be one folder to write a table")
    return settings, WriteOptions(
        folder=paths[0],
        partition_by=given.value("partitionBy") or (),
        compression=given.text("compression") or "snappy",
        row_group_rows=given.value("rowGroupRows"),
        max_rows_per_file=given.value("maxRowsPerFile"),
    )


class _Options:
    """The options of the caller, by their names in lower case."""

    def __init__(self, options: Mapping[str, str], also: Collection[str]) -> None:
        values = {name.lower(): value for name, value in options.items()}
        self._is_table = _TABLE in values
        if self._is_table:  # leave out the properties that Spark adds in SQL, such as owner
            names = {name for name in values if f"{_OPTION}{name}" in values}
            values = {name: values[name] for name in values if name in {*names, "path"}}
        self._values = values
        if not self._values:
            raise ValueError(
                "there are no options: Spark does not pass those of a catalog table to a data "
                "source; use SELECT ... FROM t WITH (path = '...', policy = '...'), or "
                "CREATE TEMPORARY VIEW t USING modcrypt OPTIONS (...)"
            )
        known = {*_KNOWN, *also}
        if unknown := sorted(self._values.keys() - {name.lower() for name in known}):
            raise ValueError(
                f"unknown option {', '.join(unknown)}; the options are "
                f"{', '.join(sorted(known - {'paths'}, key=str.lower))}"
            )
        for name, value in self._values.items():
            if _PASSWORD_IN_URL.search(value) or _NO_REFERENCE.search(value):
                raise ValueError(
                    f"{name} contains a password or similar secret, which Spark would log (not "
                    "repeated here); name its place by env:NAME or file:PATH, or set it in the "
                    "environment of the executors"
                )

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def value(self, name: str) -> Any:
        """Return the value of an option, lists as tuples; None for none, or an empty text."""
        if not (text := self.text(name)):
            return None
        kind = KEY_OPTIONS[name].kind if name in KEY_OPTIONS else _OWN[name]
        try:
            value = kind.parse(text)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        return tuple(value) if isinstance(value, list) else value

    def paths(self) -> tuple[str, ...]:
        paths = self.value("paths") or (self.text("path") or "",)
        if not all(paths):
            raise ValueError("no path is given; pass one to load() or save(), or as an option")
        return tuple(_make_absolute(path) for path in paths)

    def filters(self) -> Alternatives:
        if (text := self.text("filters")) is None:
            return ()
        filters = _parse_json("filters", text)
        if _is_list_of(_is_term, filters):
            filters = [filters]
        if not _is_list_of(partial(_is_list_of, _is_term), filters):
            raise ValueError(
                'filters must be lists of a column, an operator and a value, as [["id", ">=", 5]], '
                f"or lists of such lists; operators are {', '.join(OPERATORS)}"
            )
        return tuple(tuple((name, how, value) for name, how, value in terms) for terms in filters)

    def restrictions(self) -> Mapping[str, Any] | None:
        if (text := self.text("readRestrictions")) is None:
            return None
        if not text.lstrip().startswith("{"):
            text = _read_restrictions(text)
        document = _parse_json("readRestrictions", text)
        if not isinstance(document, dict):
            raise ValueError("readRestrictions must be a JSON object")
        return document

    def settings(self) -> Settings:
        values = {setting.name: self.value(name) for name, setting in KEY_OPTIONS.items()}
        given = {name: value for name, value in values.items() if value is not None}
        for name in given.keys() & _CONVERT.keys():
            given[name] = _CONVERT[name](given[name])
        settings = Settings(**given)
        named = settings.has_service or settings.has_keys or settings.identities
        if not (named or settings.recipients):
            raise ValueError(
                "keys come from a key service (kms, or a policy that names one), from references "
                "(footerKey, columnKeys) or from identity; pass one of them"
            )
        return settings

    def read_settings(self) -> tuple[ReadSettings, tuple[str, ...]]:
        """Return the settings for reading, and the paths."""
        if self.text("lake") is not None or self.text("dataset") is not None:
            lake = self._lake()
            is_named = self.text("path") or self.text("paths")
            return lake, self.paths() if is_named else (lake.dataset.location,)
        settings, paths = self.settings(), self.paths()
        return settings.under(paths[0]) if len(paths) == 1 else settings, paths

    def _lake(self) -> LakeReference:
        """Return the dataset of a lake whose declaration decides how files are read."""
        path, name = self.text("lake"), self.text("dataset")
        if not path or not name:
            raise ValueError("lake names a modcrypt.toml, and dataset a dataset in it; pass both")
        if given := sorted(name for name in _DECLARED if name.lower() in self._values):
            names = ", ".join(given)
            raise ValueError(f"the declaration of the lake decides about {names}; remove it")
        local = _require_local("lake", path)
        from modcrypt.lake.lake import Lake  # not to be loaded by executors

        # The options of a table are the word of who made it, not of who reads it.
        return Lake.open(local, is_found=self._is_table).reference(
            name, on_missing_key=self.value("onMissingKey") or "error",
            on_erased=self.value("onErased") or "skip",
            master_key_ids=self.value("masterKeyIds") or (),
        )  # fmt: skip


ReadSettings: TypeAlias = Settings
"""References to keys for reading: for all files, or by the declaration of a lake."""

_TABLE, _OPTION = "provider", "option."  # what Spark adds to the options of a table in SQL


def _is_list_of(test: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(test, value))


def _is_term(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], str):
        return False
    return value[1] in OPERATORS and isinstance(value[2], list) == (value[1] in ("in", "not in"))


def _parse_json(name: str, text: str) -> Any:
    try:
        return load_json(text)
    except (ValueError, RecursionError):  # the message would contain the text
        raise ValueError(f"{name} is not valid JSON, or repeats a member") from None


def _make_reference(reference: str) -> str:
    """Return a reference to a private key, valid in every working directory."""
    check_reference(reference, "private key")
    return absolute_reference(reference)


def _make_absolute(path: str) -> str:
    """Return a path that has the same meaning on executors, which run in other folders."""
    local = local_path(path)
    return path if local is None else os.path.abspath(local)


def _load_policy(path: str) -> Policy:
    return Policy.load(_require_local("policy", path))


def _make_signing_reference(key: str) -> str:
    return key if names_service(key) else _make_reference(key)


def _read_restrictions(path: str) -> str:
    if (local := local_path(path)) is None:
        raise ValueError("readRestrictions must be JSON, or the path of a local file")
    with open(local, "rb") as file:
        data = file.read(MAX_RESTRICTIONS + 1)
    if len(data) > MAX_RESTRICTIONS:
        raise ValueError(f"readRestrictions: the file exceeds {MAX_RESTRICTIONS} bytes")
    return data.decode(errors="replace")


def _require_local(name: str, path: str) -> str:
    if (local := local_path(path)) is None:
        raise ValueError(f"{name} must be the path of a local file; the driver reads it")
    return local


_CONVERT: Mapping[str, Callable[[Any], Any]] = {
    "policy": _load_policy,
    "passphrase": absolute_reference,
    "root": _make_absolute,
    "audit": _make_absolute,
    "recipients": lambda lines: tuple(map(Recipient.parse, lines)),
    "identities": lambda references: tuple(map(_make_reference, references)),
    "identity_passphrase": absolute_reference,
    "signing_key": _make_signing_reference,
    "signing_passphrase": absolute_reference,
    "signed_by": read_verifying_keys,
}
"""How the values of some settings become arguments of `Settings`; the driver reads the files."""
