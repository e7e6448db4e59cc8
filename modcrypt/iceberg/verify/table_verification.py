"""Verify a whole table: every tag of every file that its snapshots reach, and all of its keys.

    metadata.json -> KEKs -> key service
      -> manifest lists -> manifests -> data and delete files, each once
      -> keys: used, unused, used twice      -> the folder: orphans, older metadata.json files

A fault ends nothing: what comes after it is looked at as well, and what lies beneath it is told as
not looked at. What no reader can notice is told, too: nothing signs metadata.json, so that only
who remembers the table's last state can tell an older one (`at_least` of `open_table`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.read.inventory import (
    Inventory,
    Keys,
    Mark,
    ReachedList,
    ReachedManifest,
    in_threads,
    take_inventory,
)
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.verify.file_checks import FileCheck, check_file
from modcrypt.iceberg.verify.key_checks import (
    KeyChecks,
    check_keks,
    checked_keks,
    compare_marks,
    tell_unused,
    uses_of,
)
from modcrypt.iceberg.verify.manifest_checks import check_list, check_manifest
from modcrypt.iceberg.verify.orphan_files import check_strays
from modcrypt.iceberg.verify.table_findings import (
    UNSIGNED,
    CheckedTableFile,
    TableReport,
    TableVerification,
)
from modcrypt.io.buffers import check_threads, usable_cores

__all__ = ["verify_table"]

MAX_JOBS = 8
"""Files that are verified at the same time, by default."""


def verify_table(
    table: IcebergTable,
    *,
    snapshots: Sequence[int | str] | None = None,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> TableVerification:
    """Check a table as far as its keys allow, without decoding a value of it, fault after fault.

    Checked are every tag of manifest lists, manifests, data and delete files, each once; lengths
    against what names a file; counts of manifests, rows, and deletion vectors with their
    checksums; that a manifest list is that of its snapshot; that nothing is in plaintext; KEKs,
    their master keys and ages; keys that are used twice, or not at all; and what else is in the
    table's folder.

    Args:
        table: the version to be checked, as `open_table` gave it.
        snapshots: ids of snapshots, or names of branches or tags; None for all. Only with all of
            them can orphans be told.
        jobs: files looked at at the same time; None chooses.
        progress: called now and then, in the calling thread, with the bytes checked so far.

    Returns:
        What was found. A refusal of the key service is a warning: it says nothing of the table.

    Raises:
        ValueError: there is no such snapshot, or `jobs` is below 1.
        ModcryptError, OSError: from the key store.
    """
    check_threads(jobs)
    wanted = _wanted(table, snapshots)
    jobs = min(usable_cores(), MAX_JOBS) if jobs is None else jobs
    return _Run(table, wanted, snapshots is None, jobs, progress).result()


def _wanted(table: IcebergTable, snapshots: Sequence[int | str] | None) -> list[Snapshot]:
    if snapshots is None:
        return list(table.metadata.snapshots)
    found = (table.snapshot(one) for one in snapshots)
    return list({one.id: one for one in found if one is not None}.values())


class _Run:
    """One verification."""

    def __init__(
        self,
        table: IcebergTable,
        snapshots: list[Snapshot],
        all_of_them: bool,
        jobs: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._table, self._metadata = table, table.metadata
        self._snapshots, self._all, self._jobs = snapshots, all_of_them, jobs
        self._progress = progress
        self._done = 0
        self._report = TableReport()
        self._files: list[CheckedTableFile] = []
        self._marks: list[tuple[str, Mark]] = []

    def result(self) -> TableVerification:
        resolver = self._table.walk.resolver
        _check_references(self._metadata, self._report)
        _tell_open(self._table, self._report)
        checks = check_keks(self._metadata, resolver, self._report, self._jobs)
        keys = Keys(self._table.walk, checks.failed)
        inventory = take_inventory(keys, self._snapshots, self._jobs, self._passed)
        for one in inventory.lists:
            self._take_list(one, keys, checks)
        for manifest in inventory.manifests:
            self._take_manifest(manifest)
        self._check_files(keys, inventory)
        compare_marks(self._marks, checks, self._report)
        whole = self._all and inventory.is_whole
        uses = uses_of(self._metadata, inventory, whole=whole)
        tell_unused(uses, self._report, whole=whole)
        orphans = None
        if self._all:
            orphans = check_strays(self._table, inventory, self._report, self._jobs)
        else:
            self._report.note("snapshots", None, "not all snapshots were looked at")
        return TableVerification(
            name=self._metadata.name,
            location=self._metadata.location,
            uuid=self._metadata.uuid,
            master_key_id=self._metadata.master_key_id,
            snapshots=tuple(one.id for one in self._snapshots),
            all_snapshots=self._all,
            files=tuple(self._files),
            keks=checked_keks(checks, uses, self._metadata, resolver),
            unused_keys=uses.unused,
            orphans=orphans,
            findings=self._report.closed(),
            not_authenticated=self._report.unauthenticated(),
        )

    def _passed(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done)

    # --- manifest lists and manifests -----------------------------------------------------------

    def _take_list(self, one: ReachedList, keys: Keys, checks: KeyChecks) -> None:
        report = TableReport()
        if one.error is not None:
            if one.key is not None and one.key.encrypted_by in checks.failed:  # which was told
                report.note("file", one.location, f"its key is not to be had: {one.error}")
            else:
                report.failed(one.error, one.location, lost=_is_lost(one, keys))
            ids = ", ".join(str(snapshot.id) for snapshot in one.snapshots)
            report.note("snapshot", one.location, f"the files of snapshot {ids} are not known")
        else:
            report.block_length(one.block_length, one.location)
            check_list(one, report)
        self._keep(one.location, one.mark, report, failed=one.error is not None)
        self._files.append(
            CheckedTableFile(
                kind="manifest list",
                location=one.location,
                size=one.size,
                records=None,
                encrypted=one.mark is not None,
                tags=one.blocks,
                ok=report.faults == 0 and one.error is None,
            )
        )

    def _take_manifest(self, one: ReachedManifest) -> None:
        report, manifest = TableReport(), one.manifest
        if one.error is not None:
            report.failed(one.error, manifest.location)
            report.note("manifest", manifest.location, "the files that it names are not known")
        else:
            report.block_length(one.block_length, manifest.location)
            check_manifest(one, self._metadata, report)
        if one.contradicted:
            report.tell(
                "integrity",
                "two manifest lists give it different lengths or keys",
                manifest.location,
            )
        self._keep(manifest.location, one.mark, report, failed=one.error is not None)
        self._files.append(
            CheckedTableFile(
                kind=one.kind,
                location=manifest.location,
                size=manifest.length,
                records=None,
                encrypted=manifest.key_metadata is not None,
                tags=one.blocks,
                ok=report.faults == 0 and one.error is None,
            )
        )

    def _keep(self, location: str, mark: Mark | None, report: TableReport, *, failed: bool) -> None:
        """Take over what was found of a manifest list or manifest."""
        if mark is not None:
            self._marks.append((location, mark))
        elif not failed:
            report.plain(location, expected=not self._metadata.is_encrypted)
        self._report.merge(report)

    # --- data and delete files ------------------------------------------------------------------

    def _check_files(self, keys: Keys, inventory: Inventory) -> None:
        alone = len(inventory.files) == 1
        jobs, threads = (1, None) if alone else (self._jobs, 1)
        checks: Iterator[FileCheck] = in_threads(
            lambda one: check_file(keys, one, threads), inventory.files, jobs
        )
        for check in checks:
            self._report.merge(check.report)
            self._files.append(check.result())
            if check.mark is not None:
                self._marks.append((check.reached.entry.location, check.mark))
            self._passed(check.reached.entry.size)


def _is_lost(one: ReachedList, keys: Keys) -> bool:
    """Whether the table itself lacks the key of a manifest list."""
    if one.snapshots[0].key_id is not None and one.key is None:
        return True
    return one.key is not None and keys.is_lost(one.key.encrypted_by, single=one.is_single)


# --- what the parts say of each other ------------------------------------------------------------


def _check_references(metadata: TableMetadata, report: TableReport) -> None:
    """Say which snapshots are named and not there."""
    try:
        _ = metadata.current
    except FormatError as error:
        report.tell(error.word, str(error))
    known = Counter(one.id for one in metadata.snapshots)
    for snapshot_id, count in known.items():
        if count > 1:
            report.tell("format", f"{count} snapshots have the id {snapshot_id}")
    refs = metadata.document.get("refs")
    for name, ref in refs.items() if isinstance(refs, dict) else ():
        named = ref.get("snapshot-id") if isinstance(ref, dict) else None
        if not isinstance(named, int) or named not in known:
            report.tell("format", f"the branch or tag {name!r} is of no snapshot that there is")
    for one in metadata.snapshots:
        if one.sequence_number > metadata.last_sequence_number:
            report.tell(
                "integrity",
                f"snapshot {one.id} has the sequence number {one.sequence_number}, the table's "
                f"last one is {metadata.last_sequence_number}",
            )


def _tell_open(table: IcebergTable, report: TableReport) -> None:
    """Say what nothing vouches for."""
    why = (
        "nothing signs metadata.json: who can write it can leave out snapshots, and change "
        "names and default values of columns"
    )
    if table.expected.at_least is None:
        why += ", or put an older state back; open_table(at_least=...) refuses that"
    report.note(UNSIGNED, table.metadata.name, why)
