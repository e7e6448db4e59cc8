"""Driver side of jobs on tables: list the files, check the settings and start the tasks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from modcrypt.errors import IntegrityError, KeyRetrievalError, KmsUnavailableError, ModcryptError
from modcrypt.io.places import Place
from modcrypt.parquet.crypto.ciphers import check_names
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, is_keyed
from modcrypt.spark.jobs.conversion import Conversion, Converter
from modcrypt.spark.jobs.file_work import Job
from modcrypt.spark.jobs.idempotence import read_decrypted_shape
from modcrypt.spark.jobs.task_files import (
    Folder,
    Listing,
    MakeFilesystem,
    assign_tasks,
    list_tables,
)
from modcrypt.spark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "apply_root",
    "check_in_place",
    "check_new",
    "check_reachable",
    "check_settings",
    "compute_new_leaves",
    "files_of",
    "folders_of",
    "places_of",
    "read_first_leaves",
    "read_old_leaves",
    "report_of",
    "slots_of",
    "sources_of",
]

Leaves: TypeAlias = list[tuple[str, ...]]

SLOTS = 32
"""Number of concurrent tasks if Spark does not report it, as over Spark Connect."""

PROBED_FILES = 3
"""Number of files that are opened before a job, to check that the settings fit."""


def check_settings(settings: object) -> None:
    """Check that keys are given by reference.

    Raises:
        TypeError: The argument is not `Settings`.
    """
    if not isinstance(settings, Settings):
        raise TypeError(f"keys must be given as Settings, not {type(settings).__name__}")


def check_in_place(job: Conversion, decryption: Settings) -> None:
    """Raise ValueError if a job in place would lose columns without a key."""
    if job.destination is None and decryption.on_missing_key != "error":
        raise ValueError(
            'in place, columns without a key would be lost for good; use on_missing_key="error" or '
            "name a destination"
        )


def places_of(source: Any, destination: Any, filesystem: MakeFilesystem | None) -> dict[str, Any]:
    """Return the names of source and destination, and the filesystem, as keyword arguments.

    Raises:
        ValueError: The destination is the source or lies within it.
        FileNotFoundError, NotADirectoryError: The source is not an existing folder.
    """
    origin = Folder.at(source, filesystem)
    if not origin.is_folder:
        exists = origin.place.stamp() is not None
        kind = NotADirectoryError if exists else FileNotFoundError
        number = errno.ENOTDIR if exists else errno.ENOENT
        raise kind(number, os.strerror(number), origin.name)
    target = None if destination is None else Folder.at(destination, filesystem)
    if target is not None:
        _check_apart(origin.place, target.place)
    name = None if target is None else target.name
    return {"source": origin.name, "destination": name, "filesystem": filesystem}


def _check_apart(source: Place, destination: Place) -> None:
    if type(source.filesystem) is not type(destination.filesystem):
        return
    if destination.filesystem is None and os.path.isfile(destination.path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), destination.path)
    inner, outer = (place.resolve().path.rstrip("/") for place in (destination, source))
    if inner == outer:
        raise ValueError(
            "source and destination are the same folder; pass None as destination for in place"
        )
    if inner.startswith(f"{outer}/"):
        raise ValueError(
            "the destination lies within the source, so the next run would convert its files again;"
            " choose a folder outside the source"
        )


def files_of(where: Any, filesystem: MakeFilesystem | None) -> Listing:
    """List the files of a folder, or of several; raises as `list_tables`."""
    return list_tables(folders_of(where, filesystem))


def sources_of(job: Conversion, filesystem: MakeFilesystem | None) -> Listing:
    """List the files that a job converts; raises as `list_tables`.

    A copy omits files that a write note hides from readers, as the copy would have no such note.
    """
    folders = folders_of([job.source], filesystem)
    return list_tables(folders, as_read=job.destination is not None)


def folders_of(where: Any, filesystem: MakeFilesystem | None) -> list[Folder]:
    """Return the folders that the caller names; raises as `Folder.at`."""
    several = where if isinstance(where, list | tuple) else [where]
    return [Folder.at(name, filesystem) for name in several]


def apply_root(settings: Settings, where: Any, filesystem: MakeFilesystem | None) -> Settings:
    """Return the settings with the folder `where` as root; unchanged if it is not one folder."""
    several = where if isinstance(where, list | tuple) else [where]
    if len(several) != 1:
        return settings
    folder = Folder.at(several[0], filesystem)
    return settings.under(folder.name) if folder.is_folder else settings


def read_first_leaves(
    files: Listing, filesystem: MakeFilesystem | None, look: Callable[[Place], Leaves | None]
) -> Leaves | None:
    """Return the columns of the first file that can be read; None if the first files can't.

    Args:
        files: All files of the job.
        filesystem: Function that makes the filesystem of the files.
        look: Function that returns the columns of a file, or None to skip the file.

    Raises:
        KmsUnavailableError: The key service is unavailable.
    """
    for place in _first_places(files, filesystem):
        try:
            leaves = look(place)
        except KmsUnavailableError:
            raise
        except (ModcryptError, OSError):
            continue  # the task reports the error as a row
        if leaves is not None:
            return leaves
    return None


def read_old_leaves(job: Conversion, files: Listing) -> Leaves | None:
    """Return the columns of the first file that the job's settings open.

    Raises:
        KeyRetrievalError, IntegrityError: The settings open none of the first files.
    """
    assert job.decryption is not None
    properties = job.decryption.decryption()
    return _probe_files(job, files, lambda place: read_decrypted_shape(place, properties).leaves)


def compute_new_leaves(job: Conversion, files: Listing) -> Leaves | None:
    """Return the columns that a change leaves of the first file that is not yet changed.

    Raises:
        KeyRetrievalError, IntegrityError: As in `read_old_leaves`, or the hash key is missing.
        ValueError: The file can't be changed this way.
    """
    filesystem = None if job.filesystem is None else job.filesystem()
    return _probe_files(job, files, Converter(job, filesystem).compute_leaves)


def _probe_files(
    job: Conversion, files: Listing, look: Callable[[Place], Leaves | None]
) -> Leaves | None:
    """Return the columns of the first file that opens; raise the first error if none does."""
    errors: list[ModcryptError] = []
    places = _first_places(files, job.filesystem)

    def look_and_record(place: Place) -> Leaves | None:
        try:
            return look(place)
        except (KeyRetrievalError, IntegrityError) as error:
            errors.append(error)
            raise

    leaves = read_first_leaves(files, job.filesystem, look_and_record)
    # In place, the first files may be converted already and no longer open with the old keys.
    if leaves is None and job.destination is not None and len(errors) == len(places):
        raise errors[0]
    return leaves


def check_reachable(
    properties: FileDecryptionProperties, files: Listing, filesystem: MakeFilesystem | None
) -> None:
    """Check that the key service answers for the keys of a file; raises as `read_first_leaves`."""
    read_first_leaves(
        files, filesystem, lambda place: read_decrypted_shape(place, properties).leaves
    )


def check_new(job: Conversion, files: Listing, leaves: Leaves | None) -> None:
    """Check that files can be encrypted as the job says, using the columns of the first file.

    Raises:
        ValueError: The file lacks named columns, or two files would have the same AAD prefix.
        KeyRetrievalError: Keys can't be retrieved or wrapped.
    """
    assert job.encryption is not None
    job.encryption.check_distinct(job.target(name) for name in files.names)
    encryption = job.encryption.encryption()
    if leaves is not None:
        check_names(leaves, {*encryption.column_keys, *encryption.plaintext_columns})
    if is_keyed(encryption) and not job.dry_run:
        filesystem = None if job.filesystem is None else job.filesystem()
        encryption.for_file(Folder(job.target(files.names[0]), filesystem).place)


def _first_places(files: Listing, filesystem: MakeFilesystem | None) -> list[Place]:
    instance = None if filesystem is None else filesystem()
    return [Folder(name, instance).place for name in files.names[:PROBED_FILES]]


# --- the job of Spark ----------------------------------------------------------------------------


def report_of(
    spark: SparkSession, job: Job, files: Listing, files_per_task: int, bytes_per_task: int
) -> DataFrame:
    """Have Spark run the job once, and return the report.

    Spark sends the names to the executors as rows, not within a closure, and the report stays on
    the executors, so the driver holds only the listing.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if files_per_task < 1 or bytes_per_task < 1:
        raise ValueError("files_per_task and bytes_per_task must be at least 1")
    tasks = assign_tasks(
        files.sizes, files=files_per_task, size=bytes_per_task, slots=slots_of(spark)
    )
    table = pa.table(
        {
            "task": pa.array(tasks, pa.int32()),
            "name": pa.array(map(os.fsencode, files.names), pa.binary()),  # names may be any bytes
            "size": pa.array(files.sizes, pa.int64()),
        }
    )
    frame = spark.createDataFrame(table).repartitionById(max(tasks) + 1, "task")
    return frame.mapInArrow(job.run, from_arrow_schema(job.schema)).localCheckpoint()


def slots_of(spark: SparkSession) -> int:
    """Return the number of concurrent tasks, or a default if Spark does not report it."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except AttributeError:  # Spark Connect has no context
        return SLOTS
