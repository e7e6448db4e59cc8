"""A table's metadata.json: the document as it is, and what of it the keys of a table need.

The document is kept whole, with members that nothing here knows, so that what is written back
differs only where it was meant to. Nothing signs it (Iceberg spec, "Table Metadata"): whoever can
write it can leave out key ids or name an older snapshot, so readers bring their own expectation.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from modcrypt.errors import FormatError, KeyMaterialError, LimitError, UnsupportedFormatError
from modcrypt.pkmt1.strict_json import no_constant, once

__all__ = [
    "KEY_ID",
    "KEY_LENGTH",
    "SCOPE",
    "STATISTICS",
    "EncryptedKey",
    "Snapshot",
    "TableMetadata",
]

MAX_METADATA = 512 << 20
"""Bytes of the longest metadata.json that is read; 10,000 snapshots with their keys take 10 MB."""

MAX_KEY_ENTRY = 64 << 10
"""Bytes of the longest `encrypted-key-metadata`."""

KEY_ID = "encryption.key-id"
"""Table property: the id of the master key (MEK)."""

KEY_LENGTH = "encryption.data-key-length"
"""Table property: bytes of data keys and KEKs; 16 by default."""

SCOPE = "modcrypt.scope"
"""Property of a KEK that is not for the whole table: which files it is for."""

STATISTICS = ("statistics", "partition-statistics")
"""Members in which files of statistics are named."""

FIRST_PARTITION_ID = 1000
"""Id of the first field of a partition spec of format version 1, which has none (spec)."""

_LENGTHS = (16, 24, 32)

_LONGS = range(-(2**63), 2**63)

_NUMBERS = (
    "last-updated-ms", "current-snapshot-id", "next-row-id", "last-column-id", "current-schema-id",
    "default-spec-id", "last-partition-id", "default-sort-order-id",
)  # fmt: skip
_LISTED: Mapping[str, tuple[str, ...]] = {
    "schemas": (), "partition-specs": (), "sort-orders": (),
    "snapshot-log": ("snapshot-id", "timestamp-ms"), "metadata-log": ("timestamp-ms",),
    "statistics": ("snapshot-id",), "partition-statistics": ("snapshot-id",),
}  # fmt: skip
"""Lists of objects, and the whole numbers that each has; what schemas have, pyiceberg judges."""

_NUMBER = re.compile(r"-?[0-9]{1,18}")

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class EncryptedKey:
    """One of the table's `encryption-keys`: a wrapped KEK, or a manifest list's key metadata.

    Attributes:
        id: its `key-id`, by which a snapshot or another key names it.
        encrypted: the wrapped KEK, or the sealed key metadata.
        encrypted_by: id of the KEK or, of a KEK, of the master key that it is under.
        properties: of a KEK its KEY_TIMESTAMP; and what else the writer said.
    """

    id: str
    encrypted: bytes = field(repr=False)
    encrypted_by: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Give it as metadata.json has it."""
        found: dict[str, Any] = {
            "key-id": self.id,
            "encrypted-key-metadata": base64.b64encode(self.encrypted).decode(),
            "encrypted-by-id": self.encrypted_by,
        }
        return {**found, "properties": dict(self.properties)} if self.properties else found


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of the table.

    Attributes:
        id, parent: of the snapshot, and of the one before it.
        sequence_number, timestamp_ms: when it was made: in the order of commits, and by the clock.
        manifest_list: location of its manifest list.
        key_id: of the entry in `encryption-keys` that opens that; None if it says none.
        schema_id: of the schema that was current.
        document: all of it, as metadata.json has it.
    """

    id: int
    parent: int | None
    sequence_number: int
    timestamp_ms: int
    manifest_list: str
    key_id: str | None
    schema_id: int | None
    document: Mapping[str, Any] = field(repr=False)

    @property
    def operation(self) -> str | None:
        """What made it: `append`, `delete`, `overwrite` or `replace`."""
        summary = self.document.get("summary")
        return summary.get("operation") if isinstance(summary, dict) else None


class TableMetadata:
    """What a metadata.json says; never changed: `edited` gives another one.

    Args:
        data: the file's bytes.
        name: of the file, for messages.

    Attributes:
        document: all of it.
        last_sequence_number: of the newest snapshot; 0 without one, and in format version 1.
        refs: branches and tags by name, as the document has them.
        compared: A cache of `manifest_headers.redefined`.

    Raises:
        FormatError: it is no metadata.json, or what is needed of it is malformed.
        UnsupportedFormatError: a format version that is not known.
        LimitError: it, or a key in it, is larger than any that is read.
    """

    def __init__(self, data: bytes, name: str = "metadata.json") -> None:
        if len(data) > MAX_METADATA:
            raise LimitError(f"{name}: more than {MAX_METADATA} bytes of table metadata")
        self.name = name
        self.document: dict[str, Any] = _parsed(data, name)
        version = self._whole(self.document, "format-version")
        if version not in (1, 2, 3):
            raise UnsupportedFormatError(f"{name}: format version {version} is not known")
        self.format_version = version
        self.location = self._text(self.document, "location").rstrip("/")
        self.uuid = self._text(self.document, "table-uuid")
        self.last_sequence_number = self._whole(self.document, "last-sequence-number", 0)
        self.properties: Mapping[str, str] = self._texts(self.document.get("properties") or {})
        self.snapshots = tuple(self._snapshot(one) for one in self._list("snapshots"))
        self.keys = self._keys()
        refs = self.document.get("refs")
        named = refs.items() if isinstance(refs, dict) else ()
        self.refs = {name: one for name, one in named if isinstance(one, dict)}
        self.compared: dict[tuple[str | None, ...], tuple[str, ...]] = {}

    def __repr__(self) -> str:
        return f"TableMetadata({self.name!r}, {self.uuid}, {len(self.snapshots)} snapshots)"

    # --- what it says ---------------------------------------------------------------------------

    @property
    def master_key_id(self) -> str | None:
        """Id of the master key that the table is under; None of a table in plaintext."""
        return self.properties.get(KEY_ID)

    @property
    def key_length(self) -> int:
        """Bytes of data keys and KEKs.

        Raises:
            FormatError: none that AES has.
        """
        length = self.number(KEY_LENGTH, 16)
        if length not in _LENGTHS:
            raise FormatError(f"{self.name}: {KEY_LENGTH} is none of 16, 24 and 32")
        return length

    def number(self, name: str, otherwise: int) -> int:
        """Give a table property that is a whole number.

        Raises:
            FormatError: it is none.
        """
        text = self.properties.get(name, str(otherwise))
        if not _NUMBER.fullmatch(text):
            self._fail(f"the property {name} is no whole number")
        return int(text)

    @property
    def is_encrypted(self) -> bool:
        """Whether anything in it tells of keys."""
        keyed = any(one.key_id is not None for one in self.snapshots)
        return self.master_key_id is not None or bool(self.keys) or keyed

    @property
    def lost_its_history(self) -> bool:
        """True if an encrypted table had snapshots and has none: expiry keeps the current one."""
        return bool(self.master_key_id and self.last_sequence_number and not self.snapshots)

    @property
    def current(self) -> Snapshot | None:
        """The current snapshot; None of a table without one.

        Raises:
            FormatError: there is no such snapshot.
        """
        current = self.document.get("current-snapshot-id")
        return None if current in (None, -1) else self.snapshot(current)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Give a snapshot by its id.

        Raises:
            FormatError: there is none.
        """
        for one in self.snapshots:
            if one.id == snapshot_id:
                return one
        raise FormatError(f"{self.name}: there is no snapshot {snapshot_id}")

    def schemas(self) -> list[dict[str, Any]]:
        """Return the schemas, as the document has them, each with its id.

        Raises:
            FormatError: they are no objects.
        """
        found = self._objects("schemas")
        if not found and isinstance(self.document.get("schema"), dict):  # format version 1
            found = [self.document["schema"]]
        return [{"schema-id": 0, **one} for one in found]

    def specs(self) -> list[dict[str, Any]]:
        """Return the partition specs, as the document has them; raises as `schemas`."""
        found = self._objects("partition-specs")
        if not found and "partition-spec" in self.document:  # format version 1
            fields = enumerate(self._objects("partition-spec"))
            numbered = [{"field-id": FIRST_PARTITION_ID + number, **one} for number, one in fields]
            return [{"spec-id": 0, "fields": numbered}]
        return found

    def kek_ids(self) -> list[str]:
        """Give the ids of the keys that are KEKs: those that other keys are under, or say when."""
        used = {one.encrypted_by for one in self.keys.values()}
        return [
            id_
            for id_, one in self.keys.items()
            if id_ in used or "KEY_TIMESTAMP" in one.properties
        ]

    def named(self, member: str, name: str) -> Iterator[str]:
        """Give the texts of this name in a list of the document, which may hold anything."""
        found = self.document.get(member)
        for one in found if isinstance(found, list) else ():
            text = one.get(name) if isinstance(one, dict) else None
            if isinstance(text, str):
                yield text

    def statistics(self) -> Iterator[str]:
        """Give the locations of statistics files."""
        for member in STATISTICS:
            yield from self.named(member, "statistics-path")

    def check_members(self) -> None:
        """Check the members that reading does without: by these a table is changed.

        Raises:
            FormatError: one of them is none.
        """
        for name in _NUMBERS:
            required = name == "current-schema-id" and self.format_version > 1
            self._whole(self.document, name, None if required else 0)
        for member, names in _LISTED.items():
            for one in self._objects(member):
                for name in names:
                    self._whole(one, name)
        refs = self.document.get("refs") or {}
        if not isinstance(refs, dict) or not all(isinstance(one, dict) for one in refs.values()):
            self._fail("refs are no objects by name")
        for one in refs.values():
            self._whole(one, "snapshot-id")
        newest = max((one.sequence_number for one in self.snapshots), default=0)
        if newest > self.last_sequence_number:  # or a commit would use a number again
            self._fail("a snapshot's sequence number is above last-sequence-number")

    # --- another one ----------------------------------------------------------------------------

    def edited(self, **members: Any) -> TableMetadata:
        """Give the metadata with members in place of its own, underscores for hyphens."""
        document = {**self.document, **{name.replace("_", "-"): v for name, v in members.items()}}
        return TableMetadata(_spelt(document), self.name)

    def with_keys(self, keys: Iterable[EncryptedKey], **members: Any) -> TableMetadata:
        """Give the metadata with these `encryption-keys`, and other members as `edited`.

        KEKs that are not for the whole table come last: Iceberg's Java, which knows no scopes,
        seals what it appends under the first KEK that it finds.
        """
        ordered = sorted(keys, key=lambda one: SCOPE in one.properties)
        return self.edited(encryption_keys=[one.document() for one in ordered], **members)

    def encode(self) -> bytes:
        """Give the bytes of the file."""
        return _spelt(self.document)

    # --- strict reading -------------------------------------------------------------------------

    def _keys(self) -> dict[str, EncryptedKey]:
        keys = [self._key(one) for one in self._list("encryption-keys")]
        found = {one.id: one for one in keys}
        if len(found) < len(keys):
            self._fail("two of encryption-keys have one key-id")
        return found

    def _key(self, document: Any) -> EncryptedKey:
        encoded = self._text(document, "encrypted-key-metadata")
        if len(encoded) > MAX_KEY_ENTRY * 4 // 3 + 4:
            raise LimitError(f"{self.name}: encrypted-key-metadata of more than {MAX_KEY_ENTRY}")
        encrypted = None
        with contextlib.suppress(binascii.Error, ValueError):
            encrypted = base64.b64decode(encoded, validate=True)
        if not encrypted:
            raise KeyMaterialError(f"{self.name}: encrypted-key-metadata is no base64")
        return EncryptedKey(
            self._text(document, "key-id"),
            encrypted,
            self._text(document, "encrypted-by-id"),
            self._texts(document.get("properties") or {}),
        )

    def _snapshot(self, document: Any) -> Snapshot:
        if not isinstance(document, dict) or not isinstance(document.get("manifest-list"), str):
            if isinstance(document, dict) and "manifests" in document:
                raise UnsupportedFormatError(
                    f"{self.name}: a snapshot without a manifest list (format version 1)"
                )
            self._fail("a snapshot names no manifest-list")
        key_id, parent = document.get("key-id"), document.get("parent-snapshot-id")
        schema = document.get("schema-id")
        if not isinstance(document.get("summary") or {}, dict):
            self._fail("the summary of a snapshot is no object")
        if not (key_id is None or (isinstance(key_id, str) and key_id)):
            self._fail("the key-id of a snapshot is no text")
        return Snapshot(
            self._whole(document, "snapshot-id"),
            parent if type(parent) is int else None,
            self._whole(document, "sequence-number", 0),
            self._whole(document, "timestamp-ms"),
            document["manifest-list"],
            key_id,
            schema if type(schema) is int else None,
            document,
        )

    def _objects(self, name: str) -> list[dict[str, Any]]:
        found = self._list(name)
        if not all(isinstance(one, dict) for one in found):
            self._fail(f"{name} is no list of objects")
        return found

    def _list(self, name: str) -> list[Any]:
        found = self.document.get(name)
        if not (found is None or isinstance(found, list)):
            self._fail(f"{name} is no list")
        return found or []

    def _text(self, document: Any, name: str) -> str:
        found = document.get(name) if isinstance(document, dict) else None
        if not isinstance(found, str) or not found:
            self._fail(f"there is no {name}, or it is no text")
        return found

    def _whole(self, document: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
        """Give a whole number of 64 bits, which all are; or, where there may be none, another."""
        found = document.get(name)
        if found is None:
            found = otherwise
        if type(found) is not int or found not in _LONGS:
            self._fail(f"there is no {name}, or it is no whole number of 64 bits")
        return found

    def _texts(self, found: Any) -> dict[str, str]:
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            self._fail("properties are no texts by name")
        return found

    def _fail(self, what: str) -> NoReturn:
        raise FormatError(f"{self.name}: {what}")


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    document = None
    with contextlib.suppress(ValueError, RecursionError):  # their text would hold the document's
        found = json.loads(data, object_pairs_hook=once, parse_constant=no_constant)
        if _SURROGATE.search(data):
            _spelt(found)  # half a pair of them is no text, and can't be written again
        document = found
    if not isinstance(document, dict):
        raise FormatError(f"{name}: no table metadata: no JSON object, or a member is there twice")
    return document


def _spelt(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
