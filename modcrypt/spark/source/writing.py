"""Writing Spark's rows to encrypted Parquet files, atomically for each job.

    tasks    people/_tmp_4f1d.../00003-17/country=NO/part-00003-4f1d...-17-0.parquet
    commit   people/country=NO/part-00003-4f1d...-17-0.parquet

A task writes to a folder that readers skip, and reports its files to the driver; `commit` publishes
these files and no others. So a retried task, a concurrent second attempt and a failed job leave
nothing behind: the folder is removed with the job. Spark does not wait for attempts that it stops:
a file in the folder marks the job as running, and without it an attempt starts no file. File names
contain the job and the attempt; they never change, as AAD prefixes and key material are bound to
them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.jobs.declared_changes import hand_over, note_changes, record_here, take_changes
from modcrypt.keys import Key
from modcrypt.kms.keyed_encryption import KeyedEncryption
from modcrypt.kms.proof import WrapProof
from modcrypt.kms.settings import Settings
from modcrypt.parquet.arrow.writer import ParquetWriter
from modcrypt.parquet.crypto.properties import Encryption, FileEncryptionProperties
from modcrypt.parquet.datasets.dataset_writer import write_dataset
from modcrypt.parquet.datasets.discovery import DatasetFolder
from modcrypt.runtime.plugins import SUBJECTS, load
from modcrypt.runtime.tracebacks import shorten_errors
from modcrypt.spark.source.abandoned_writes import describe_driver
from modcrypt.spark.source.arrow_types import conform, to_file_schema
from modcrypt.spark.source.job_publication import (
    RUNNING,
    Written,
    job_folder,
    list_present,
    new_job,
    publish_files,
    remove_abandoned,
    remove_job,
    running_mark,
)
from modcrypt.spark.source.options import WriteOptions


def check_reports(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Return the reports of all tasks; raise ValueError if one is missing."""
    reports = [message for message in messages if isinstance(message, Written)]
    if len(reports) < len(messages):
        raise ValueError("a task did not report the files that it wrote")
    return reports


def check_columns(settings: Settings, options: WriteOptions, schema: StructType) -> None:
    """Check, without a key, that rows of a schema can be written with these settings."""
    target, policy = to_file_schema(schema), settings.policy
    if wrong := sorted(set(options.partition_by) - set(target.names)):
        raise ValueError(f"partitionBy: there is no column {', '.join(wrong)}")
    keyed, plaintext = settings.column_keys.keys(), settings.plaintext_columns
    if policy is not None and settings.footer_key is None:
        keyed, plaintext = policy.key_of_column.keys(), tuple(policy.plaintext_columns)
    if public := sorted({*keyed, *plaintext} & set(options.partition_by)):
        raise ValueError(
            "columns of partitionBy can't be encrypted, as folder names show their values; remove "
            f"them from partitionBy, or from the keys and plaintext columns: {', '.join(public)}"
        )
    in_files = [field for field in target if field.name not in options.partition_by]
    if not in_files:
        raise ValueError("no columns are left to write; remove columns from partitionBy")
    throw_away = FileEncryptionProperties(
        footer_key=Key.generate(),
        column_keys={name: Key.generate() for name in keyed},
        plaintext_columns=plaintext,
    )
    nowhere, subjects = io.BytesIO(), None
    if policy is not None and policy.subject_columns:  # no vault is opened
        members = {"key": policy.subject_key, "columns": policy.subject_columns}
        subjects = load(SUBJECTS, "columns")(policy.subjects, None, **members)
    ParquetWriter(
        nowhere, pa.schema(in_files), throw_away, threads=1, compression=options.compression,
        subjects=subjects,
    )  # fmt: skip


def write_task(
    settings: Settings, options: WriteOptions, schema: StructType,
    batches: Iterable[pa.RecordBatch], job: str, *, is_running: Callable[[], bool] = lambda: True,
    replaces: bool = False,
) -> Written:  # fmt: skip
    """Write the rows of the current task; generates and wraps keys in this process.

    `is_running` returns whether the job is still running; it is called before each file. `replaces`
    says whether the job removes files of the table, so that new wraps are proved. Raise
    InterruptedError if the job is no longer running; and ModcryptError, ValueError or OSError as in
    `write_dataset`; the task then leaves no files.
    """
    context = TaskContext.get()
    assert context is not None
    number, attempt = f"{context.partitionId():05}", context.taskAttemptId()
    folder = f"{job_folder(options.folder, job)}/{number}-{attempt}"
    target = to_file_schema(schema)
    rows = (conform(batch, target) for batch in batches if batch.num_rows)
    first = list(itertools.islice(rows, 1))
    if not first and (options.partition_by or context.partitionId()):
        return Written(folder, ())  # one empty file is enough to store the schema
    encryption = settings.encryption()
    if replaces and isinstance(encryption, KeyedEncryption):
        encryption = encryption.with_proof(WrapProof(), replaces=True)

    def get_encryption(path: str) -> Encryption:
        if not is_running():
            raise InterruptedError("the job has ended; this attempt of a task is stopped")
        return encryption

    seals = settings.signing_key is not None and settings.required_seal is not None
    recording = record_here(folder) if seals else contextlib.nullcontext()
    with recording as record:
        files = write_dataset(
            itertools.chain(first, rows),
            folder,
            get_encryption,
            schema=target,
            partitioning=options.partition_by or None,
            basename_template=f"part-{number}-{job}-{attempt}-{{i}}.parquet",
            shared_aad_prefix=settings.shared_aad_prefix,
            max_rows_per_file=options.max_rows_per_file,
            threads=1,  # Spark gives a task one core
            row_group_size=options.row_group_rows,
            compression=options.compression,
        )
    return Written(folder, tuple(files), changes=take_changes(record) if record else "[]")


class Writer(DataSourceArrowWriter):
    """A writer of rows into a table; picklable, it holds only paths and references to keys.

    Spark makes one writer per job, so all tasks and the commit use the same job name. Raise
    ValueError as in `check_columns`, and NotADirectoryError if the folder of the table is a file.
    """

    def __init__(
        self, settings: Settings, options: WriteOptions, schema: StructType, overwrite: bool
    ) -> None:
        check_columns(settings, options, schema)
        place = Place(*locate(options.folder, None))
        if place.filesystem is None and os.path.isfile(place.path):
            raise NotADirectoryError(f"a table must be a folder; {place.address} is a file")
        self._settings, self._options, self._schema = settings, options, schema
        self._overwrite, self._job = overwrite, new_job()
        remove_abandoned(options.folder)
        self._replaces = overwrite and bool(list_present(options.folder))
        # This makes the folder.
        DatasetFolder(job_folder(options.folder, self._job), None).place(RUNNING)
        with open_sink_at(running_mark(options.folder, self._job)) as sink:
            sink.append(describe_driver().encode())

    @shorten_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task; raises as `write_task`."""
        try:
            return write_task(
                self._settings, self._options, self._schema, iterator, self._job,
                is_running=self._is_running, replaces=self._replaces,
            )  # fmt: skip
        finally:
            if not self._is_running():
                remove_job(self._options.folder, self._job)

    def _is_running(self) -> bool:
        return running_mark(self._options.folder, self._job).exists()

    @shorten_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the files that the tasks reported; raises as `publish_files`."""
        reports, folder, settings = check_reports(messages), self._options.folder, self._settings
        remove_abandoned(folder)  # what unsigned notes name is not removed by the writer
        how = {"replace_all": self._overwrite}
        with hand_over(folder, settings.writer_key, settings.required_seal, **how):
            for report in reports:
                note_changes(Place(*locate(report.folder, None)), report.changes)
            publish_files(folder, reports, overwrite=self._overwrite, clean=False)
        remove_job(self._options.folder, self._job)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the files of the tasks."""
        remove_job(self._options.folder, self._job)
