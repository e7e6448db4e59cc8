"""Manifest lists and manifests of format versions 2 and 3: rows in, rows out.

Rows are kept whole, so that what is written again loses nothing; fields are found by their ids, as
the spec has them ("Manifests", "Manifest Lists"), and then go by the names that the spec gives.
Sequence numbers that a row leaves open are inherited ("Sequence Number Inheritance").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.iceberg.format.avro_files import read_avro
from modcrypt.iceberg.format.manifest_headers import misplaced, redefined
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.keys import Secret
from modcrypt.tracebacks import hide_frames

__all__ = [
    "ADDED",
    "DATA",
    "DELETED",
    "DELETES",
    "EQUALITY_DELETES",
    "EXISTING",
    "POSITION_DELETES",
    "FileEntry",
    "ManifestFile",
    "read_manifest",
    "read_manifest_list",
]

EXISTING, ADDED, DELETED = 0, 1, 2
"""Status of an entry."""

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
"""Content of a file."""

_CONTENTS = (DATA, POSITION_DELETES, EQUALITY_DELETES)

DELETES = 1
"""Content of a manifest of delete files; that of others is `DATA`."""

MAX_RATIO, ALWAYS_READ = 64, 4 << 20
"""How many times its size a manifest may become, decompressed; and bytes that any may."""

# Ids and names of the spec.
LIST_FIELDS = {
    500: "manifest_path", 501: "manifest_length", 502: "partition_spec_id", 517: "content",
    515: "sequence_number", 516: "min_sequence_number", 503: "added_snapshot_id",
    504: "added_files_count", 505: "existing_files_count", 506: "deleted_files_count",
    512: "added_rows_count", 513: "existing_rows_count", 514: "deleted_rows_count",
    507: "partitions", 519: "key_metadata", 520: "first_row_id",
}  # fmt: skip
ENTRY_FIELDS = {
    0: "status", 1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number", 2: "data_file",
}  # fmt: skip
FILE_FIELDS = {
    134: "content", 100: "file_path", 101: "file_format", 102: "partition", 103: "record_count",
    104: "file_size_in_bytes", 108: "column_sizes", 109: "value_counts", 110: "null_value_counts",
    137: "nan_value_counts", 125: "lower_bounds", 128: "upper_bounds", 131: "key_metadata",
    132: "split_offsets", 135: "equality_ids", 140: "sort_order_id", 142: "first_row_id",
    143: "referenced_data_file", 144: "content_offset", 145: "content_size_in_bytes",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A row of a manifest list.

    Attributes:
        location: of the manifest.
        length: of the manifest as it is stored, in bytes: the trusted one.
        spec_id: of the partition spec of its files.
        content: 0 for data files, 1 for delete files.
        sequence_number, added_snapshot_id: of the commit that added it.
        key_metadata: by which it opens; a secret. None of a manifest in plaintext.
        row: all of the row, under the spec's names; its key metadata is a `Secret`.
    """

    location: str
    length: int
    spec_id: int
    content: int
    sequence_number: int
    added_snapshot_id: int
    _key_metadata: Secret[bytes] | None = field(repr=False)
    row: Mapping[str, Any] = field(repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("it holds a key, and can't be pickled or copied")

    @property
    def key_metadata(self) -> bytes | None:
        """The key metadata itself; keep it out of local variables, which tracebacks hold."""
        return None if self._key_metadata is None else self._key_metadata()


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A row of a manifest: a data file, or a delete file.

    Attributes:
        status: 0 existing, 1 added, 2 deleted.
        snapshot_id, sequence_number, file_sequence_number: inherited where the row leaves them
            open.
        content: 0 data, 1 position deletes (in Puffin: a deletion vector), 2 equality deletes.
        location: of the file.
        file_format: `PARQUET`, `AVRO`, `ORC` or `PUFFIN`.
        spec_id: of the partition spec; its partition's values are in `file`.
        record_count: rows, or deleted rows.
        size: of the file as it is stored, in bytes.
        key_metadata: by which it opens; a secret, unless it is sealed. None in plaintext.
        file: all of its `data_file`, under the spec's names; its key metadata is a `Secret`.
        partition_names: those of `partition`, by the ids of the partition fields: names change,
            and Avro can't spell all of them.
    """

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    content: int
    location: str
    file_format: str
    spec_id: int
    record_count: int
    size: int
    _key_metadata: Secret[bytes] | None = field(repr=False)
    file: Mapping[str, Any] = field(repr=False)
    partition_names: Mapping[int, str] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("it holds a key, and can't be pickled or copied")

    @property
    def key_metadata(self) -> bytes | None:
        """The key metadata itself; keep it out of local variables, which tracebacks hold."""
        return None if self._key_metadata is None else self._key_metadata()

    @property
    def is_live(self) -> bool:
        """Whether the snapshot has the file."""
        return self.status != DELETED

    @property
    def partition(self) -> Mapping[str, Any]:
        """The values of its partition, by name: as Avro has them, a date as a number of days."""
        return self.file.get("partition") or {}

    @property
    def partition_by_id(self) -> Mapping[int, Any]:
        """The values of its partition, by the ids of the partition fields."""
        values = self.partition
        return {id_: values.get(name) for id_, name in self.partition_names.items()}


@hide_frames
def read_manifest_list(
    data: bytes, name: str, snapshot: Snapshot | None = None
) -> list[ManifestFile]:
    """Read a manifest list.

    Args:
        data: it, in plaintext.
        name: of the file, for messages.
        snapshot: that it must have been written for, if it says so.

    Raises:
        FormatError: it is none.
        IntegrityError: it is that of another snapshot.
    """
    avro = read_avro(data, name, most=_most(data))
    for what in () if snapshot is None else misplaced(avro.metadata, snapshot):
        raise IntegrityError(f"{name}: {what}")
    _check_fields(avro.schema, name, 500, 501, 502, 503)
    rows = _canonical(avro.records, _names(avro.schema, LIST_FIELDS))
    return [_manifest_file(row, name) for row in rows]


def _manifest_file(row: dict[str, Any], name: str) -> ManifestFile:
    return ManifestFile(
        _typed(row, "manifest_path", str, name),
        _size(row, "manifest_length", name),
        _typed(row, "partition_spec_id", int, name),
        _one_of(row, "content", (DATA, DELETES), name, otherwise=DATA),
        # Which tables of version 1 lack.
        _typed(row, "sequence_number", int, name, otherwise=0),
        _typed(row, "added_snapshot_id", int, name),
        _hidden_key(row, name),
        row,
    )


@hide_frames
def read_manifest(
    data: bytes, manifest: ManifestFile, name: str, metadata: TableMetadata | None = None
) -> list[FileEntry]:
    """Read a manifest.

    Args:
        data: The manifest in plaintext.
        manifest: The row of its manifest list.
        name: The file's name, for messages.
        metadata: The table's metadata, whose schemas and partition specs must be those in the
            manifest's header.

    Raises:
        FormatError: it is none.
        IntegrityError: `metadata` has another schema or partition spec under the header's id.
    """
    avro = read_avro(data, name, most=_most(data))
    for what in () if metadata is None else redefined(avro.metadata, metadata):
        raise IntegrityError(f"{name}: {what}")
    _check_fields(avro.schema, name, 0, 2)
    files = _field(avro.schema, 2)
    file_schema = files["type"]
    _check_fields(file_schema, name, 100, 101, 102, 103, 104)
    partition = _field(file_schema, 102)["type"]
    _check_fields(partition, name)
    known = {id_: one["name"] for one in partition["fields"] if (id_ := _id(one)) is not None}
    file_names = _names(file_schema, FILE_FIELDS)
    found = _canonical((row[files["name"]] for row in avro.records), file_names)
    rows = _canonical(avro.records, _names(avro.schema, ENTRY_FIELDS))
    return [_entry(row, file, manifest, known, name) for row, file in zip(rows, found, strict=True)]


def _entry(
    row: dict[str, Any],
    file: dict[str, Any],
    manifest: ManifestFile,
    partition_names: Mapping[int, str],
    name: str,
) -> FileEntry:
    status = _one_of(row, "status", (EXISTING, ADDED, DELETED), name)
    inherits = status == ADDED or manifest.sequence_number == 0
    inherited = manifest.sequence_number if inherits else None
    _typed(file, "referenced_data_file", str, name, otherwise=None)
    return FileEntry(
        status,
        _typed(row, "snapshot_id", int, name, otherwise=manifest.added_snapshot_id),
        _typed(row, "sequence_number", int, name, otherwise=inherited),
        _typed(row, "file_sequence_number", int, name, otherwise=inherited),
        _one_of(file, "content", _CONTENTS, name, otherwise=DATA),
        _typed(file, "file_path", str, name),
        _typed(file, "file_format", str, name).upper(),
        manifest.spec_id,
        _size(file, "record_count", name),
        _size(file, "file_size_in_bytes", name),
        _hidden_key(file, name),
        file,
        partition_names,
    )


def _most(data: bytes) -> int:
    """Give the bytes that the rows of a manifest may take: in memory each becomes a hundred."""
    return ALWAYS_READ + MAX_RATIO * len(data)


# --- fields by their ids -------------------------------------------------------------------------


def _field(schema: Mapping[str, Any], field_id: int) -> Any:
    return next((one for one in schema["fields"] if _id(one) == field_id), None)


def _id(field: Mapping[str, Any]) -> int | None:
    found = field.get("field-id")
    return found if isinstance(found, int) else None


def _check_fields(schema: Any, name: str, *ids: int) -> None:
    is_record = isinstance(schema, dict) and schema.get("type") == "record"
    if not is_record or any(_field(schema, one) is None for one in ids):
        raise FormatError(f"{name}: an Avro file, but no manifest or manifest list")


def _names(schema: Mapping[str, Any], spec: Mapping[int, str]) -> dict[str, str]:
    """Give the spec's names by those of the file, where they differ."""
    ids = {one["name"]: _id(one) for one in schema["fields"]}
    told = {name: spec[id_] for name, id_ in ids.items() if id_ is not None and id_ in spec}
    return {name: wanted for name, wanted in told.items() if name != wanted}


def _canonical(rows: Iterable[dict[str, Any]], renamed: Mapping[str, str]) -> list[dict[str, Any]]:
    if not renamed:
        return list(rows)
    return [{renamed.get(name, name): value for name, value in row.items()} for row in rows]


_REQUIRED = object()


def _typed(
    row: Mapping[str, Any], name: str, kind: type, where: str, *, otherwise: Any = _REQUIRED
) -> Any:
    """Give a value of a row; `otherwise` where it is null, or its field isn't there."""
    value = row.get(name)
    if value is None and otherwise is not _REQUIRED:
        return otherwise
    if type(value) is not kind:
        raise FormatError(f"{where}: a row whose {name} is missing, or of another type")
    return value


def _hidden_key(row: dict[str, Any], where: str) -> Secret[bytes] | None:
    """Return the key metadata of a row, and hide it there, too."""
    if _typed(row, "key_metadata", bytes, where, otherwise=None) is None:
        return None
    row["key_metadata"] = Secret(row["key_metadata"])
    found: Secret[bytes] = row["key_metadata"]
    return found


def _size(row: Mapping[str, Any], name: str, where: str) -> int:
    value: int = _typed(row, name, int, where)
    if value < 0:
        raise FormatError(f"{where}: a row whose {name} is negative")
    return value


def _one_of(
    row: Mapping[str, Any],
    name: str,
    values: Sequence[int],
    where: str,
    *,
    otherwise: Any = _REQUIRED,
) -> int:
    value: int = _typed(row, name, int, where, otherwise=otherwise)
    if value not in values:
        raise FormatError(f"{where}: a row whose {name} is {value}")
    return value
