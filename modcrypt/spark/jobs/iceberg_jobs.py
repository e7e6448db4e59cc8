"""Key rotation for encrypted Iceberg tables, with files rewritten by Spark's executors.

    driver      encrypts the key metadata of each file under a KEK for this job only, and sends it
                with the file's location and the KEK, wrapped by its master key
    executors   unwrap the KEK once per process; rewrite each file under a key of its own; return
                the key, encrypted under the same KEK
    driver      writes the manifests that name these files, and commits, like `rotate_table`
                without Spark

The files are data files, for new data keys; or manifests with encrypted key metadata, for new KEKs.
For manifests, executors also unwrap the table's KEKs, or each data key in single wrapping.

So Spark never pickles, logs or stores a plain key: without access to the key service, this data is
useless to an attacker. Executors read no table metadata and only follow locations into the table's
folders.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from modcrypt.errors import ERRORS_BY_WORD, IntegrityError
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.rotate.file_rekeying import RekeyedFile, RekeyItem, Rewrite, make_job
from modcrypt.iceberg.rotate.rotation_report import TableRotation
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.jobs.engine import Job, run_job
from modcrypt.jobs.failures import describe
from modcrypt.jobs.listing import MakeFilesystem
from modcrypt.kms.proof import Prove
from modcrypt.kms.settings import Settings
from modcrypt.runtime.fork_safety import fork_safe
from modcrypt.spark.jobs.driver import JobOptions, check_settings, run_tasks
from modcrypt.spark.jobs.file_work import IN_STORE, ON_DISK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_PER_TASK, BYTES_PER_TASK = 64, 1 << 30

_TEXT, _LONG, _BYTES = pa.string(), pa.int64(), pa.binary()
_ITEMS = pa.schema(
    [
        ("location", _TEXT), ("file_format", _TEXT), ("size", _LONG),
        ("encrypted", _BYTES),
    ]
)  # fmt: skip
_DONE = pa.schema(
    [
        ("old", _TEXT), ("location", _TEXT), ("size", _LONG), ("encrypted", _BYTES),
        ("word", _TEXT), ("message", _TEXT), ("worker", _TEXT),
    ]
)  # fmt: skip


def rotate_table_deks(
    spark: SparkSession,
    table: IcebergTable,
    settings: Settings,
    *,
    dry_run: bool = False,
    encrypt_plaintext: bool = False,
    prove: Prove = "first",
    **options: Unpack[JobOptions],
) -> TableRotation:
    """Re-encrypt the files of a table's branches and tags: `rotate_table(table, "dek")` on Spark.

    Args:
        spark: Session whose executors write the data files; this process writes deletes, manifests
            and the commit.
        table: Table returned by `open_table` or `load_table` in this process.
        settings: Reference to the table's key service (`Settings(kms=...)`), which executors open.
        dry_run: Whether to report only what would be done.
        encrypt_plaintext: Whether to also encrypt files in plaintext, as in `rotate_table`; this
            process does so.
        prove: Which new wraps are proved, as in `rotate_table`.
        options: Further options, as in `JobOptions`; the filesystem is that of the table.

    Raises:
        ModcryptError, OSError: As in `rotate_table`; and the first error of an executor. The table
            is then not changed.
        TypeError: `settings` is not `Settings`.
    """
    check_settings(settings)
    run = partial(_run_on_spark, spark, settings, options)
    return rotate_table(
        table, "dek", dry_run=dry_run, encrypt_plaintext=encrypt_plaintext, run=run, prove=prove
    )


def rotate_table_keks(
    spark: SparkSession,
    table: IcebergTable,
    settings: Settings,
    *,
    new_master_key_id: str | None = None,
    dry_run: bool = False,
    prove: Prove = "first",
    **options: Unpack[JobOptions],
) -> TableRotation:
    """Replace the KEKs of a table by new ones: `rotate_table(table, "kek")` on Spark.

    Executors write manifests whose key metadata is encrypted: in single wrapping, or with KEKs per
    partition or file. Other tables give executors nothing to do.

    Args:
        spark: Session whose executors write the manifests; this process writes manifest lists and
            the commit.
        table, settings, dry_run, prove, options: As in `rotate_table_deks`.
        new_master_key_id: Id of the new master key, as in `rotate_table`.

    Raises:
        ModcryptError, OSError, TypeError: As in `rotate_table_deks`.
    """
    check_settings(settings)
    run = partial(_run_on_spark, spark, settings, options)
    return rotate_table(
        table, "kek", new_master_key_id=new_master_key_id, dry_run=dry_run, rewrap=run, prove=prove
    )


def _run_on_spark(
    spark: SparkSession, settings: Settings, options: JobOptions,
    table: IcebergTable, job: IcebergKey, rewrite: Rewrite, items: Sequence[RekeyItem],
) -> list[RekeyedFile]:  # fmt: skip
    """Have Spark do the work; Spark sends the items as rows, not within a closure.

    Raise the error of the first file that failed.
    """
    filesystem = options.get("filesystem")
    folders = {
        prefix: place.full_name if filesystem is None else place.path
        for prefix, place in table.walk.locations.folders.items()
    }
    work = TableRekeyJob(
        settings=settings, job=job, rewrite=rewrite, folders=folders, filesystem=filesystem
    )
    columns = {
        field.name: pa.array([getattr(item, field.name) for item in items], field.type)
        for field in _ITEMS
    }
    frame = run_tasks(
        spark, columns, work.run, _DONE, options.get("files_per_task", FILES_PER_TASK),
        options.get("bytes_per_task", BYTES_PER_TASK),
    )  # fmt: skip
    rows = frame.collect()
    for row in rows:
        if row["word"] is not None:
            raise _make_error(row["word"], row["message"])
    return [
        RekeyedFile(row["old"], row["location"], row["size"], bytes(row["encrypted"]))
        for row in rows
    ]


def _make_error(code: str, message: str) -> Exception:
    """Return an exception for an error on an executor, of the type of its error code."""
    if code == "tag":  # its class needs a module's address, which is only in the message
        return IntegrityError(message)
    if code in ERRORS_BY_WORD:
        return ERRORS_BY_WORD[code](message)
    return ValueError(message) if code == "usage" else OSError(errno.EIO, message)


# --- on an executor ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TableRekeyJob:
    """The work of a task; picklable, it holds no key except the job's KEK, wrapped."""

    settings: Settings
    job: IcebergKey
    rewrite: Rewrite
    # Mapping of location prefixes to the paths or URLs that they stand for.
    folders: Mapping[str, str] = field(repr=False)
    filesystem: MakeFilesystem | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each file: the new file, or the error."""
        worker = f"{socket.gethostname()}/{os.getpid()}"
        for batch in batches:
            items = [
                RekeyItem(row["location"], row["file_format"], row["size"], row["encrypted"])
                for row in batch.to_pylist()
            ]
            rows = [{**row, "worker": worker} for row in self._make_rows(items)]
            yield pa.RecordBatch.from_pylist(rows, _DONE)

    def _make_rows(self, items: Sequence[RekeyItem]) -> list[dict[str, Any]]:
        try:
            resolver = _get_resolver(self.settings, self.job)
            filesystem = None if self.filesystem is None else self.filesystem()
            places = {old: Place(*locate(new, filesystem)) for old, new in self.folders.items()}
            locations = Locations(places)
            job = make_job(self.rewrite, locations, self.job, resolver)
        except Exception as error:  # keys or stores are not available on this executor
            return [_make_failed_row(item, error) for item in items]

        in_store = any(place.filesystem is not None for place in places.values())
        rows = Job(lambda item: asdict(job.process(item)), _make_failed_row)
        return list(run_job(rows, items, jobs=IN_STORE if in_store else ON_DISK))


def _make_failed_row(item: RekeyItem, error: Exception) -> dict[str, Any]:
    failure = describe(error)
    text = failure.message
    if item.location not in text:
        text = f"{item.location}: {text}"
    return {"old": item.location, "word": failure.word, "message": text}


# By process id, as resolvers must not be used after a fork.
_resolvers: dict[tuple[int, str], KeyResolver] = {}
_resolvers_lock = fork_safe(threading.Lock())


def _get_resolver(settings: Settings, job: IcebergKey) -> KeyResolver:
    """Return the key resolver of a job; a process keeps the resolver of one job only."""
    cache_key = os.getpid(), job.id
    with _resolvers_lock:
        if cache_key not in _resolvers:
            resolver = KeyResolver(settings.tools().client)
            _resolvers.clear()
            _resolvers[cache_key] = resolver
        return _resolvers[cache_key]
