"""Options of the data source `modcrypt`, parsed from Spark's text and checked.

    path              file, folder or URL; an absolute path with Spark Connect
    kms, policy       URI of the key service; path of a policy, which the driver reads
    footerKey         instead of kms: file:PATH or env:NAME, on all executors; columnKeys: for
                      example {"ssn": "env:SSN_KEY"}; plaintextColumns: `a,b` or ["a", "b,c"]
    identity          file:PATH of an identity on all executors, or several: opens files that are
                      encrypted to its recipient, beside a key service or without one
    recipients        lines of recipients, to whom new files are encrypted; writing only
    signedBy          lines of verifying keys, or paths of .pub files, which the driver reads: one
                      of these writers must have signed each file that is read, and its seal
    sealAtLeast       number that the seal of the table must have at least; a write with signingKey
                      signs the next one, if there is one already
    signingKey        file:PATH of the key on all executors that signs new files, or the URI of a
                      key in a key service; signingPassphrase: file:PATH or env:NAME of the
                      passphrase of the file
    aadPrefix         AAD prefix of every file, with `{path}` for its path in the table, or `{name}`
    lake, dataset     path of a modcrypt.toml, which the driver reads, and name of a dataset in it;
                      they replace all other options about keys and a missing path; reading only
    root              folder of the dataset, if path is a part of it; reading only
    sharedAadPrefix   true: allow several files with the same AAD prefix; writing only
    acceptAlgorithms  AES_GCM_V1, AES_GCM_CTR_V1 or both; reading only
    onMissingKey      error, null or drop
    requireEncrypted  true, false, or column names
    masterKeyIds      master keys that may protect files besides those that the policy or the key
                      service's URI names, for example during a rotation
    columns           names of columns to read; by default all
    filters           rows to read: [["year", ">=", 2026], ["country", "in", ["NO", "AT"]]], or
                      lists of such lists for "or", as in PyArrow; only columns that are read
    readRestrictions  Iceberg's read restrictions as JSON, as a REST catalog sends them, or the path
                      of a file with it, which the driver reads: rows to skip, and masks of columns,
                      which apply before filters; reading only
    maxSplitBytes     maximum input of a task, in bytes
    mergeSchema       true: the table has the columns of all its files, not of one
    rowCounts         true: read only footers: a row for each file, with its path and number of rows
    partitionBy       columns whose values become folders; writing only
    compression, rowGroupRows, maxRowsPerFile

Spark logs and shows options, also those of SQL. So messages never repeat a value, and values that
may contain a key are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Literal, TypeAlias, cast

from modcrypt.io.addresses import local_path
from modcrypt.kms.key_references import absolute_reference
from modcrypt.kms.policy import Policy
from modcrypt.kms.recipients.recipient import Recipient
from modcrypt.kms.settings import Settings
from modcrypt.kms.signing.signing_keys import names_service, read_verifying_keys
from modcrypt.parquet.crypto.properties import ALGORITHMS
from modcrypt.pkmt1.strict_json import load_json
from modcrypt.spark.lake_reference import LakeReference

Alternatives: TypeAlias = tuple[tuple[tuple[str, str, Any], ...], ...]
"""Filters in disjunctive normal form: column, operator and a value out of JSON."""

OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in")

SPLIT_BYTES = 128 << 20
"""Default maximum input of a task in bytes, as in Spark."""

MAX_RESTRICTIONS = 1 << 20
"""Most bytes of a file with read restrictions; far more than restrictions of all columns take."""

KEY_NAMES = ("kms", "policy", "footerKey", "columnKeys", "plaintextColumns", "aadPrefix", "root")
"""Options that name keys and what files are bound to."""

_SIGNING = ("signedBy", "signingKey", "signingPassphrase")
_DECLARED = (*KEY_NAMES, *_SIGNING, "acceptAlgorithms", "requireEncrypted")
"""Options about keys that a lake replaces."""

_READING = ("columns", "filters", "readRestrictions", "mergeSchema", "rowCounts", "onMissingKey")
_WRITING = ("recipients", "partitionBy", "compression", "rowGroupRows", "maxRowsPerFile")
_OTHERS = ("lake", "dataset", "identity", "masterKeyIds", "sealAtLeast", "sharedAadPrefix")
_OF_SPARK = ("path", "paths", "maxSplitBytes", "minPartitionNum")  # `paths` of load() with a list
NAMES = frozenset({*_DECLARED, *_READING, *_WRITING, *_OTHERS, *_OF_SPARK})

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
    columns = given.names("columns")
    if columns is not None and not columns:
        raise ValueError("columns has no names; remove the option to read all columns")
    settings, paths = given.read_settings()
    return settings, ReadOptions(
        paths=paths,
        include=settings.dataset.include if isinstance(settings, LakeReference) else None,
        columns=columns,
        filters=given.filters(),
        restrictions=given.restrictions(),
        split_bytes=given.number("maxSplitBytes") or SPLIT_BYTES,
        fewest_tasks=given.number("minPartitionNum"),
        merge_schema=given.flag("mergeSchema"),
        row_counts=given.flag("rowCounts"),
        max_files=given.number("maxFilesPerTrigger"),
        ignore_missing=given.flag("ignoreMissingFiles"),
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
        partition_by=given.names("partitionBy") or (),
        compression=given.text("compression") or "snappy",
        row_group_rows=given.number("rowGroupRows"),
        max_rows_per_file=given.number("maxRowsPerFile"),
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
        known = {name.lower() for name in {*NAMES, *also}}
        if unknown := sorted(self._values.keys() - known):
            raise ValueError(
                f"unknown option {', '.join(unknown)}; the options are "
                f"{', '.join(sorted({*NAMES, *also} - {'paths'}, key=str.lower))}"
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

    def paths(self) -> tuple[str, ...]:
        several = self.text("paths")
        paths = (
            _parse_strings("paths", several) if several is not None else (self.text("path") or "",)
        )
        if not all(paths) or not paths:
            raise ValueError("no path is given; pass one to load() or save(), or as an option")
        return tuple(_make_absolute(path) for path in paths)

    def names(self, name: str) -> tuple[str, ...] | None:
        text = self.text(name)
        if text is None:
            return None
        if text.lstrip().startswith("["):
            return _parse_strings(name, text)
        return tuple(name for part in text.split(",") if (name := part.strip()))

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[1-9][0-9]{0,17}", text.strip(), re.ASCII):
            raise ValueError(f"{name} must be a whole number, at least 1")
        return int(text)

    def flag(self, name: str) -> bool:
        text = (self.text(name) or "false").strip().lower()
        if text not in ("true", "false"):
            raise ValueError(f"{name} must be true or false")
        return text == "true"

    def filters(self) -> Alternatives:
        text = self.text("filters")
        if text is None:
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
        text = self.text("readRestrictions")
        if text is None:
            return None
        if not text.lstrip().startswith("{"):
            text = _read_restrictions(text)
        document = _parse_json("readRestrictions", text)
        if not isinstance(document, dict):
            raise ValueError("readRestrictions must be a JSON object")
        return document

    def settings(self) -> Settings:
        policy, root = self.text("policy"), self.text("root")
        signing, secret = self.text("signingKey"), self.text("signingPassphrase")
        if signing is not None and not names_service(signing):
            signing = _make_reference(signing)
        settings = Settings(
            kms=self.text("kms"),
            policy=None if policy is None else Policy.load(_require_local("policy", policy)),
            footer_key=self.text("footerKey"),
            column_keys=self._column_keys(),
            plaintext_columns=self.names("plaintextColumns") or (),
            identities=tuple(map(_make_reference, self.names("identity") or ())),
            recipients=tuple(map(Recipient.parse, self.names("recipients") or ())),
            signed_by=read_verifying_keys(self.names("signedBy") or ()),
            seal_at_least=self.number("sealAtLeast"),
            signing_key=signing,
            signing_passphrase=None if secret is None else absolute_reference(secret),
            aad_prefix=self.text("aadPrefix"),
            root=None if root is None else _make_absolute(root),
            shared_aad_prefix=self.flag("sharedAadPrefix"),
            accept_algorithms=self._algorithms(),
            on_missing_key=self._on_missing_key(),
            require_encrypted=self._require_encrypted(),
            master_key_ids=self.names("masterKeyIds") or (),
        )
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
        return LakeReference.of(
            Lake.open(local, is_found=self._is_table), name, on_missing_key=self._on_missing_key(),
            master_key_ids=self.names("masterKeyIds") or (),
        )  # fmt: skip

    def _column_keys(self) -> Mapping[str, str]:
        keys = _parse_json("columnKeys", self.text("columnKeys") or "{}")
        if not isinstance(keys, dict) or not all(isinstance(ref, str) for ref in keys.values()):
            raise ValueError(
                "columnKeys must be a JSON object of names and references, as "
                '{"ssn": "env:SSN_KEY"}'
            )
        return keys

    def _algorithms(self) -> tuple[str, ...] | None:
        algorithms = self.names("acceptAlgorithms") or None
        if algorithms is not None and not set(algorithms) <= set(ALGORITHMS):
            raise ValueError(f"acceptAlgorithms must be one or more of {', '.join(ALGORITHMS)}")
        return algorithms

    def _on_missing_key(self) -> Literal["error", "drop", "null"]:
        choice = (self.text("onMissingKey") or "error").lower()
        if choice not in ("error", "drop", "null"):
            raise ValueError("onMissingKey must be error, null or drop")
        return cast(Literal["error", "drop", "null"], choice)

    def _require_encrypted(self) -> bool | tuple[str, ...]:
        text = (self.text("requireEncrypted") or "true").strip()
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        names = self.names("requireEncrypted")
        if not names:
            raise ValueError("requireEncrypted must be true, false, or names of columns")
        return names


ReadSettings: TypeAlias = Settings | LakeReference
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


def _parse_strings(name: str, text: str) -> tuple[str, ...]:
    strings = _parse_json(name, text)
    if not isinstance(strings, Sequence) or not all(isinstance(item, str) for item in strings):
        raise ValueError(f"{name} must be a JSON list of strings")
    return tuple(strings)


def _make_reference(reference: str) -> str:
    """Return a reference to a private key, valid in every working directory."""
    if not reference.startswith("file:"):
        raise ValueError(
            "identity and signingKey must be file:PATH, never a key itself (not repeated here)"
        )
    return absolute_reference(reference)


def _make_absolute(path: str) -> str:
    """Return a path that has the same meaning on executors, which run in other folders."""
    local = local_path(path)
    return path if local is None else os.path.abspath(local)


def _read_restrictions(path: str) -> str:
    local = local_path(path)
    if local is None:
        raise ValueError("readRestrictions must be JSON, or the path of a local file")
    with open(local, "rb") as file:
        data = file.read(MAX_RESTRICTIONS + 1)
    if len(data) > MAX_RESTRICTIONS:
        raise ValueError(f"readRestrictions: the file exceeds {MAX_RESTRICTIONS} bytes")
    return data.decode(errors="replace")


def _require_local(name: str, path: str) -> str:
    local = local_path(path)
    if local is None:
        raise ValueError(f"{name} must be the path of a local file; the driver reads it")
    return local
