"""Commit changes of rows: files without the removed rows replace the files that have them.

    data files that may have such rows -> the other rows, with their lineage -> new data files
    manifests that name the old files  -> new ones, in which these are deleted
    new data files -> a manifest -> a manifest list -> metadata.json

A change is made again on top of each version that another writer has committed meanwhile, so that
it also applies to rows that were added; that is what Java's serializable isolation requires, which
refuses instead. Only rewritten files that are still right are taken over from the attempt before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.format.manifest_rows.file_entries import (
    DATA,
    DELETED,
    EXISTING,
    POSITION_DELETES,
    FileEntry,
)
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import writing_keys, writing_policy
from modcrypt.iceberg.read.scan_planning import PlannedFile
from modcrypt.iceberg.read.table_version import TableVersion
from modcrypt.iceberg.write.append import added_rows, check_same_spec, count_added, open_for_writing
from modcrypt.iceberg.write.commit import Table, commit
from modcrypt.iceberg.write.data_writing import DataWriter, NewDataFile
from modcrypt.iceberg.write.manifest_writing import (
    PartitionPaths,
    Row,
    live_row,
    partition_values,
    replace_manifest,
    write_manifest,
)
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.row_selection import Candidates, ListedManifest
from modcrypt.iceberg.write.snapshot_writing import (
    add_snapshot,
    branch_head,
    count_file,
    new_snapshot_id,
    stored_size,
)


class NothingToDoError(Exception):
    """A change that would change no row."""


class Choice(Protocol):
    """The rows that a change removes, and those that it adds, as found in one version."""

    @property
    def candidates(self) -> Candidates:
        """The files that may have such rows."""

    def others(self, file: PlannedFile) -> tuple[pa.Table | None, Any]:
        """Return the rows of a file that stay, with lineage, and what is noted about the others.

        None instead of the rows if all of them stay.
        """

    def additions(self, notes: Sequence[Any]) -> pa.Table | None:
        """Return rows to add, with lineage, by the notes about all files; None without any."""


class Chooser(Protocol):
    """A function that finds the rows to change in a version of a table, on a branch."""

    def __call__(self, table: TableVersion, branch: str, /) -> Choice:
        """Return the rows."""


@dataclass
class Added:
    """Files that all attempts of a change add."""

    files: Sequence[NewDataFile]
    spec_id: int
    base: TableMetadata


@dataclass
class _Rewritten:
    """The fate of a data file: the files that replace it, or None if it stays."""

    files: Sequence[NewDataFile] | None
    note: Any


@dataclass
class RowChange:
    """The snapshot that replaces files; made again for each attempt to commit it."""

    choose: Chooser
    seen: TableMetadata
    new_files: NewFiles
    branch: str
    properties: Mapping[str, str]
    added: Added | None = None
    # What became of files in earlier attempts, by the files, their deletes and the schema.
    known: dict[Any, _Rewritten] = field(default_factory=dict, repr=False)
    # What the latest attempt has noted.
    notes: list[Any] = field(default_factory=list, repr=False)

    def next_version(self, table: TableVersion) -> TableMetadata:
        """Write the new files; return the metadata that names them.

        Raise NothingToDoError if no row changes.
        """
        check_unrestricted(table)
        metadata, by_spec = table.metadata, defaultdict[int, list[NewDataFile]](list)
        if self.added is not None:
            check_same_spec(metadata, self.added.base, self.added.spec_id)
            by_spec[self.added.spec_id] += self.added.files
        choice = self.choose(table, self.branch)
        writer = DataWriter(table, self.new_files, lineage=True)
        removed = _Removed(table)
        self.notes = []
        for file in choice.candidates.files:
            done = self._rewrite(table, writer, choice, file)
            self.notes.append(done.note)
            if done.files is not None:
                removed.locations.add(table.walk.locations.key(file.data.location))
                by_spec[writer.spec_id] += done.files
        if (more := choice.additions(self.notes)) is not None and more.num_rows:
            writer.check(more.schema)
            by_spec[writer.spec_id] += writer.write(more)
        files = {spec: files for spec, files in by_spec.items() if files}
        if not files and not removed.locations:
            raise NothingToDoError
        return self._commit_files(table, choice.candidates, files, removed)

    def _rewrite(
        self, table: TableVersion, writer: DataWriter, choice: Choice, file: PlannedFile
    ) -> _Rewritten:
        key = _identity(table, writer.spec_id, file)
        if key not in self.known:
            rows, note = choice.others(file)
            files = None if rows is None else writer.copy(rows) if rows.num_rows else []
            self.known[key] = _Rewritten(files, note)
        return self.known[key]

    def _commit_files(
        self, table: TableVersion, candidates: Candidates,
        by_spec: Mapping[int, Sequence[NewDataFile]], removed: _Removed,
    ) -> TableMetadata:  # fmt: skip
        metadata, snapshot_id = table.metadata, new_snapshot_id(table.metadata)
        parent = branch_head(metadata, self.branch)
        added = [file for files in by_spec.values() for file in files]
        self.new_files.used = [file.file["file_path"] for file in added]
        paths = [file.partition_path for file in added]
        keys = writing_keys(table, writing_policy(metadata, self.seen), paths)
        of_files = iter(keys.of_files)
        rows, new = list[Row](), self.new_files
        for spec, files in by_spec.items():
            entries = added_rows(files, [next(of_files) for _ in files], snapshot_id)
            rows.append(
                write_manifest(table, spec, entries, new, content=DATA, snapshot_id=snapshot_id)
            )
        kept = [manifest for manifest in candidates.others if _has_files(manifest)]
        for listed in candidates.manifests:
            if removed.note(listed):
                rows.append(self._write_removed(table, listed, removed, snapshot_id))
            elif _has_files(listed.manifest):
                kept.append(listed.manifest)
        summary = {
            **self.properties,
            **count_added(added),
            **{name: str(count) for name, count in removed.counts.items()},
            "changed-partition-count": str(len({*paths, *removed.partitions})),
        }
        return add_snapshot(
            table, snapshot_id, [*rows, *(manifest.row for manifest in kept)], keys.of_list, new,
            operation=_operation(added, removed), summary=summary, replaced=removed.manifests,
            new_keys=keys.entries, parent=parent, refs=(self.branch,),
        )  # fmt: skip

    def _write_removed(
        self, table: TableVersion, listed: ListedManifest, removed: _Removed, snapshot_id: int
    ) -> Row:
        """Write a manifest again, in which removed files are deleted."""
        rows = list[Row]()
        for live in listed.live:
            members: dict[str, Any] = {"status": EXISTING}
            if removed.has(live.entry):  # without the key: only the older snapshots keep it
                members = {"status": DELETED, "snapshot_id": snapshot_id, "key_metadata": None}
            rows.append(live_row(table.metadata, live, **members))
        return replace_manifest(table, listed.manifest, rows, self.new_files, snapshot_id)


@dataclass
class _Removed:
    """The files that a change removes: data files, and deletes of nothing but their rows."""

    table: TableVersion
    locations: set[str] = field(default_factory=set)  # keys of the data files' locations
    partitions: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    manifests: int = 0

    def has(self, entry: FileEntry) -> bool:
        location = entry.location
        if entry.content != DATA:
            target = entry.file.get("referenced_data_file")
            if entry.content != POSITION_DELETES or target is None:
                return False
            location = target
        return self.table.walk.locations.key(location) in self.locations

    def note(self, listed: ListedManifest) -> bool:
        """Count the files of a manifest that are removed; return whether there are any."""
        gone = [live.entry for live in listed.live if self.has(live.entry)]
        if not gone:
            return False
        self.manifests += 1
        metadata, spec_id = self.table.metadata, listed.manifest.spec_id
        paths = PartitionPaths(metadata, spec_id)
        for entry in gone:
            self.partitions.add(paths.path(partition_values(metadata, entry)))
            count_file(self.counts, entry, "deleted", "removed", stored_size(entry))
            if entry.content != DATA:
                is_vector = entry.file_format == "PUFFIN"
                self.counts["removed-dvs" if is_vector else "removed-position-delete-files"] += 1
        return True


def change_rows(
    table: Table, choose: Chooser, *, branch: str, properties: Mapping[str, str], data: Any = None
) -> tuple[Table, list[Any]]:
    """Change rows of a branch; return the table at its new version, and notes about its files.

    Args:
        table: Any version of the table; the change applies to its current version.
        choose: Function that finds the rows that are removed, and others to add.
        branch: Name of the branch; one that does not exist begins at the current snapshot.
        properties: Further members of the snapshot's summary.

    Raises:
        UnsupportedFormatError: Read restrictions apply to the table.
        TypeError, ValueError, ModcryptError, OSError: As `append`.
    """
    current = open_for_writing(table, branch)
    check_unrestricted(current)
    try:
        with NewFiles(current.walk.locations) as files:
            change = RowChange(choose, table.metadata, files, branch, properties)
            if data is not None:
                writer = DataWriter(current, files)
                writer.check(data.schema)
                written = writer.write(data)
                change.added = Added(written, writer.spec_id, current.metadata)
            return commit(current, change.next_version, files=files), change.notes
    except NothingToDoError:
        return current.refreshed(), change.notes


def check_unrestricted(table: TableVersion) -> None:
    """Raise UnsupportedFormatError if a reader may not see all rows and values of a table."""
    # What a change removes or takes over would tell what is hidden, and could destroy it.
    if table.read_restrictions:
        raise UnsupportedFormatError(
            f"{table.metadata.name}: read restrictions apply to the table, so its rows can be "
            "appended to, but not changed or deleted"
        )


def _identity(table: TableVersion, spec_id: int, file: PlannedFile) -> Any:
    """Return the facts that decide how a file is rewritten; equal facts give equal files."""
    equality = (deletes for group in file.equality for deletes in group.files)
    deletes = [
        (delete.location, delete.file.get("content_offset"), delete.sequence_number)
        for delete in (*file.deletes, *equality)
    ]
    schema = table.metadata.document.get("current-schema-id")
    number = file.data.sequence_number
    return file.data.location, number, file.first_row_id, tuple(deletes), schema, spec_id


def _has_files(manifest: ManifestFile) -> bool:
    """Return whether a manifest has live files; Java leaves out others of new snapshots, too."""
    row = manifest.row
    return row.get("added_files_count") != 0 or row.get("existing_files_count") != 0


def _operation(added: Sequence[NewDataFile], removed: _Removed) -> str:
    """Return the operation of a snapshot, as Java's OverwriteFiles."""
    if not removed.locations:
        return "append"
    return "overwrite" if added else "delete"
