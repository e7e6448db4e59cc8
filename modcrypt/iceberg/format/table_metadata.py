"""Parse a table's metadata.json: the whole document, and the parts that concern its keys.

The document is kept whole, including unknown members, so that what is written back differs only
where intended. Nothing signs it (Iceberg spec, "Table Metadata"): anyone who can write it can
remove key ids or name an older snapshot, so readers bring their own expectation.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import copy
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

from modcrypt.errors import FormatError, KeyMaterialError, LimitError, UnsupportedFormatError
from modcrypt.iceberg.format.repeated_json import RepeatedLists
from modcrypt.pkmt1.strict_json import refuse_constant, refuse_repeats, refuse_surrogates

R = TypeVar("R")

MAX_METADATA = 512 << 20
"""Maximum size in bytes of a metadata.json; 10,000 snapshots with their keys take 10 MB."""

MAX_KEY_ENTRY = 64 << 10
"""Maximum size in bytes of an `encrypted-key-metadata`."""

KEY_ID = "encryption.key-id"  # table property: the id of the master key (MEK)

POLICY = "modcrypt.encryption."  # prefix of the table properties of a key policy

KEY_LENGTH = "encryption.data-key-length"
"""Table property: the length of data keys and KEKs in bytes; 16 by default."""

SCOPE = "modcrypt.scope"
"""Property of a KEK that is not for the whole table: the files that it is for."""

WRAPPING = "modcrypt.wrapping"
"""Property of an entry of `encryption-keys` that a master key wraps directly: `single`."""

PURGED = "modcrypt.purged"
"""Table property of the last version of a table in a folder, which its purge has committed."""

STATISTICS = ("statistics", "partition-statistics")  # members that name statistics files

EMPTY_HISTORY: Mapping[str, Any] = {
    "current-snapshot-id": None, "snapshots": [], "refs": {}, "snapshot-log": [],
    "metadata-log": [], "statistics": [], "partition-statistics": [],
}  # fmt: skip
"""Members of a table without snapshots."""

FIRST_PARTITION_ID = 1000
"""Id of the first partition field of format version 1, whose specs have no field ids (spec)."""

_LENGTHS = (16, 24, 32)

_LONGS = range(-(2**63), 2**63)

_NUMBERS = (
    "last-updated-ms", "current-snapshot-id", "next-row-id", "last-column-id", "current-schema-id",
    "default-spec-id", "last-partition-id", "default-sort-order-id",
)  # fmt: skip
_OBJECT_LISTS: Mapping[str, tuple[str, ...]] = {
    "schemas": (), "partition-specs": (), "sort-orders": (),
    "snapshot-log": ("snapshot-id", "timestamp-ms"), "metadata-log": ("timestamp-ms",),
    "statistics": ("snapshot-id",), "partition-statistics": ("snapshot-id",),
}  # fmt: skip
"""Lists of objects, and the whole numbers that each object has. pyiceberg checks the schemas."""

_NUMBER = re.compile(r"-?[0-9]{1,18}")

_parse = partial(json.loads, object_pairs_hook=refuse_repeats, parse_constant=refuse_constant)

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class EncryptedKey:
    """An entry of `encryption-keys`: a wrapped KEK, or the key metadata of a manifest list."""

    id: str  # id of the entry (`key-id`), by which a snapshot or another key names it
    encrypted: bytes = field(repr=False)  # the wrapped KEK, or the encrypted key metadata
    encrypted_by: str  # id of the key that encrypts it: of a KEK, or, for a KEK, of a master key
    # Properties that the writer set, among them the KEY_TIMESTAMP of a KEK.
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_single(self) -> bool:
        """True if a master key wraps the data key of a manifest list directly."""
        return self.properties.get(WRAPPING) == "single"

    def document(self) -> dict[str, Any]:
        """Return the entry in the form of metadata.json."""
        document: dict[str, Any] = {
            "key-id": self.id,
            "encrypted-key-metadata": base64.b64encode(self.encrypted).decode(),
            "encrypted-by-id": self.encrypted_by,
        }
        return {**document, "properties": dict(self.properties)} if self.properties else document


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of the table."""

    # Ids of the snapshot and of the one before it.
    id: int
    parent: int | None
    # Position in the order of commits, and time of the commit.
    sequence_number: int
    timestamp_ms: int
    manifest_list: str  # location of its manifest list
    # Id of the entry in `encryption-keys` that opens the manifest list; None without one.
    key_id: str | None
    schema_id: int | None  # id of the schema that was current
    # The complete snapshot, in the form of metadata.json.
    document: Mapping[str, Any] = field(repr=False)

    @property
    def operation(self) -> str | None:
        """The operation that created it: `append`, `delete`, `overwrite` or `replace`."""
        summary = self.document.get("summary")
        return summary.get("operation") if isinstance(summary, dict) else None


class TableMetadata:
    """The content of a metadata.json; immutable: `with_members` returns a changed copy.

    Raises:
        FormatError: The data is not a metadata.json, or a needed part of it is malformed.
        UnsupportedFormatError: The format version is unknown.
        LimitError: The file, or a key in it, exceeds a size limit.
    """

    def __init__(
        self, data: bytes, name: str = "metadata.json", lists: RepeatedLists | None = None
    ) -> None:
        if len(data) > MAX_METADATA:
            raise LimitError(f"{name}: more than {MAX_METADATA} bytes of table metadata")
        self.name = name
        # Nobody compares versions that are read one after the other, for which lists are given.
        self._digest = hashlib.sha256(data).digest() if lists is None else b""
        self.document: dict[str, Any] = _parse_document(data, name, lists)
        version = self._whole(self.document, "format-version")
        if version not in (1, 2, 3):
            raise UnsupportedFormatError(f"{name}: format version {version} is not supported")
        self.format_version = version
        self.location = self._text(self.document, "location").rstrip("/")
        self.uuid = self._text(self.document, "table-uuid")
        # That of the newest snapshot; 0 without one, and in format version 1.
        self.last_sequence_number = self._whole(self.document, "last-sequence-number", 0)
        self.properties: Mapping[str, str] = self._texts(self.document.get("properties") or {})
        snapshots = _make_once("snapshots", self._list("snapshots"), self._snapshot, lists)
        self.snapshots = tuple(snapshots)
        self.keys = self._keys(lists)
        refs = self.document.get("refs")
        named = refs.items() if isinstance(refs, dict) else ()
        self.refs = {name: ref for name, ref in named if isinstance(ref, dict)}
        logged = self.document.get("metadata-log")
        versions = logged if isinstance(logged, list) else []
        versions = [entry for entry in versions if isinstance(entry, dict)]
        # Times and names of the versions in `metadata-log`.
        self.log: frozenset[tuple[int, str]] = frozenset(
            filter(None, _make_once("metadata-log", versions, _logged_version, lists))
        )
        # A cache of `manifest_headers.find_redefinitions`.
        self.compared: dict[tuple[str | None, ...], tuple[str, ...]] = {}

    def __repr__(self) -> str:
        return f"TableMetadata({self.name!r}, {self.uuid}, {len(self.snapshots)} snapshots)"

    # --- reading --------------------------------------------------------------------------------

    @property
    def master_key_id(self) -> str | None:
        """Id of the table's master key; None for a table in plaintext."""
        return self.properties.get(KEY_ID)

    @property
    def key_length(self) -> int:
        """Length of data keys and KEKs in bytes; raise FormatError if invalid for AES."""
        length = self.number(KEY_LENGTH, 16)
        if length not in _LENGTHS:
            raise FormatError(f"{self.name}: {KEY_LENGTH} must be 16, 24 or 32")
        return length

    def number(self, name: str, otherwise: int) -> int:
        """Return a table property as an int; raise FormatError if it is not a whole number."""
        text = self.properties.get(name, str(otherwise))
        if not _NUMBER.fullmatch(text):
            self._fail(f"the property {name} is not a whole number")
        return int(text)

    @property
    def is_encrypted(self) -> bool:
        """True if any part of the metadata refers to keys."""
        keyed = any(snapshot.key_id is not None for snapshot in self.snapshots)
        return self.master_key_id is not None or bool(self.keys) or keyed

    @property
    def lost_its_history(self) -> bool:
        """True if an encrypted table had snapshots and has none; expiry keeps the current one."""
        return bool(self.master_key_id and self.last_sequence_number and not self.snapshots)

    @property
    def current(self) -> Snapshot | None:
        """The current snapshot; None for a table without one.

        Raise FormatError if the metadata does not contain the current snapshot.
        """
        current = self.document.get("current-snapshot-id")
        return None if current in (None, -1) else self.snapshot(current)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Return the snapshot with the given id; raise FormatError if the table has none."""
        for snapshot in self.snapshots:
            if snapshot.id == snapshot_id:
                return snapshot
        raise FormatError(f"{self.name}: snapshot {snapshot_id} does not exist")

    def history(self) -> list[dict[str, Any]]:
        """Return the log of current snapshots, in order; raise FormatError if it is malformed."""
        log = self._objects("snapshot-log")
        for entry in log:
            for name in _OBJECT_LISTS["snapshot-log"]:
                self._whole(entry, name)
        return log

    def schemas(self) -> list[dict[str, Any]]:
        """Return the schemas in the form of the document, each with its id.

        Raise FormatError if a schema is not an object, or its id is not a whole number.
        """
        schemas = self._objects("schemas")
        if not schemas and isinstance(self.document.get("schema"), dict):  # format version 1
            schemas = [self.document["schema"]]
        schemas = [{"schema-id": 0, **schema} for schema in schemas]
        for schema in schemas:
            self._whole(schema, "schema-id")
        return schemas

    def specs(self) -> list[dict[str, Any]]:
        """Return the partition specs in the form of the document, with the errors of `schemas`."""
        specs = self._objects("partition-specs")
        if not specs and "partition-spec" in self.document:  # format version 1
            fields = enumerate(self._objects("partition-spec"))
            numbered = [
                {"field-id": FIRST_PARTITION_ID + number, **field} for number, field in fields
            ]
            return [{"spec-id": 0, "fields": numbered}]
        for spec in specs:
            self._whole(spec, "spec-id")
        return specs

    def kek_ids(self) -> list[str]:
        """Return the ids of the KEKs: keys that encrypt other keys, or have a timestamp."""
        used = {key.encrypted_by for key in self.keys.values()}
        return [
            id_
            for id_, key in self.keys.items()
            if id_ in used or "KEY_TIMESTAMP" in key.properties
        ]

    def texts_of(self, member: str, name: str) -> Iterator[str]:
        """Yield the texts of this name in a list of the document, which may hold anything."""
        entries = self.document.get(member)
        for entry in entries if isinstance(entries, list) else ():
            text = entry.get(name) if isinstance(entry, dict) else None
            if isinstance(text, str):
                yield text

    def statistics(self) -> Iterator[str]:
        """Yield the locations of statistics files."""
        for member in STATISTICS:
            yield from self.texts_of(member, "statistics-path")

    def check_members(self) -> None:
        """Raise FormatError if a member that only a change of the table needs is malformed."""
        for name in _NUMBERS:
            required = name == "current-schema-id" and self.format_version > 1
            self._whole(self.document, name, None if required else 0)
        for member, names in _OBJECT_LISTS.items():
            for entry in self._objects(member):
                for name in names:
                    self._whole(entry, name)
        refs = self.document.get("refs") or {}
        if not isinstance(refs, dict) or not all(isinstance(ref, dict) for ref in refs.values()):
            self._fail("refs is not an object of objects")
        for ref in refs.values():
            self._whole(ref, "snapshot-id")
        newest = max((snapshot.sequence_number for snapshot in self.snapshots), default=0)
        if newest > self.last_sequence_number:  # a commit would reuse a number
            self._fail("a snapshot's sequence number is above last-sequence-number")
        ends = (
            self._whole(snapshot.document, "first-row-id", 0)
            + self._whole(snapshot.document, "added-rows", 0)
            for snapshot in self.snapshots
        )
        # Otherwise a commit would reuse row ids.
        if max(ends, default=0) > self._whole(self.document, "next-row-id", 0):
            self._fail("a snapshot's rows have ids above next-row-id")

    def is_of(self, data: bytes) -> bool:
        """Return whether the metadata was parsed from these bytes."""
        return hmac.compare_digest(self._digest, hashlib.sha256(data).digest())

    # --- changing -------------------------------------------------------------------------------

    def named(self, name: str) -> TableMetadata:
        """Return the metadata under the name of the file in which its encoding is stored."""
        renamed = copy.copy(self)
        renamed.name, renamed._digest = name, hashlib.sha256(self.encode()).digest()
        return renamed

    def without_history(self) -> TableMetadata:
        """Return the metadata without its snapshots and keys, which take most of the memory."""
        small = copy.copy(self)
        no_keys: dict[str, Any] = {"encryption-keys": []}
        small.document = {**self.document, **no_keys, "snapshots": [], "snapshot-log": []}
        small.snapshots, small.keys, small.refs = (), {}, {}
        return small

    def with_members(self, **members: Any) -> TableMetadata:
        """Return a copy with the given members replaced; underscores stand for hyphens."""
        document = {**self.document, **{name.replace("_", "-"): v for name, v in members.items()}}
        return TableMetadata(_encode_document(document), self.name)

    def with_keys(self, keys: Iterable[EncryptedKey], **members: Any) -> TableMetadata:
        """Return a copy with these `encryption-keys`, and other members as by `with_members`.

        KEKs that are not for the whole table come last: Iceberg's Java, which knows no scopes,
        encrypts what it appends with the first KEK that it finds.
        """
        ordered = sorted(keys, key=lambda key: SCOPE in key.properties)
        stored = dict(zip(self.keys, self.document.get("encryption-keys") or (), strict=True))
        documents = [
            stored[key.id] if self.keys.get(key.id) == key else key.document() for key in ordered
        ]
        return self.with_members(encryption_keys=documents, **members)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return _encode_document(self.document)

    # --- strict reading -------------------------------------------------------------------------

    def _keys(self, lists: RepeatedLists | None) -> dict[str, EncryptedKey]:
        entries = self._list("encryption-keys")
        keys = _make_once("encryption-keys", entries, self._key, lists)
        by_id = {key.id: key for key in keys}
        if len(by_id) < len(keys):
            self._fail("two entries of encryption-keys have the same key-id")
        return by_id

    def _key(self, document: Any) -> EncryptedKey:
        encoded = self._text(document, "encrypted-key-metadata")
        if len(encoded) > MAX_KEY_ENTRY * 4 // 3 + 4:
            raise LimitError(f"{self.name}: encrypted-key-metadata exceeds {MAX_KEY_ENTRY} bytes")
        encrypted = None
        with contextlib.suppress(binascii.Error, ValueError):
            encrypted = base64.b64decode(encoded, validate=True)
        if not encrypted:
            raise KeyMaterialError(f"{self.name}: encrypted-key-metadata is not valid base64")
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
                    f"{self.name}: a snapshot has no manifest list (old format version 1)"
                )
            self._fail("a snapshot names no manifest-list")
        key_id, parent = document.get("key-id"), document.get("parent-snapshot-id")
        schema = document.get("schema-id")
        if not isinstance(document.get("summary") or {}, dict):
            self._fail("the summary of a snapshot is not an object")
        if not (key_id is None or (isinstance(key_id, str) and key_id)):
            self._fail("the key-id of a snapshot is not a text")
        return Snapshot(
            self._whole(document, "snapshot-id"), parent if type(parent) is int else None,
            self._whole(document, "sequence-number", 0), self._whole(document, "timestamp-ms"),
            document["manifest-list"], key_id, schema if type(schema) is int else None, document,
        )  # fmt: skip

    def _objects(self, name: str) -> list[dict[str, Any]]:
        objects = self._list(name)
        if not all(isinstance(entry, dict) for entry in objects):
            self._fail(f"{name} is not a list of objects")
        return objects

    def _list(self, name: str) -> list[Any]:
        entries = self.document.get(name)
        if not (entries is None or isinstance(entries, list)):
            self._fail(f"{name} is not a list")
        return entries or []

    def _text(self, document: Any, name: str) -> str:
        text = document.get(name) if isinstance(document, dict) else None
        if not isinstance(text, str) or not text:
            self._fail(f"{name} is missing, or is not a text")
        return text

    def _whole(self, document: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
        """Return a member that is a whole number of 64 bits, or `otherwise` if it is missing."""
        if (number := document.get(name)) is None:
            number = otherwise
        if type(number) is not int or number not in _LONGS:
            self._fail(f"{name} is missing, or is not a whole number of 64 bits")
        return number

    def _texts(self, texts: Any) -> dict[str, str]:
        if not isinstance(texts, dict) or not all(isinstance(v, str) for v in texts.values()):
            self._fail("properties is not an object of texts")
        return texts

    def _fail(self, what: str) -> NoReturn:
        raise FormatError(f"{self.name}: {what}")


def history_lists() -> RepeatedLists:
    """Return the lists that are nearly the same in the versions of a table, to read many of them.

    The versions share the objects in these lists.
    """
    return RepeatedLists("snapshots", "encryption-keys", "snapshot-log", "metadata-log")


def _make_once(
    member: str, entries: list[Any], make: Callable[[Any], R], lists: RepeatedLists | None
) -> list[R]:
    """Return the results of `make` for the entries of a list, called once for repeated ones."""
    return list(map(make, entries)) if lists is None else lists.lists[member].make(make, entries)


def _logged_version(entry: dict[str, Any]) -> tuple[int, str] | None:
    """Return the time and name of a version in a log; None if the entry has none."""
    when, location = entry.get("timestamp-ms"), entry.get("metadata-file")
    if type(when) is not int or not isinstance(location, str):
        return None
    return when, location.rpartition("/")[2]


def _parse_document(data: bytes, name: str, lists: RepeatedLists | None) -> dict[str, Any]:
    document = None
    with contextlib.suppress(ValueError, RecursionError):  # the error would repeat the document
        parsed = _parse(data) if lists is None else lists.parse(data)
        if b"\\" in data and _SURROGATE.search(data):  # the first search is much faster
            refuse_surrogates(parsed)
        document = parsed
    if not isinstance(document, dict):
        raise FormatError(
            f"{name}: not table metadata: not a JSON object, or a member occurs twice"
        )
    return document


def _encode_document(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
