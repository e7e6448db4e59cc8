"""Encode table metadata as Iceberg's Java does, which hashes this form and not the file.

A Hive metastore keeps the SHA-256 of a table's metadata. Java computes it over what its writer
would make of the parsed file: known members in a fixed order, without those that are empty.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from modcrypt.iceberg.format.table_metadata import TableMetadata


class _Form(NamedTuple):
    """The members of a kind of object in Java's order, and the forms of members that are objects.

    A list has the form of its elements.
    """

    members: tuple[str, ...]
    forms: Mapping[str, _Form] = {}


_TYPE = _Form(
    ("type", "schema-id", "identifier-field-ids", "fields",
     "element-id", "element", "element-required",
     "key-id", "key", "value-id", "value", "value-required"),
    forms := {},
)  # fmt: skip
_FIELD = _Form(
    ("id", "name", "required", "type", "doc", "initial-default", "write-default"), {"type": _TYPE}
)
forms.update({"fields": _FIELD, "element": _TYPE, "key": _TYPE, "value": _TYPE})

_SPEC = _Form(
    ("spec-id", "fields"), {"fields": _Form(("name", "transform", "source-id", "field-id"))}
)
_SORT_ORDER = _Form(
    ("order-id", "fields"), {"fields": _Form(("transform", "source-id", "direction", "null-order"))}
)
_KEY = _Form(("key-id", "encrypted-key-metadata", "encrypted-by-id", "properties"))
_SNAPSHOT = _Form((
    "sequence-number", "snapshot-id", "parent-snapshot-id", "timestamp-ms", "summary",
    "manifest-list", "schema-id", "first-row-id", "added-rows", "key-id",
))  # fmt: skip
_STATISTICS = _Form(
    ("snapshot-id", "statistics-path", "file-size-in-bytes", "file-footer-size-in-bytes",
     "blob-metadata"),
    {"blob-metadata": _Form(("type", "snapshot-id", "sequence-number", "fields", "properties"))},
)  # fmt: skip
_REF = _Form(
    ("snapshot-id", "type", "min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
)
_METADATA = _Form(
    ("format-version", "table-uuid", "location", "last-sequence-number", "last-updated-ms",
     "last-column-id", "current-schema-id", "schemas", "default-spec-id", "partition-specs",
     "last-partition-id", "default-sort-order-id", "sort-orders", "properties",
     "current-snapshot-id", "next-row-id", "encryption-keys", "refs", "snapshots", "statistics",
     "partition-statistics", "snapshot-log", "metadata-log"),
    {"schemas": _TYPE, "partition-specs": _SPEC, "sort-orders": _SORT_ORDER,
     "encryption-keys": _KEY, "snapshots": _SNAPSHOT, "statistics": _STATISTICS,
     "partition-statistics": _STATISTICS, "snapshot-log": _Form(("timestamp-ms", "snapshot-id")),
     "metadata-log": _Form(("timestamp-ms", "metadata-file"))},
)  # fmt: skip

_ALWAYS: Mapping[str, Any] = {
    "properties": {}, "current-snapshot-id": None, "refs": {}, "snapshots": [], "statistics": [],
    "partition-statistics": [], "snapshot-log": [], "metadata-log": [],
}  # fmt: skip
"""Members that Java writes even if they are empty."""

_OMITTED_IF_EMPTY = {"identifier-field-ids", "encryption-keys", "properties"}


def hash_as_java(metadata: TableMetadata) -> str:
    """Return the hash of a table's metadata that Java compares with the metastore's."""
    return base64.b64encode(hashlib.sha256(encode_as_java(metadata)).digest()).decode()


def encode_as_java(metadata: TableMetadata) -> bytes:
    """Return the bytes that Java would write for metadata of format version 3."""
    document = metadata.document
    current = document.get("current-snapshot-id")
    ordered = {
        **_ordered({**_ALWAYS, **document, "location": metadata.location}, _METADATA),
        "properties": dict(metadata.properties),
        "current-snapshot-id": None if current == -1 else current,
        "refs": {name: _ordered(ref, _REF) for name, ref in metadata.refs.items()},
    }
    in_place = {name: ordered[name] for name in _METADATA.members if name in ordered}
    text = json.dumps(in_place, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPE.sub(lambda escape: escape[0][:2] + escape[0][2:].upper(), text).encode()


_ESCAPE = re.compile(r"\\\\|\\u00[01][0-9a-f]")  # an escaped backslash is no part of the next one


def _ordered(value: Any, form: _Form) -> Any:
    """Return an object, or list of objects, with the members that Java knows in Java's order."""
    if isinstance(value, list):
        return [_ordered(element, form) for element in value]
    if not isinstance(value, dict):  # the name of a primitive type
        return value
    ordered = {}
    for name in form.members:
        member = value.get(name)
        if member is None or (name in _OMITTED_IF_EMPTY and not member):
            continue
        if name == "summary":
            member = {"operation": member.get("operation"), **member}
        inner = form.forms.get(name)
        ordered[name] = member if inner is None else _ordered(member, inner)
    return ordered
