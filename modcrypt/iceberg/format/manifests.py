"""Read manifest lists and manifests of format versions 2 and 3.

Rows are kept whole, so that writing them again loses nothing. Fields are found by their ids, as the
spec defines them ("Manifests", "Manifest Lists"), and are then named as in the spec. A row inherits
the sequence numbers that it leaves open ("Sequence Number Inheritance").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NoReturn, TypeAlias, TypeVar

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.iceberg.format.avro_files import AvroRows, open_avro
from modcrypt.iceberg.format.manifest_headers import find_misplacements, find_redefinitions
from modcrypt.iceberg.format.manifest_rows.entry_plan import (
    ENTRY_SLOTS,
    FILE_SLOTS,
    STATISTICS,
    EntryNames,
    EntryPlan,
    Values,
    have_usual_values,
    plan_entries,
    row_decoder,
    scan_blocks,
)
from modcrypt.iceberg.format.manifest_rows.file_entries import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    FileEntry,
    ManifestEntries,
    Numbers,
    make_entry,
    make_short_entry,
)
from modcrypt.iceberg.format.repeated_rows import RepeatedRows
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.keys import Secret
from modcrypt.runtime.tracebacks import hide_frames

R = TypeVar("R")

Choose: TypeAlias = Callable[[list[Values], Mapping[int, str]], list[Values]]
"""A function that returns those rows of a block that are wanted, by `partition_names`."""

FILE_KINDS = ("data", "position deletes", "equality deletes")  # kinds of files by their content
DELETES = 1  # content of a manifest of delete files; the content of other manifests is `DATA`

MAX_RATIO, ALWAYS_READ = 64, 4 << 20
"""Maximum expansion of a manifest by decompression, and decompressed bytes that any may have.

In memory each byte of its rows becomes a hundred.
"""

# Ids and names in the spec.
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
    """A row of a manifest list."""

    location: str  # location of the manifest
    length: int  # trusted length of the manifest as stored, in bytes
    spec_id: int  # id of the partition spec of its files
    content: int  # kind of its files: 0 for data files, 1 for delete files
    # Sequence number and snapshot of the commit that added the manifest.
    sequence_number: int
    added_snapshot_id: int
    # Key metadata that opens the manifest; a secret. None for a manifest in plaintext.
    _key_metadata: Secret[bytes] | None = field(repr=False)
    # The complete row, under the spec's names; its key metadata is a `Secret`.
    row: Mapping[str, Any] = field(repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ManifestFile holds a key and can't be pickled or copied")

    @property
    def key_metadata(self) -> bytes | None:
        """The key metadata itself; keep it out of local variables, which tracebacks hold."""
        return None if self._key_metadata is None else self._key_metadata()


@hide_frames
def read_manifest_list(
    data: bytes, name: str, snapshot: Snapshot | None = None
) -> list[ManifestFile]:
    """Read the plaintext of a manifest list.

    Raise FormatError if the data is not a valid manifest list, and IntegrityError if the header
    names another snapshot than `snapshot`.
    """
    avro = open_manifest(data, name)
    for what in () if snapshot is None else find_misplacements(avro.metadata, snapshot):
        raise IntegrityError(f"{name}: {what}")
    return read_list_rows(avro, RepeatedRows())


def open_manifest(data: bytes, name: str) -> AvroRows:
    """Read the Avro header of a manifest or manifest list; raise FormatError if it is invalid."""
    return open_avro(data, name, most=ALWAYS_READ + MAX_RATIO * len(data))


def read_list_rows(avro: AvroRows, known: RepeatedRows[ManifestFile]) -> list[ManifestFile]:
    """Read the rows of a manifest list; those that other lists have too are decoded once.

    Raise FormatError if it is not a valid manifest list.
    """
    names, name = _find_once(avro, _list_names), avro.name
    return known.read(avro, lambda row: _manifest_file(_rename_fields(row, names), name))


def _list_names(avro: AvroRows) -> dict[str, str]:
    _check_fields(avro.schema, avro.name, 500, 501, 502, 503)
    return _names(avro.schema, LIST_FIELDS)


def _manifest_file(row: dict[str, Any], name: str) -> ManifestFile:
    for number in ("sequence_number", "min_sequence_number"):  # those of version 1 have none
        row[number] = _typed_value(row, number, int, name, otherwise=0)
    return ManifestFile(
        _typed_value(row, "manifest_path", str, name), _size(row, "manifest_length", name),
        _typed_value(row, "partition_spec_id", int, name),
        _one_of(row, "content", (DATA, DELETES), name, otherwise=DATA), row["sequence_number"],
        _typed_value(row, "added_snapshot_id", int, name), _hide_key(row, name), row,
    )  # fmt: skip


@hide_frames
def read_manifest(
    data: bytes, manifest: ManifestFile, name: str, metadata: TableMetadata | None = None,
    choose: Choose | None = None,
) -> Iterator[FileEntry]:  # fmt: skip
    """Read the plaintext of a manifest; `manifest` is its row in the manifest list.

    All rows are checked at once. Those that `choose` returns become entries when they are needed:
    few objects live at a time, which Python's garbage collector would visit. Raise FormatError if
    the data is not a valid manifest; and IntegrityError if `metadata` has another schema or
    partition spec under the header's id.
    """
    avro = open_manifest(data, name)
    for what in () if metadata is None else find_redefinitions(avro.metadata, metadata):
        raise IntegrityError(f"{name}: {what}")
    plan = _find_once(avro, _plan_whole if choose is None else _plan_with_statistics)
    names, rows = plan.names.partition_names, list[Values]()
    for block in scan_blocks(avro, plan):
        checked = _check_rows(block, plan, name)
        rows += checked if choose is None else choose(checked, names)
    # Tracebacks hold the variables of a generator, but not those of `map`.
    return map(partial(make_entry, plan, manifest.spec_id, _inherited(manifest)), rows)


def read_manifest_rows(
    avro: AvroRows, manifest: ManifestFile, known: RepeatedRows[Values]
) -> ManifestEntries:
    """Read the rows of a manifest; those that `known` manifests have too are decoded once.

    The `file` of an entry only describes a deletion vector. Raise FormatError if it is not a valid
    manifest.
    """
    plan, name = _find_once(avro, _plan_short), avro.name
    make = partial(make_short_entry, plan, manifest.spec_id, _inherited(manifest))
    if manifest.row.get("existing_files_count") == 0:  # all rows are new
        blocks = (_check_rows(block, plan, name) for block in scan_blocks(avro, plan))
        return ManifestEntries([*chain.from_iterable(blocks)], make)

    def check(values: Values) -> Values:
        return _check_rows([values], plan, name)[0]

    return ManifestEntries(known.read(avro, check, decoder=partial(row_decoder, plan=plan)), make)


def _plan_whole(avro: AvroRows) -> EntryPlan:
    return plan_entries(avro, _entry_names(avro), {}, whole=True)


def _plan_with_statistics(avro: AvroRows) -> EntryPlan:
    return plan_entries(avro, _entry_names(avro), STATISTICS, whole=True)


def _plan_short(avro: AvroRows) -> EntryPlan:
    return plan_entries(avro, _entry_names(avro), {}, whole=False)


def _entry_names(avro: AvroRows) -> EntryNames:
    schema, name = avro.schema, avro.name
    _check_fields(schema, name, 0, 2)
    files = _field(schema, 2)
    file_schema = files["type"]
    _check_fields(file_schema, name, 100, 101, 102, 103, 104)
    partition = _field(file_schema, 102)["type"]
    _check_fields(partition, name)
    names = {id_: f["name"] for f in partition["fields"] if (id_ := _id(f)) is not None}
    return EntryNames(
        files["name"], _names(schema, ENTRY_FIELDS), _names(file_schema, FILE_FIELDS), names
    )


def _inherited_numbers(status: int, manifest: ManifestFile) -> Numbers:
    """Return the ids of the commit that an entry inherits, in the order of `FileEntry`."""
    inherits = status == ADDED or manifest.sequence_number == 0
    inherited = manifest.sequence_number if inherits else None
    return manifest.added_snapshot_id, inherited, inherited


def _inherited(manifest: ManifestFile) -> list[Numbers]:
    """Return `_inherited_numbers` for each status."""
    return [_inherited_numbers(status, manifest) for status in (EXISTING, ADDED, DELETED)]


def _check_rows(rows: list[Values], plan: EntryPlan, where: str) -> list[Values]:
    """Return rows; raise FormatError if a value of a row is missing or invalid."""
    if not have_usual_values(rows, plan):
        for values in rows:
            _check_values(values, where)
    return rows


def _check_values(values: Values, where: str) -> None:
    """Raise FormatError for the first value of a row that is missing or invalid."""
    row = {name: values[slot] for name, slot in (ENTRY_SLOTS | FILE_SLOTS).items()}
    _one_of(row, "status", (EXISTING, ADDED, DELETED), where)
    _typed_value(row, "referenced_data_file", str, where, otherwise=None)
    for name in ("snapshot_id", "sequence_number", "file_sequence_number"):
        _typed_value(row, name, int, where, otherwise=None)
    _one_of(row, "content", range(len(FILE_KINDS)), where, otherwise=DATA)
    for name in ("file_path", "file_format"):
        _typed_value(row, name, str, where)
    for name in ("record_count", "file_size_in_bytes"):
        _size(row, name, where)
    _typed_value(row, "key_metadata", bytes, where, otherwise=None)


def _field(schema: Mapping[str, Any], field_id: int) -> Any:
    return next((field for field in schema["fields"] if _id(field) == field_id), None)


def _id(field: Mapping[str, Any]) -> int | None:
    field_id = field.get("field-id")
    return field_id if isinstance(field_id, int) else None


def _find_once(avro: AvroRows, find: Callable[[AvroRows], R]) -> R:
    """Return the result of a function for the schema of a file, which many files share."""
    found: dict[Any, R] = avro.checked.found
    if find not in found:
        found[find] = find(avro)
    return found[find]


def _check_fields(schema: Any, name: str, *ids: int) -> None:
    is_record = isinstance(schema, dict) and schema.get("type") == "record"
    if not is_record or any(_field(schema, id_) is None for id_ in ids):
        raise FormatError(f"{name}: an Avro file, but not a manifest or manifest list")


def _names(schema: Mapping[str, Any], spec: Mapping[int, str]) -> dict[str, str]:
    """Return the spec's names by those of the file, where they differ."""
    ids = {field["name"]: _id(field) for field in schema["fields"]}
    names = {name: spec[id_] for name, id_ in ids.items() if id_ is not None and id_ in spec}
    return {name: wanted for name, wanted in names.items() if name != wanted}


def _rename_fields(row: dict[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    if not new_names:
        return row
    return {new_names.get(name, name): value for name, value in row.items()}


_REQUIRED = object()


def _typed_value(
    row: Mapping[str, Any], name: str, kind: type, where: str, *, otherwise: Any = _REQUIRED
) -> Any:
    """Return a value of a row, or `otherwise` if it is null or the field does not exist."""
    if (value := row.get(name)) is None and otherwise is not _REQUIRED:
        return otherwise
    if type(value) is not kind:
        raise FormatError(f"{where}: {name} of a row is missing or is of another type")
    return value


def _hide_key(row: dict[str, Any], where: str) -> Secret[bytes] | None:
    """Return the key metadata of a row as a `Secret`, and replace it by that in the row."""
    if _typed_value(row, "key_metadata", bytes, where, otherwise=None) is None:
        return None
    row["key_metadata"] = Secret(row["key_metadata"])
    secret: Secret[bytes] = row["key_metadata"]
    return secret


def _size(row: Mapping[str, Any], name: str, where: str) -> int:
    value: int = _typed_value(row, name, int, where)
    if value < 0:
        raise FormatError(f"{where}: {name} of a row is negative")
    return value


def _one_of(
    row: Mapping[str, Any], name: str, values: Sequence[int], where: str, *,
    otherwise: Any = _REQUIRED,
) -> int:  # fmt: skip
    value: int = _typed_value(row, name, int, where, otherwise=otherwise)
    if value not in values:
        raise FormatError(f"{where}: {name} of a row has the invalid value {value}")
    return value
