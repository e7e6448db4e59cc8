"""Entries of manifests: what plans and expiries need of a row, and the rest of it on demand.

A table may have a million of them, so mypyc compiles this module from the same source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from modcrypt.iceberg.format.manifest_rows.entry_plan import (
    CONTENT,
    FILE_SEQUENCE,
    FORMAT,
    KEY,
    LENGTH,
    OFFSET,
    PARTITION,
    PATH,
    RECORDS,
    SEQUENCE,
    SIZE,
    SNAPSHOT,
    STATUS,
    TARGET,
    EntryPlan,
    StoredFile,
)
from modcrypt.keys import Secret

if TYPE_CHECKING:
    from mypy_extensions import i64

Numbers: TypeAlias = tuple[int | None, int | None, int | None]
"""The snapshot id, sequence number and file sequence number of an entry."""

EXISTING: Final = 0
ADDED: Final = 1
DELETED: Final = 2  # status of an entry
DATA: Final = 0
POSITION_DELETES: Final = 1
EQUALITY_DELETES: Final = 2  # content of a file
_FORMATS: Final = {text: text for text in ("PARQUET", "AVRO", "ORC", "PUFFIN")}

_status: Final[i64] = STATUS  # looking them up for each row takes as long as the rest
_snapshot: Final[i64] = SNAPSHOT
_sequence: Final[i64] = SEQUENCE
_file_sequence: Final[i64] = FILE_SEQUENCE
_content: Final[i64] = CONTENT
_path: Final[i64] = PATH
_format: Final[i64] = FORMAT
_records: Final[i64] = RECORDS
_size: Final[i64] = SIZE
_key: Final[i64] = KEY
_partition: Final[i64] = PARTITION
_target: Final[i64] = TARGET
_offset: Final[i64] = OFFSET
_length: Final[i64] = LENGTH


class FileEntry:
    """A row of a manifest: a data file or a delete file."""

    __slots__ = (
        "_file", "_key", "_plan", "_row", "content", "file_format", "file_sequence_number",
        "location", "partition", "partition_names", "record_count", "sequence_number", "size",
        "snapshot_id", "spec_id", "status",
    )  # fmt: skip

    def __init__(
        self, values: list[Any], plan: EntryPlan, spec_id: int, numbers: Numbers,
        file: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Make the entry of a row.

        It has the `numbers` of its commit. `file` is what it keeps of the `data_file`, by default
        all of it.
        """
        self.status: int = values[_status]  # status of the entry: 0 existing, 1 added, 2 deleted
        # Ids of the commit that added the file, inherited if the row leaves them open.
        self.snapshot_id: int | None = numbers[0]
        self.sequence_number: int | None = numbers[1]
        self.file_sequence_number: int | None = numbers[2]
        # Kind of the file: 0 data, 1 position deletes (in Puffin: a deletion vector), 2 equality
        # deletes.
        self.content: int = values[_content] or DATA
        self.location: str = values[_path]
        form: str = values[_format]
        # Format of the file: `PARQUET`, `AVRO`, `ORC` or `PUFFIN`.
        self.file_format: str = _FORMATS.get(form) or form.upper()
        self.spec_id: int = spec_id
        self.record_count: int = values[_records]  # number of rows, or of deleted rows
        self.size: int = values[_size]  # size of the file as stored, in bytes
        key = values[_key]
        self._key: Secret[bytes] | None = None if key is None else Secret(key)
        # The partition values by name, as Avro has them: a date is a number of days.
        self.partition: Mapping[str, Any] = values[_partition]
        # Names in `partition`, by the ids of the partition fields: names change, and Avro cannot
        # represent all of them.
        self.partition_names: Mapping[int, str] = plan.names.partition_names
        self._file: Mapping[str, Any] | None = file
        self._row: Secret[list[Any]] | None = Secret(values) if file is None else None
        self._plan: EntryPlan = plan

    def __repr__(self) -> str:
        return f"FileEntry(status={self.status}, location={self.location!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a FileEntry holds a key and can't be pickled or copied")

    @property
    def key_metadata(self) -> bytes | None:
        """Key metadata that opens the file, a secret unless it is encrypted; None for plaintext.

        Keep it out of local variables, which tracebacks hold.
        """
        return None if self._key is None else self._key()

    @property
    def file(self) -> Mapping[str, Any]:
        """The `data_file`, under the spec's names; its key metadata is a `Secret`.

        It is complete, or what the entry keeps of it: a table may have a million entries.
        """
        if self._file is None:
            assert self._row is not None
            self._file = StoredFile(self._row(), self._plan, self._key)
            self._row = None
        return self._file

    @property
    def is_live(self) -> bool:
        """True if the file belongs to the snapshot."""
        return self.status != DELETED

    @property
    def partition_by_id(self) -> Mapping[int, Any]:
        """The partition values by the ids of the partition fields."""
        values = self.partition
        return {id_: values.get(name) for id_, name in self.partition_names.items()}

    def shorten(self, partition: Mapping[str, Any]) -> FileEntry:
        """Drop all members of the `data_file`; return the entry, which has equal partition values.

        Entries of one partition may share them.
        """
        self._file, self._row = _NO_MEMBERS, None
        self.partition = partition
        return self


_NO_MEMBERS: Final[dict[str, Any]] = {}


def make_entry(
    plan: EntryPlan, spec_id: int, inherited: Sequence[Numbers], values: list[Any],
    file: Mapping[str, Any] | None = None,
) -> FileEntry:  # fmt: skip
    """Return the entry of a row.

    By its status, it inherits the numbers that it leaves open. For `file` see `FileEntry`.
    """
    numbers = inherited[values[_status]]
    snapshot, sequence = values[_snapshot], values[_sequence]
    file_sequence = values[_file_sequence]
    snapshot = numbers[0] if snapshot is None else snapshot
    sequence = numbers[1] if sequence is None else sequence
    file_sequence = numbers[2] if file_sequence is None else file_sequence
    return FileEntry(values, plan, spec_id, (snapshot, sequence, file_sequence), file)


def make_short_entry(
    plan: EntryPlan, spec_id: int, inherited: Sequence[Numbers], values: list[Any]
) -> FileEntry:
    """Return the entry of a row, whose `file` only describes a deletion vector."""
    file = _NO_VECTOR
    target, offset, length = values[_target], values[_offset], values[_length]
    if target or offset or length:
        file = dict(zip(_VECTOR, (target, offset, length), strict=True))
    return make_entry(plan, spec_id, inherited, values, file)


_VECTOR: Final = ("referenced_data_file", "content_offset", "content_size_in_bytes")
_NO_VECTOR: Final[dict[str, Any]] = dict.fromkeys(_VECTOR)


class ManifestEntries:
    """The rows of a manifest, which are checked; they become entries when they are iterated.

    An expiry of a table with a million files needs no entries.
    """

    __slots__ = ("_make", "_rows")

    def __init__(
        self, rows: list[list[Any]], make: Callable[[list[Any]], FileEntry] | None = None
    ) -> None:
        """Take the values of rows, and the function that makes their entries."""
        self._rows: Secret[list[list[Any]]] = Secret(rows)
        self._make: Any = make

    def __len__(self) -> int:
        return len(self._rows())

    def __iter__(self) -> Iterator[FileEntry]:
        # Tracebacks hold the variables of a generator, but not those of `map`.
        return map(self._make, self._rows())

    def counts(self) -> dict[int, tuple[int, int]]:
        """Return the numbers of files and of rows by status."""
        files, records = [0, 0, 0], [0, 0, 0]
        for values in self._rows():
            status: int = values[_status]
            count: int = values[_records]
            files[status] += 1
            records[status] += count
        return {
            status: (files[status], records[status]) for status in range(3) if files[status] > 0
        }

    def live_locations(self) -> list[str]:
        """Return the locations of the files that belong to the snapshot."""
        return [values[_path] for values in self._rows() if values[_status] != DELETED]

    def live_with_keys(self, beginnings: tuple[bytes, ...]) -> Iterator[FileEntry]:
        """Return the entries of these files whose key metadata has one of some beginnings."""
        rows = [
            values
            for values in self._rows()
            if (values[_key] or b"").startswith(beginnings) and values[_status] != DELETED
        ]
        return map(self._make, rows)
