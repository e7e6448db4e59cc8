"""Plan which fields of a manifest's rows become values at once, and decode the others on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.avro_files import AvroRows
from modcrypt.iceberg.format.avro_schemas import AvroType
from modcrypt.iceberg.format.manifest_rows.row_scan import (
    ARRAY,
    BOOLEAN,
    BYTES,
    DOUBLE,
    ENUM,
    FIXED,
    FLOAT,
    MAP,
    MAX_NUMBER,
    NULL,
    NUMBER,
    NUMBERS,
    RECORD,
    STRING,
    TEXTS,
    UNION,
    Node,
    all_within,
    decode,
    find_value,
    find_values,
    is_missing,
    scan_rows,
)
from modcrypt.keys import Secret, Unpicklable
from modcrypt.runtime.tracebacks import hide_frames

Values = list[Any]
"""The values of a row by their slots; None for null, and for fields that the schema lacks."""

(
    STATUS, SNAPSHOT, SEQUENCE, FILE_SEQUENCE, DATA_FILE, CONTENT, PATH, FORMAT, RECORDS, SIZE, KEY,
    PARTITION, TARGET, OFFSET, LENGTH, FIRST_ROW, EQUALITY_IDS, VALUE_COUNTS, NULL_COUNTS,
    NAN_COUNTS, LOWER, UPPER,
) = range(22)  # fmt: skip
"""Slots of values."""

SLOTS = 22

ENTRY_SLOTS = {
    "status": STATUS, "snapshot_id": SNAPSHOT, "sequence_number": SEQUENCE,
    "file_sequence_number": FILE_SEQUENCE,
}  # fmt: skip
FILE_SLOTS = {
    "content": CONTENT, "file_path": PATH, "file_format": FORMAT, "record_count": RECORDS,
    "file_size_in_bytes": SIZE, "key_metadata": KEY, "partition": PARTITION,
    "referenced_data_file": TARGET, "content_offset": OFFSET, "content_size_in_bytes": LENGTH,
    "first_row_id": FIRST_ROW, "equality_ids": EQUALITY_IDS,
}  # fmt: skip
STATISTICS = {
    "value_counts": VALUE_COUNTS, "null_value_counts": NULL_COUNTS, "nan_value_counts": NAN_COUNTS,
    "lower_bounds": LOWER, "upper_bounds": UPPER,
}  # fmt: skip
_USUAL = {
    "status": (NUMBER, False), "snapshot_id": (NUMBER, True), "sequence_number": (NUMBER, True),
    "file_sequence_number": (NUMBER, True), "content": (NUMBER, True), "file_path": (STRING, False),
    "file_format": (STRING, False), "record_count": (NUMBER, False),
    "file_size_in_bytes": (NUMBER, False), "key_metadata": (BYTES, True),
    "referenced_data_file": (STRING, True),
}  # fmt: skip
"""Types of fields that every entry has, and whether they may be null."""

_PAIRS = dict.fromkeys((VALUE_COUNTS, NULL_COUNTS, NAN_COUNTS), NUMBERS) | dict.fromkeys(
    (LOWER, UPPER), TEXTS
)
_MOST = {STATUS: 2, CONTENT: 2, RECORDS: MAX_NUMBER, SIZE: MAX_NUMBER}
"""The greatest value of a number by its slot; the least is 0."""

_KINDS = {
    "null": (NULL, 0), "boolean": (BOOLEAN, 1), "int": (NUMBER, 0), "long": (NUMBER, 0),
    "float": (FLOAT, 4), "double": (DOUBLE, 8), "bytes": (BYTES, 0), "string": (STRING, 0),
}  # fmt: skip


class EntryNames(NamedTuple):
    """Where the rows of a manifest have their fields, by the names in the file."""

    file: str  # name of the `data_file`
    names: Mapping[str, str]  # the spec's names of other fields, where they differ
    file_names: Mapping[str, str]  # the same for the fields of the `data_file`
    partition_names: Mapping[int, str]  # names of partition values by the ids of the fields


class EntryPlan(NamedTuple):
    """A plan for reading the rows of manifests with one schema."""

    row: Node
    file: Node
    partition: Node
    names: EntryNames
    is_usual: bool  # whether the types of all values are those of the spec


def plan_entries(
    avro: AvroRows, names: EntryNames, more: dict[str, int], *, whole: bool
) -> EntryPlan:
    """Return a plan for the rows of a manifest.

    The slots of `more` fields of the `data_file` are filled, too; if `whole`, it can be decoded on
    demand. Raise FormatError if the fields that `names` has are not records.
    """
    row = _Types().make(avro.row)
    at = {name: number for number, name in enumerate(row.names)}[names.file]
    file = _with_slots(row.parts[at], FILE_SLOTS | more, names.file_names)
    partition = file.parts[_positions(file, names.file_names)["partition"]]
    if file.kind != RECORD or partition.kind != RECORD:
        raise FormatError(f"{avro.name}: an Avro file, but not a manifest or manifest list")
    row = _with_slots(row, ENTRY_SLOTS, names.names)
    row.parts[at] = file
    if whole:
        file.slot, file.is_raw = DATA_FILE, True
    partition.slot, partition.is_raw = PARTITION, True
    positions = _positions(file, names.file_names)
    usual = all(_is_usual(file, positions, name) for name in FILE_SLOTS if name in _USUAL)
    positions = _positions(row, names.names)
    usual = usual and all(_is_usual(row, positions, name) for name in ENTRY_SLOTS)
    return EntryPlan(row, file, partition, names, usual)


def _is_usual(record: Node, positions: Mapping[str, int], name: str) -> bool:
    """Return whether a field can only have values of its type in the spec."""
    kind, is_optional = _USUAL[name]
    if name not in positions:
        return is_optional
    node = record.parts[positions[name]]
    branches = node.parts if node.kind == UNION else [node]
    allowed = (kind, NULL) if is_optional else (kind,)
    return all(branch.kind in allowed for branch in branches)


def _with_slots(record: Node, slots: Mapping[str, int], names: Mapping[str, str]) -> Node:
    """Return a copy of a record whose fields with these names in the spec have slots."""
    parts = list(record.parts)
    for name, at in _positions(record, names).items():
        if name in slots:
            parts[at] = _with_slot(parts[at], slots[name])
    return Node(record.kind, parts, record.names, 0)


def _with_slot(node: Node, slot: int) -> Node:
    """Return a copy of a type with a slot; other fields may have the same type."""
    if node.kind == UNION:
        return Node(UNION, [_with_slot(branch, slot) for branch in node.parts], [], 0)
    copy = Node(node.kind, node.parts, node.names, node.size)
    copy.slot = slot
    copy.is_raw = slot in _PAIRS and copy.pairs == _PAIRS[slot]
    return copy


def _positions(record: Node, names: Mapping[str, str]) -> dict[str, int]:
    """Return the positions of a record's fields by their names in the spec; the last one counts."""
    last = {name: at for at, name in enumerate(record.names)}
    return {names.get(name, name): at for name, at in last.items()}


class _Types:
    """A maker of nodes; records that a schema repeats share one, as a schema may double them."""

    def __init__(self) -> None:
        self._records: dict[int, Node] = {}

    def make(self, avro: AvroType) -> Node:
        """Return the node of a type."""
        source = avro.source
        kind = "union" if isinstance(source, list) else source
        kind = kind if isinstance(kind, str) else source["type"]
        if kind in _KINDS:
            number, size = _KINDS[kind]
            return Node(number, [], [], size)
        if kind == "fixed":
            return Node(FIXED, [], [], source["size"])
        if kind == "enum":
            return Node(ENUM, [], list(source["symbols"]), 0)
        if kind == "record":
            return self._record(avro)
        number = {"union": UNION, "array": ARRAY, "map": MAP}[kind]
        return Node(number, [self.make(part) for part in avro.parts], [], 0)

    def _record(self, avro: AvroType) -> Node:
        key = id(avro.parts)
        if key not in self._records or not avro.parts:
            names = [field["name"] for field in avro.source["fields"]]
            parts = [self.make(part) for part in avro.parts]
            self._records[key] = Node(RECORD, parts, names, 0)
        return self._records[key]


Partitions = dict[bytes, dict[str, Any]]  # decoded partitions by their bytes; rows share them


def scan_block(
    avro: AvroRows, plan: EntryPlan, data: bytes, at: int, count: int, partitions: Partitions
) -> tuple[list[Values], int]:
    """Return the values of `count` rows that begin at an offset of a block, and the rows' end.

    The partition is decoded. Raise FormatError if a row is damaged.
    """
    try:
        rows, at = scan_rows(plan.row, plan.partition, data, at, count, SLOTS, partitions)
    except (IndexError, UnicodeDecodeError, FormatError) as error:
        kind = type(error).__name__
        raise FormatError(f"{avro.name}: rows of the Avro file are damaged ({kind})") from None
    return rows, at


def row_decoder(
    avro: AvroRows, data: bytes, plan: EntryPlan
) -> Callable[[int], tuple[Values, int]]:
    """Return a function that scans the row at an offset of a block; see `scan_block`."""
    partitions: Partitions = {}

    def scan_row(at: int) -> tuple[Values, int]:
        (values,), at = scan_block(avro, plan, data, at, 1, partitions)
        return values, at

    return scan_row


def scan_blocks(avro: AvroRows, plan: EntryPlan) -> Iterator[list[Values]]:
    """Yield the values of the rows of each block; raise FormatError if the manifest is damaged."""
    partitions: Partitions = {}
    for count, data in avro.blocks:
        rows, end = scan_block(avro, plan, data, 0, count, partitions)
        if end != len(data):
            raise FormatError(f"{avro.name}: a block of the Avro file is longer than its rows")
        yield rows


def have_usual_values(rows: list[Values], plan: EntryPlan) -> bool:
    """Return whether values of rows, which every entry has, certainly are as the spec has them."""
    return plan.is_usual and all(all_within(rows, slot, most) for slot, most in _MOST.items())


class StoredFile(Unpicklable, Mapping[str, Any]):
    """The `data_file` of a row under the spec's names; what a scan skipped is decoded on demand.

    Its key metadata is a `Secret`.
    """

    __slots__ = ("_decoded", "_plan", "_values")

    def __init__(self, values: Values, plan: EntryPlan, key: Secret[bytes] | None) -> None:
        self._values, self._plan = values, plan
        values[KEY], values[DATA_FILE] = key, Secret(values[DATA_FILE])  # tracebacks hold files
        self._decoded: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        slot = FILE_SLOTS.get(name)
        if slot is not None and (value := self._values[slot]) is not None:
            return value
        return self._all()[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a member; `default` if the file has no such field."""
        if (slot := FILE_SLOTS.get(name)) is not None and default is None:
            return self._values[slot]
        return self._all().get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return "StoredFile(...)"

    @hide_frames
    def _all(self) -> dict[str, Any]:
        if self._decoded is None:
            decoded, _ = decode(self._plan.file, self._values[DATA_FILE](), 0)
            names = self._plan.names.file_names
            decoded = {names.get(name, name): value for name, value in decoded.items()}
            if self._values[KEY] is not None:
                decoded["key_metadata"] = self._values[KEY]
            self._decoded = decoded
        return self._decoded


def find_statistic(values: Values, slot: int, column: int) -> Any:
    """Return a number or bound of a column, by its id; None if the row has none."""
    return find_value(values[slot], column, _PAIRS[slot])


def find_statistics(rows: list[Values], slot: int, column: int) -> list[Any]:
    """Return what `find_statistic` returns for each row."""
    return find_values(rows, slot, column, _PAIRS[slot])


def lacks_values(values: Values, column: int) -> bool:
    """Return whether a column, by its id, has only nulls or only NaN."""
    return is_missing(values, column, VALUE_COUNTS, _ABSENT)


_ABSENT = [NULL_COUNTS, NAN_COUNTS]
