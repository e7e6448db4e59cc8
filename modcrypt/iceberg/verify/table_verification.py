"""Verify a whole table: every tag of every file that its snapshots reach, and all of its keys.

    metadata.json -> KEKs -> key service
      -> manifest lists -> manifests -> data and delete files, each once
      -> keys: used, unused, used twice      -> the folder: orphans, older metadata.json files

Verification continues after a fault; files that only a faulty file leads to are reported as not
checked. Limits of the format are reported too: the format does not sign metadata.json, so only a
seal (`signed_by` of `open_table`), or a caller who remembers the table's last state (`at_least`),
detects an older one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.read.inventory import (
    Failure,
    Inventory,
    Keys,
    Reached,
    ReachedList,
    ReachedManifest,
    ReachedTable,
    take_inventory,
)
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.verify.file_checks import check_file
from modcrypt.iceberg.verify.key_checks import KeyChecks
from modcrypt.iceberg.verify.manifest_checks import check_table
from modcrypt.iceberg.verify.orphan_files import check_orphans
from modcrypt.iceberg.verify.table_findings import (
    UNSIGNED,
    CheckedKek,
    CheckedTableFile,
    add_up,
    choose_jobs,
)
from modcrypt.iceberg.verify.table_report import TableReport
from modcrypt.iceberg.verify.table_results import TableVerification
from modcrypt.io.threads import in_threads


def verify_table(
    table: IcebergTable,
    *,
    snapshots: Sequence[int | str] | None = None,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> TableVerification:
    """Check a table as far as its keys are available, without decoding values; collect all faults.

    The check covers every tag of manifest lists, manifests, data and delete files, each once;
    lengths of files; counts of manifests, rows and deletion vectors, with their checksums; whether
    a manifest list belongs to its snapshot; plaintext files; KEKs, their master keys and ages;
    reused and unused keys; and other files in the table's folder.

    Args:
        table: The version to check, as `open_table` returned it.
        snapshots: Ids of snapshots, or names of branches or tags; None for all. Orphans are
            determined only with all snapshots.
        jobs: Number of files checked concurrently; None selects a default.
        progress: Function called from time to time, in the calling thread, with the number of bytes
            checked so far.

    Returns:
        The findings. A refusal of the key service is a warning: it is not a fault of the table.

    Raises:
        ValueError: A snapshot does not exist, or `jobs` is below 1.
        ModcryptError, OSError: The key store failed.
    """
    jobs, wanted = choose_jobs(jobs), list(table.metadata.snapshots)
    if snapshots is not None:
        selected = filter(None, map(table.snapshot, snapshots))
        wanted = list({snapshot.id: snapshot for snapshot in selected}.values())
    return _Run(table, wanted, snapshots is None, jobs, add_up(progress)).result()


@dataclass
class _Run:
    """One verification; each step needs those before it.

    1. References within metadata.json, which nothing signs.
    2. KEKs. Each is unwrapped once, so that an unavailable one is reported here, and not again for
       each file that needs it.
    3. Manifest lists and manifests, from which the inventory follows.
    4. Data and delete files, each once. Then the marks of all data keys are known and compared.
    5. Uses of keys. They are complete only if all snapshots were checked and every list and
       manifest could be read. Otherwise a key that seems unused may be in use.
    6. The folder of the table. An orphan is what nothing in a complete inventory names.
    """

    table: IcebergTable
    snapshots: list[Snapshot]
    is_all: bool
    jobs: int
    progress: Callable[[int], None]
    report: TableReport = field(default_factory=TableReport)
    files: list[CheckedTableFile] = field(default_factory=list)

    def result(self) -> TableVerification:
        metadata = self.table.metadata
        _check_references(metadata, self.report)
        _note_unsigned(self.table, self.report)
        checks = KeyChecks(metadata, self.table.resolver, self.report)
        checks.check_keks(self.jobs)
        keys = Keys(self.table.walk, checks.failed)
        inventory = take_inventory(keys, self.snapshots, self.jobs, self.progress)
        for table in inventory.tables:
            self._check_table(table, keys, checks)
        self._check_files(keys, inventory)
        checks.compare_marks(inventory)
        whole = self.is_all and inventory.is_whole
        checks.count_uses(inventory, whole=whole)
        checks.report_unused(whole=whole)
        checks.report_worn()
        orphans = None
        if self.is_all:
            orphans = check_orphans(self.table, inventory, self.report, self.jobs)
        else:
            self.report.add_note("snapshots", None, "not all snapshots were checked")
        return TableVerification(
            name=metadata.name,
            location=metadata.location,
            uuid=metadata.uuid,
            master_key_id=metadata.master_key_id,
            snapshots=tuple(snapshot.id for snapshot in self.snapshots),
            all_snapshots=self.is_all,
            files=tuple(self.files),
            keks=tuple(
                CheckedKek(
                    **facts, manifest_lists=checks.lists[key.id], opened=checks.opened.get(key.id)
                )
                for key, facts in checks.describe_keks()
            ),
            unused_keys=checks.unused,
            orphans=orphans,
            findings=self.report.all_findings(),
            not_authenticated=tuple(self.report.notes.values()),
        )

    def _check_table(self, reached: ReachedTable, keys: Keys, checks: KeyChecks) -> None:
        report, location = TableReport(), reached.location
        if reached.error is not None:
            if isinstance(reached, ReachedList):
                _report_unread_list(reached, reached.error, keys, checks, report)
            else:
                report.add_failure(reached.error, location)
                report.add_note("manifest", location, "the files that it names are unknown")
        else:
            report.check_block_length(reached.block_length, location)
            check_table(reached, self.table.metadata, report)
        if isinstance(reached, ReachedManifest) and reached.contradicted:
            message = "two manifest lists have different lengths or keys for it"
            report.note("integrity", message, location)
        if reached.mark is None and reached.error is None:
            report.add_plaintext(location, expected=not self.table.metadata.is_encrypted)
        self._add_result(reached, report, None)

    def _add_result(self, reached: Reached, report: TableReport, records: int | None) -> None:
        self.report.merge(report, "the file")
        self.files.append(
            CheckedTableFile(
                kind=reached.kind, location=reached.location, size=reached.size, records=records,
                encrypted=reached.encrypted, tags=reached.tags,
                ok=report.faults == 0 and reached.error is None,
            )
        )  # fmt: skip

    def _check_files(self, keys: Keys, inventory: Inventory) -> None:
        alone = len(inventory.files) == 1
        jobs, threads = (1, None) if alone else (self.jobs, 1)
        files = keys.fetch_files(inventory.files)
        reports = in_threads(lambda file: (file, check_file(keys, file, threads)), files, jobs)
        for file, report in reports:
            self._add_result(file, report, file.records)
            self.progress(file.entry.size)


def _report_unread_list(
    reached: ReachedList, error: Failure, keys: Keys, checks: KeyChecks, report: TableReport
) -> None:
    key, location = reached.key, reached.location
    if key is not None and key.encrypted_by in checks.failed:  # already reported
        report.add_note("file", location, f"its key is not available: {error}")
    else:
        named = key is not None or reached.snapshots[0].key_id is not None
        report.add_failure(error, location, lost=named and keys.is_lost(reached.encrypted_by))
    ids = ", ".join(str(snapshot.id) for snapshot in reached.snapshots)
    report.add_note("snapshot", location, f"the files of snapshot {ids} are unknown")


def _check_references(metadata: TableMetadata, report: TableReport) -> None:
    """Report snapshots that are named but do not exist, and inconsistent ids and numbers."""
    try:
        _ = metadata.current
    except FormatError as error:
        report.note(error.word, str(error))
    known = Counter(snapshot.id for snapshot in metadata.snapshots)
    for snapshot_id, count in known.items():
        if count > 1:
            report.note("format", f"{count} snapshots have the id {snapshot_id}")
    refs = metadata.document.get("refs")
    for name, ref in refs.items() if isinstance(refs, dict) else ():
        named = ref.get("snapshot-id") if isinstance(ref, dict) else None
        if not isinstance(named, int) or named not in known:
            report.note(
                "format", f"the branch or tag {name!r} names a snapshot that does not exist"
            )
    for item in metadata.snapshots:
        if item.sequence_number > metadata.last_sequence_number:
            report.note(
                "integrity",
                f"snapshot {item.id} has the sequence number {item.sequence_number}, but the "
                f"table's last one is {metadata.last_sequence_number}",
            )


def _note_unsigned(table: IcebergTable, report: TableReport) -> None:
    """Add metadata.json to the unauthenticated parts, unless a writer's seal was checked."""
    if table.expected.signed_by:
        return
    why = (
        "metadata.json is not signed: anyone who can write it can remove snapshots, and change "
        "names and default values of columns"
    )
    if table.expected.at_least is None:
        why += ", or restore an older state; open_table(at_least=...) rejects that"
    report.add_note(UNSIGNED, table.metadata.name, why)
