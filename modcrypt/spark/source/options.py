"""The options of the data source `modcrypt`: what Spark gives as text, checked and named.

    path              file, folder or URL; an absolute one with Spark Connect
    kms, policy       the key service's URI; path of a policy, which is read by the driver
    footerKey         instead: file:PATH or env:NAME, on all executors; columnKeys: the same as
                      {"ssn": "env:SSN_KEY"}; plaintextColumns: names, as `a,b` or ["a", "b,c"]
    aadPrefix         of every file, with `{path}` for its path in the table, or `{name}`
    root              to read: the folder of the dataset, if path is a part of it
    sharedAadPrefix   true: allow several files with the same AAD prefix, to write
    acceptAlgorithms  AES_GCM_V1, AES_GCM_CTR_V1 or both, to read
    onMissingKey      error, null or drop
    requireEncrypted  true, false, or names
    masterKeyIds      master keys that may protect files besides those that the policy or the key
                      service's URI names, as during a rotation
    columns           names to read: Spark asks for all of them otherwise
    filters           rows to read: [["year", ">=", 2026], ["country", "in", ["NO", "AT"]]], or
                      lists of such lists for "or", as in PyArrow; only columns that are read
    maxSplitBytes     most bytes of a task's input
    partitionBy       columns whose values become folders, to write
    compression, rowGroupRows, maxRowsPerFile

Spark logs and shows options, those of SQL among them: so no value is ever repeated here, and what
could be a key is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from modcrypt.io.storage import local_path
from modcrypt.kms.policy import Policy
from modcrypt.parquet.crypto.properties import ALGORITHMS
from modcrypt.spark.settings import Settings

__all__ = [
    "OPERATORS",
    "Alternatives",
    "ReadOptions",
    "WriteOptions",
    "read_options",
    "write_options",
]

Alternatives: TypeAlias = tuple[tuple[tuple[str, str, Any], ...], ...]
"""Filters in disjunctive normal form: column, operator and a value out of JSON."""

OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in")

SPLIT_BYTES = 128 << 20
"""Most bytes of a task's input where the caller says nothing, as in Spark."""

NAMES = frozenset(
    {
        "path",
        "paths",  # what Spark makes of load() with a list
        "kms",
        "policy",
        "footerKey",
        "columnKeys",
        "plaintextColumns",
        "aadPrefix",
        "root",
        "sharedAadPrefix",
        "acceptAlgorithms",
        "columns",
        "onMissingKey",
        "requireEncrypted",
        "masterKeyIds",
        "maxSplitBytes",
        "filters",
        "partitionBy",
        "compression",
        "rowGroupRows",
        "maxRowsPerFile",
    }
)

_PASSWORD_IN_URL = re.compile(r"://[^/@]*:[^/@]*@")
_NO_REFERENCE = re.compile(r"[?&;](?:passphrase|pin|pin-value|token)=(?!(?:env|file):)", re.I)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read, and how.

    Args:
        paths: files, folders or URLs.
        columns: names of columns or groups, in the order wanted; None for all.
        filters: rows to keep: alternatives, each of terms that all hold.
        split_bytes: a larger file is read by several tasks, and small ones by one together.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    filters: Alternatives = ()
    split_bytes: int = SPLIT_BYTES


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Where to write, and how.

    Args:
        folder: path or URL.
        partition_by: columns whose values become folders.
        compression: as of PyArrow.
        row_group_rows, max_rows_per_file: as `row_group_size` and `max_rows_per_file` of
            `write_dataset`; None for what they are there.
    """

    folder: str
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    row_group_rows: int | None = None
    max_rows_per_file: int | None = None


def read_options(
    options: Mapping[str, str], also: Collection[str] = ()
) -> tuple[Settings, ReadOptions]:
    """Take apart the options of a read.

    Args:
        options: as Spark gives them: names of whatever case.
        also: names of further ones, which the caller sees to.

    Raises:
        ValueError: options that there are not, a value that is none, a key instead of a reference.
        OSError: the policy can't be read.
    """
    given = _Given(options, also)
    columns = given.names("columns")
    if columns is not None and not columns:
        raise ValueError("columns: no names; leave it out to read all")
    settings, paths = given.settings(), given.paths()
    return settings.under(paths[0]) if len(paths) == 1 else settings, ReadOptions(
        paths=paths,
        columns=columns,
        filters=given.filters(),
        split_bytes=given.number("maxSplitBytes") or SPLIT_BYTES,
    )


def write_options(
    options: Mapping[str, str], also: Collection[str] = ()
) -> tuple[Settings, WriteOptions]:
    """Take apart the options of a write; raises as `read_options`."""
    given = _Given(options, also)
    settings = given.settings()
    settings.check_writing()
    if settings.root is not None:
        raise ValueError("root is for reading: paths of a new table are relative to its own folder")
    settings.check_distinct(("part-0.parquet", "part-1.parquet"))
    paths = given.paths()
    if len(paths) > 1:
        raise ValueError("path: a table is written to one folder")
    return settings, WriteOptions(
        folder=paths[0],
        partition_by=given.names("partitionBy") or (),
        compression=given.text("compression") or "snappy",
        row_group_rows=given.number("rowGroupRows"),
        max_rows_per_file=given.number("maxRowsPerFile"),
    )


class _Given:
    """The options given, by their names in lower case."""

    def __init__(self, options: Mapping[str, str], also: Collection[str]) -> None:
        self._values = _of_table({name.lower(): value for name, value in options.items()})
        if not self._values:
            raise ValueError(
                "there are no options: Spark gives a data source none of those of a table in its "
                "catalog; say SELECT ... FROM t WITH (path = '...', policy = '...'), or use "
                "CREATE TEMPORARY VIEW t USING modcrypt OPTIONS (...)"
            )
        known = {name.lower() for name in {*NAMES, *also}}
        if unknown := sorted(self._values.keys() - known):
            raise ValueError(
                f"there is no option {', '.join(unknown)}; there are "
                f"{', '.join(sorted({*NAMES, *also} - {'paths'}, key=str.lower))}"
            )
        for name, value in self._values.items():
            if _PASSWORD_IN_URL.search(value) or _NO_REFERENCE.search(value):
                raise ValueError(
                    f"{name} holds a password or the like, which Spark would log (it is not "
                    "repeated here): say where it is, by env:NAME or file:PATH, or leave it to "
                    "the environment of the executors"
                )

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def paths(self) -> tuple[str, ...]:
        several = self.text("paths")
        found = _strings("paths", several) if several is not None else (self.text("path") or "",)
        if not all(found) or not found:
            raise ValueError("there is no path: give one to load() or save(), or as an option")
        return tuple(_plain_path(path) for path in found)

    def names(self, name: str) -> tuple[str, ...] | None:
        text = self.text(name)
        if text is None:
            return None
        if text.lstrip().startswith("["):
            return _strings(name, text)
        return tuple(part for one in text.split(",") if (part := one.strip()))

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[1-9][0-9]{0,17}", text.strip(), re.ASCII):
            raise ValueError(f"{name} is a whole number, at least 1")
        return int(text)

    def flag(self, name: str) -> bool:
        text = (self.text(name) or "false").strip().lower()
        if text not in ("true", "false"):
            raise ValueError(f"{name} is true or false")
        return text == "true"

    def filters(self) -> Alternatives:
        text = self.text("filters")
        if text is None:
            return ()
        found = _json("filters", text)
        if isinstance(found, list) and found and all(_is_term(term) for term in found):
            found = [found]
        if not isinstance(found, list) or not found or not all(_are_terms(one) for one in found):
            raise ValueError(
                'filters are lists of a column, an operator and a value, as [["id", ">=", 5]], or '
                f"lists of such lists; operators are {', '.join(OPERATORS)}"
            )
        return tuple(tuple((name, how, value) for name, how, value in terms) for terms in found)

    def settings(self) -> Settings:
        policy, root = self.text("policy"), self.text("root")
        return Settings(
            kms=self.text("kms"),
            policy=None if policy is None else Policy.load(_path_of_policy(policy)),
            footer_key=self.text("footerKey"),
            column_keys=self._column_keys(),
            plaintext_columns=self.names("plaintextColumns") or (),
            aad_prefix=self.text("aadPrefix"),
            root=None if root is None else _plain_path(root),
            shared_aad_prefix=self.flag("sharedAadPrefix"),
            algorithms=self._algorithms(),
            on_missing_key=self._on_missing_key(),
            require_encrypted=self._require_encrypted(),
            master_key_ids=self.names("masterKeyIds") or (),
        )

    def _column_keys(self) -> Mapping[str, str]:
        found = _json("columnKeys", self.text("columnKeys") or "{}")
        if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
            raise ValueError(
                'columnKeys is a JSON object of names and references, as {"ssn": "env:SSN_KEY"}'
            )
        return found

    def _algorithms(self) -> tuple[str, ...]:
        found = self.names("acceptAlgorithms") or ALGORITHMS[:1]
        if not set(found) <= set(ALGORITHMS):
            raise ValueError(f"acceptAlgorithms are one or more of {', '.join(ALGORITHMS)}")
        return tuple(found)

    def _on_missing_key(self) -> Literal["error", "drop", "null"]:
        found = (self.text("onMissingKey") or "error").lower()
        if found not in ("error", "drop", "null"):
            raise ValueError("onMissingKey is error, null or drop")
        return cast(Literal["error", "drop", "null"], found)

    def _require_encrypted(self) -> bool | tuple[str, ...]:
        text = (self.text("requireEncrypted") or "true").strip()
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        names = self.names("requireEncrypted")
        if not names:
            raise ValueError("requireEncrypted is true, false, or names of columns")
        return names


_TABLE, _OPTION = "provider", "option."  # what Spark adds to the options of a table in SQL


def _of_table(values: dict[str, str]) -> dict[str, str]:
    """Leave out what Spark tells of a table in SQL besides its options: owner, comment and such."""
    if _TABLE not in values:
        return values
    said = {name for name in values if f"{_OPTION}{name}" in values}
    return {name: values[name] for name in values if name in {*said, "path"}}


def _are_terms(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_term(term) for term in value)


def _is_term(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], str):
        return False
    return value[1] in OPERATORS and isinstance(value[2], list) == (value[1] in ("in", "not in"))


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the message would quote it
        raise ValueError(f"{name} is no JSON") from None


def _strings(name: str, text: str) -> tuple[str, ...]:
    found = _json(name, text)
    if not isinstance(found, Sequence) or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{name} is a JSON list of strings")
    return tuple(found)


def _plain_path(path: str) -> str:
    """Spell a path so that it means the same on executors, which run in other folders."""
    local = local_path(path)
    return path if local is None else os.path.abspath(local)


def _path_of_policy(path: str) -> str:
    local = local_path(path)
    if local is None:
        raise ValueError("policy is the path of a local file: it is read where Spark is driven")
    return local
