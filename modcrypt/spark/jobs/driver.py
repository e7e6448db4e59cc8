"""What the driver does for a job on tables: it lists files, looks at settings, and starts tasks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from modcrypt.errors import IntegrityError, KeyRetrievalError, KmsUnavailableError, ModcryptError
from modcrypt.io.storage import Place
from modcrypt.parquet.crypto.ciphers import check_names
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, is_keyed
from modcrypt.spark.jobs.conversion import Conversion, Converter
from modcrypt.spark.jobs.file_work import Job
from modcrypt.spark.jobs.idempotence import decrypted_shape
from modcrypt.spark.jobs.task_files import Folder, Listing, MakeFilesystem, list_tables, packed
from modcrypt.spark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "check_new",
    "check_reachable",
    "check_settings",
    "check_whole",
    "files_of",
    "first_leaves",
    "folders_of",
    "new_leaves",
    "old_leaves",
    "places_of",
    "report_of",
    "slots_of",
    "under",
]

Leaves: TypeAlias = list[tuple[str, ...]]

SLOTS = 32
"""Tasks at once where Spark doesn't tell, as over Spark Connect."""

TRIED = 3
"""Files that are opened before a job, to see whether the settings fit."""


def check_settings(settings: object) -> None:
    """Check that keys are given by reference.

    Raises:
        TypeError: they are something else.
    """
    if not isinstance(settings, Settings):
        raise TypeError(f"keys are given by Settings, not {type(settings).__name__}")


def check_whole(job: Conversion, decryption: Settings) -> None:
    """Refuse to replace files by what lacks some of their columns."""
    if job.destination is None and decryption.on_missing_key != "error":
        raise ValueError("in place, columns without a key would be lost for good")


def places_of(source: Any, destination: Any, filesystem: MakeFilesystem | None) -> dict[str, Any]:
    """Give source and destination by name.

    Raises:
        ValueError: the destination is, or lies within, the source.
        FileNotFoundError, NotADirectoryError: no such folder.
    """
    found = Folder.at(source, filesystem)
    if not found.is_folder:
        there = found.place.stamp() is not None
        kind = NotADirectoryError if there else FileNotFoundError
        number = errno.ENOTDIR if there else errno.ENOENT
        raise kind(number, os.strerror(number), found.name)
    target = None if destination is None else Folder.at(destination, filesystem)
    if target is not None:
        _check_apart(found.place, target.place)
    name = None if target is None else target.name
    return {"source": found.name, "destination": name, "filesystem": filesystem}


def _check_apart(source: Place, destination: Place) -> None:
    if type(source.filesystem) is not type(destination.filesystem):
        return
    if destination.filesystem is None and os.path.isfile(destination.path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), destination.path)
    inner, outer = (one.real().path.rstrip("/") for one in (destination, source))
    if inner == outer:
        raise ValueError("source and destination are the same folder: None means in place")
    if inner.startswith(f"{outer}/"):
        raise ValueError(
            "the destination lies within the source: the next run would take its files for sources"
        )


def files_of(where: Any, filesystem: MakeFilesystem | None) -> Listing:
    """List the files of a folder, or of several; raises as `list_tables`."""
    return list_tables(folders_of(where, filesystem))


def folders_of(where: Any, filesystem: MakeFilesystem | None) -> list[Folder]:
    """Take a folder, or several, as the caller names them; raises as `Folder.at`."""
    several = where if isinstance(where, list | tuple) else [where]
    return [Folder.at(one, filesystem) for one in several]


def under(settings: Settings, where: Any, filesystem: MakeFilesystem | None) -> Settings:
    """Return the settings for the dataset at `where`, if that is one folder; else as they are."""
    several = where if isinstance(where, list | tuple) else [where]
    if len(several) != 1:
        return settings
    found = Folder.at(several[0], filesystem)
    return settings.under(found.name) if found.is_folder else settings


def first_leaves(
    files: Listing, filesystem: MakeFilesystem | None, look: Callable[[Place], Leaves | None]
) -> Leaves | None:
    """Give the columns of the first file that can be looked into; None if none of a few can.

    Args:
        files: all of them.
        filesystem: that they are in.
        look: gives the columns of one; None for one that does not count.

    Raises:
        KmsUnavailableError: it could not be asked.
    """
    for place in _tried(files, filesystem):
        try:
            leaves = look(place)
        except KmsUnavailableError:
            raise
        except (ModcryptError, OSError):
            continue  # it will be a row
        if leaves is not None:
            return leaves
    return None


def old_leaves(job: Conversion, files: Listing) -> Leaves | None:
    """Return the columns of the first file that the job's settings open.

    Raises:
        KeyRetrievalError, IntegrityError: they open none of the first ones.
    """
    assert job.decryption is not None
    properties = job.decryption.decryption()
    return _opened(job, files, lambda place: decrypted_shape(place, properties).leaves)


def new_leaves(job: Conversion, files: Listing) -> Leaves | None:
    """Give the columns that a change leaves of the first file that is not changed so already.

    Raises:
        KeyRetrievalError, IntegrityError: as `old_leaves`, or the hash key can't be had.
        ValueError: the file can't be changed so.
    """
    filesystem = None if job.filesystem is None else job.filesystem()
    return _opened(job, files, Converter(job, filesystem).leaves)


def _opened(
    job: Conversion, files: Listing, look: Callable[[Place], Leaves | None]
) -> Leaves | None:
    """Look into the first files; raise what kept all of them closed."""
    errors: list[ModcryptError] = []
    tried = _tried(files, job.filesystem)

    def noted(place: Place) -> Leaves | None:
        try:
            return look(place)
        except (KeyRetrievalError, IntegrityError) as error:
            errors.append(error)
            raise

    leaves = first_leaves(files, job.filesystem, noted)
    # In place, the first files may be done: then the old keys open them no more.
    if leaves is None and job.destination is not None and len(errors) == len(tried):
        raise errors[0]
    return leaves


def check_reachable(
    properties: FileDecryptionProperties, files: Listing, filesystem: MakeFilesystem | None
) -> None:
    """Have the key service asked for the keys of a file; raises as `first_leaves`."""
    first_leaves(files, filesystem, lambda place: decrypted_shape(place, properties).leaves)


def check_new(job: Conversion, files: Listing, leaves: Leaves | None) -> None:
    """Check that files can be encrypted as the job says, as far as a first one tells.

    Raises:
        ValueError: they don't have the columns that are named, or two of them would have the same
            AAD prefix.
        KeyRetrievalError: keys can't be had, or be wrapped.
    """
    assert job.encryption is not None
    job.encryption.check_distinct(job.target(name) for name in files.names)
    encryption = job.encryption.encryption()
    if leaves is not None:
        check_names(leaves, {*encryption.column_keys, *encryption.plaintext_columns})
    if is_keyed(encryption) and not job.dry_run:
        filesystem = None if job.filesystem is None else job.filesystem()
        encryption.for_file(Folder(job.target(files.names[0]), filesystem).place)


def _tried(files: Listing, filesystem: MakeFilesystem | None) -> list[Place]:
    made = None if filesystem is None else filesystem()
    return [Folder(name, made).place for name in files.names[:TRIED]]


# --- the job of Spark ----------------------------------------------------------------------------


def report_of(
    spark: SparkSession, job: Job, files: Listing, files_per_task: int, bytes_per_task: int
) -> DataFrame:
    """Have Spark do the job, once; give the report.

    The names go to the executors as rows, not within a closure, and the report stays there: the
    driver holds no more than the listing.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if files_per_task < 1 or bytes_per_task < 1:
        raise ValueError("files_per_task and bytes_per_task are at least 1")
    tasks = packed(files.sizes, files=files_per_task, size=bytes_per_task, slots=slots_of(spark))
    table = pa.table(
        {
            "task": pa.array(tasks, pa.int32()),
            "name": pa.array(map(os.fsencode, files.names), pa.binary()),  # of any bytes
            "size": pa.array(files.sizes, pa.int64()),
        }
    )
    frame = spark.createDataFrame(table).repartitionById(max(tasks) + 1, "task")
    return frame.mapInArrow(job.run, from_arrow_schema(job.schema)).localCheckpoint()


def slots_of(spark: SparkSession) -> int:
    """Say how many tasks run at once, as far as Spark tells."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except AttributeError:  # Spark Connect has no context
        return SLOTS
