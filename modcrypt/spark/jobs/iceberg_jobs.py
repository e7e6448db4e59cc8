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
import threading
from collections.abc import Mapping, Sequence
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
from modcrypt.jobs.engine import Job
from modcrypt.jobs.failures import describe
from modcrypt.jobs.listing import File, MakeFilesystem
from modcrypt.jobs.verbs.verb import Row, Verb
from modcrypt.kms.proof import Prove
from modcrypt.kms.settings import Settings
from modcrypt.runtime.fork_safety import fork_safe
from modcrypt.spark.jobs.driver import JobOptions, check_settings, name_columns, run_tasks
from modcrypt.spark.jobs.file_work import VerbJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_PER_TASK, BYTES_PER_TASK = 64, 1 << 30


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
    work, columns = plan_rewriting(settings, table, job, rewrite, items, filesystem)
    frame = run_tasks(
        spark, columns, work.run, work.schema, options.get("files_per_task", FILES_PER_TASK),
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


def plan_rewriting(
    settings: Settings, table: IcebergTable, job: IcebergKey, rewrite: Rewrite,
    items: Sequence[RekeyItem], filesystem: MakeFilesystem | None = None,
) -> tuple[VerbJob, Mapping[str, pa.Array]]:  # fmt: skip
    """Return the job for files of a table, and what tasks are given, as columns."""

    def name(place: Place) -> str:
        return place.full_name if filesystem is None else place.path

    locations = table.walk.locations
    folders = {prefix: name(place) for prefix, place in locations.folders.items()}
    arguments = {"job": job, "rewrite": rewrite, "folders": folders}
    named = name_columns((name(locations.place(item.location)), item.size) for item in items)
    details = {
        "location": pa.array([item.location for item in items], pa.string()),
        "file_format": pa.array([item.file_format for item in items], pa.string()),
        "encrypted": pa.array([item.encrypted for item in items], pa.binary()),
    }
    work = VerbJob(verb=REWRITE, settings=settings, filesystem=filesystem, arguments=arguments)
    return work, {**named, **details}


def _make_error(code: str, message: str) -> Exception:
    """Return an exception for an error on an executor, of the type of its error code."""
    if code == "tag":  # its class needs a module's address, which is only in the message
        return IntegrityError(message)
    if code in ERRORS_BY_WORD:
        return ERRORS_BY_WORD[code](message)
    return ValueError(message) if code == "usage" else OSError(errno.EIO, message)


def _open_rewriting(
    settings: Settings, filesystem: Any, *, job: IcebergKey, rewrite: Rewrite,
    folders: Mapping[str, str],
) -> Job[File, RekeyedFile]:  # fmt: skip
    """Return the job that rewrites files, for which `folders` are what prefixes stand for."""
    places = {prefix: Place(*locate(name, filesystem)) for prefix, name in folders.items()}
    rewriting = make_job(rewrite, Locations(places), job, _get_resolver(settings, job))
    return Job(lambda file: rewriting.process(RekeyItem(size=file.size, **file.details)))


def _make_failed_row(_verb: Verb, file: File, error: Exception, **_arguments: Any) -> Row:
    failure, location = describe(error), file.details["location"]
    text = failure.message if location in failure.message else f"{location}: {failure.message}"
    return {"old": location, "word": failure.word, "message": text}


REWRITE = Verb(
    name="iceberg.rewrite", result=RekeyedFile, open=_open_rewriting, fail=_make_failed_row,
    columns="old location size encrypted word message worker", types={"word": str},
)  # fmt: skip
"""The verb that rewrites files of a table; it is sent no key except the job's KEK, wrapped."""


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
