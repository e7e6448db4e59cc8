"""Jobs on all files of a table, done by Spark's executors: `encrypt_table` and the others.

    driver      list the files, look at settings, keys and columns, pack files into tasks
    executors   the functions for single files of this package, one file after the other
    report      a DataFrame with a row for each file, held by the executors

Spark does the work once, before the function returns; the report is read from where it was left,
however often. Nothing else is recorded: a job looks at each file first, and leaves what is done.
So a job that was stopped is taken up by calling it again, as is one whose report was lost with an
executor. A file is the old or the new one at any time. What fails, fails alone: as a row of the
report, with `failed` set and the word of the error in `result`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from modcrypt.errors import IntegrityError, KeyRetrievalError, KmsUnavailableError, ModcryptError
from modcrypt.keys import Key
from modcrypt.kms.material import check_id
from modcrypt.kms.rotation import What
from modcrypt.parquet.ciphers import check_names
from modcrypt.parquet.properties import FileDecryptionProperties, is_keyed
from modcrypt.spark.already import decrypted_shape, plain_shape
from modcrypt.spark.bins import Folder, Listing, MakeFilesystem, list_tables, packed
from modcrypt.spark.file_work import Conversion, Job, Rotation, Scan, Verifying
from modcrypt.spark.settings import Settings
from modcrypt.storage import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "decrypt_table",
    "encrypt_table",
    "rekey_table",
    "rotate_keys",
    "scan_keys",
    "verify_table",
]

FILES_PER_TASK = 500
BYTES_PER_TASK = 256 << 20

Leaves: TypeAlias = list[tuple[str, ...]]

SLOTS = 32
"""Tasks at once where Spark doesn't tell, as over Spark Connect."""

TRIED = 3
"""Files that are opened before a job, to see whether the settings fit."""


def encrypt_table(
    spark: SparkSession,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None,
    encryption: Settings,
    *,
    filesystem: MakeFilesystem | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> DataFrame:
    """Encrypt the plaintext Parquet files of a folder, as `encrypt_parquet` does each.

    A destination is left as it is, and reported as `current`, if it opens with these keys, is
    encrypted as the settings say, has the rows and columns of its source and was written after it.

    Args:
        spark: a session, of Spark Connect too; modcrypt is installed on its executors.
        source: path or URL of a folder, which drivers and executors reach; files and folders whose
            names begin with a dot or an underscore are passed over.
        destination: folder with the same paths in it; None to replace the files themselves.
        encryption: references to the keys, on the driver and on executors; data keys are made on
            executors.
        filesystem: makes a file system of pyarrow or fsspec, in which both are paths, in each
            process: none is sent to executors with credentials in it.
        overwrite: replace destinations that are there and are something else.
        dry_run: only say what would be done.
        files_per_task, bytes_per_task: most that one task takes.

    Returns:
        A row for each file: `path`, `destination`, `result` (`encrypted`, `current`, `planned`,
        or the word of an error), `failed`, `bytes_in`, `bytes_out` (null in a store), `seconds`,
        `message` and `worker`, the machine and the process.

    Raises:
        ValueError: no files, folders that don't go together, settings that don't do, or columns
            that the files don't have. Nothing is done yet.
        KeyRetrievalError: keys can't be had, or the key service does not answer. The same.
        FileNotFoundError, NotADirectoryError: no such folder.
    """
    _check_settings(encryption)
    encryption.check_writing()
    job = Conversion(
        verb="encrypt",
        **_places(source, destination, filesystem),
        encryption=encryption,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    files = _files([job.source], filesystem)
    leaves = _first(files, filesystem, lambda place: plain_shape(place).leaves)
    _check_new(encryption, job, files, leaves)
    return _report(spark, job, files, files_per_task, bytes_per_task)


def decrypt_table(
    spark: SparkSession,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None,
    decryption: Settings,
    *,
    filesystem: MakeFilesystem | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> DataFrame:
    """Decrypt the files of a folder, as `decrypt_parquet` does each; else as `encrypt_table`.

    A destination is left if it is a plaintext file with the rows and columns of its source, and
    was written after it; in place, if it is a plaintext file. That columns of it were filled with
    nulls for want of a key, no look tells.

    Returns:
        As `encrypt_table`, with the result `decrypted`.

    Raises:
        ValueError, KeyRetrievalError, IntegrityError, OSError: as `encrypt_table`; and if the
            settings open none of the first files.
    """
    _check_settings(decryption)
    job = Conversion(
        verb="decrypt",
        **_places(source, destination, filesystem),
        decryption=decryption,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    _check_whole(job, decryption)
    files = _files([job.source], filesystem)
    _old_leaves(decryption, job, files)
    return _report(spark, job, files, files_per_task, bytes_per_task)


def rekey_table(
    spark: SparkSession,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None,
    decryption: Settings,
    encryption: Settings,
    *,
    filesystem: MakeFilesystem | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> DataFrame:
    """Write the files of a folder under other keys, as `rekey_parquet` does; as `encrypt_table`.

    A file that is under the new keys is left. To give files fresh data keys under the same master
    keys, use `rotate_keys` with `what="dek"`.

    Returns:
        As `encrypt_table`, with the result `rekeyed`.

    Raises:
        ValueError, KeyRetrievalError, IntegrityError, OSError: as `decrypt_table`.
    """
    _check_settings(decryption)
    _check_settings(encryption)
    encryption.check_writing()
    job = Conversion(
        verb="rekey",
        **_places(source, destination, filesystem),
        decryption=decryption,
        encryption=encryption,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    _check_whole(job, decryption)
    files = _files([job.source], filesystem)
    _check_new(encryption, job, files, _old_leaves(decryption, job, files))
    return _report(spark, job, files, files_per_task, bytes_per_task)


def verify_table(
    spark: SparkSession,
    where: Any,
    decryption: Settings | None = None,
    *,
    filesystem: MakeFilesystem | None = None,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> DataFrame:
    """Verify files, as `verify_parquet` does each.

    That two files are copies of one shows in `file_unique`, which no two files share:
    `report.groupBy("file_unique").count()`.

    Args:
        where: path or URL of a folder or file, or a list of them.
        decryption: None for no keys: then no more is checked than can be seen.
        spark, filesystem, files_per_task, bytes_per_task: as of `encrypt_table`.

    Returns:
        A row for each file: `path`, `result` (`authentic`; `partial`, no fault, but not all is
        authenticated; or the word of the first fault), `failed`, `complete`, `encrypted`, `rows`,
        `modules`, `authenticated_bytes`, `bytes_in`, `file_unique` in hex, `findings`,
        `not_authenticated`, `seconds`, `message` and `worker`.

    Raises:
        ValueError, KeyRetrievalError, OSError: as `encrypt_table`.
    """
    job = Verifying(decryption=decryption, filesystem=filesystem)
    files = _files(where, filesystem)
    if decryption is not None:
        _check_settings(decryption)
        _check_reachable(decryption.decryption(), files, filesystem)
    return _report(spark, job, files, files_per_task, bytes_per_task)


def rotate_keys(
    spark: SparkSession,
    where: Any,
    settings: Settings,
    *,
    what: What = "mek",
    new_master_keys: Mapping[str, str] | None = None,
    filesystem: MakeFilesystem | None = None,
    dry_run: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> DataFrame:
    """Wrap the keys of files anew, or give the files fresh keys: `modcrypt.rotate_keys` on Spark.

    Files whose keys are under the newest version of their master key are left, where the key
    service can tell; `kek` and `dek` do all files again.

    Args:
        where: path or URL of a folder or file, or a list of them.
        settings: with a key service.
        what, new_master_keys, dry_run: as of `modcrypt.rotate_keys`.
        spark, filesystem, files_per_task, bytes_per_task: as of `encrypt_table`.

    Returns:
        A row for each file: `path`, `result` and `message`, as of `modcrypt.RotatedFile`, `failed`,
        `keys` and `worker`.

    Raises:
        ValueError, KeyRetrievalError, OSError: as `encrypt_table`.
    """
    if what not in ("mek", "kek", "dek"):
        raise ValueError('what is to be rotated is "mek", "kek" or "dek"')
    _check_settings(settings)
    renamed = dict(new_master_keys or {})
    for new_id in renamed.values():
        check_id(new_id)
    tools = settings.tools()
    job = Rotation(
        settings=settings,
        what=what,
        new_master_keys=renamed,
        dry_run=dry_run,
        filesystem=filesystem,
    )
    files = _files(where, filesystem)
    for new_id in set() if dry_run else set(renamed.values()):
        tools.wrapper.wrap([Key.generate()], new_id)
    _check_reachable(settings.decryption(), files, filesystem)
    return _report(spark, job, files, files_per_task, bytes_per_task)


def scan_keys(
    spark: SparkSession,
    where: Any,
    settings: Settings | None = None,
    *,
    filesystem: MakeFilesystem | None = None,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> DataFrame:
    """Tell which master key opens which file and column: `modcrypt.scan_keys` on Spark.

    Args:
        where: path or URL of a folder or file, or a list of them.
        settings: with a key service, which opens sealed footers to list the keys of columns too;
            None for what can be told without a key.
        spark, filesystem, files_per_task, bytes_per_task: as of `encrypt_table`.

    Returns:
        A row for each key: `path`, `kind`, `column`, `master_key_id`, `version`, `kek_id`,
        `storage` and `message`, as of `modcrypt.ScannedKey`; `failed` and `worker`.

    Raises:
        ValueError, KeyRetrievalError, OSError: as `encrypt_table`.
    """
    job = Scan(settings=settings, filesystem=filesystem)
    files = _files(where, filesystem)
    if settings is not None:
        _check_settings(settings)
        settings.tools()
        _check_reachable(settings.decryption(), files, filesystem)
    return _report(spark, job, files, files_per_task, bytes_per_task)


# --- what is checked on the driver ---------------------------------------------------------------


def _check_settings(settings: object) -> None:
    if not isinstance(settings, Settings):
        raise TypeError(f"keys are given by Settings, not {type(settings).__name__}")


def _check_whole(job: Conversion, decryption: Settings) -> None:
    """Refuse to replace files by what lacks some of their columns."""
    if job.destination is None and decryption.on_missing_key != "error":
        raise ValueError("in place, columns without a key would be lost for good")


def _places(source: Any, destination: Any, filesystem: MakeFilesystem | None) -> dict[str, Any]:
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


def _files(where: Any, filesystem: MakeFilesystem | None) -> Listing:
    several = where if isinstance(where, list | tuple) else [where]
    return list_tables([Folder.at(one, filesystem) for one in several])


def _first(
    files: Listing, filesystem: MakeFilesystem | None, look: Callable[[Place], Leaves]
) -> Leaves | None:
    """Give the columns of the first file that can be looked into; None if none of a few can.

    Raises:
        KmsUnavailableError: it could not be asked.
    """
    for place in _tried(files, filesystem):
        try:
            return look(place)
        except KmsUnavailableError:
            raise
        except (ModcryptError, OSError):
            continue  # it will be a row
    return None


def _old_leaves(settings: Settings, job: Conversion, files: Listing) -> Leaves | None:
    """Give the columns of the first file that the settings open.

    Raises:
        KeyRetrievalError, IntegrityError: they open none of the first ones.
    """
    properties = settings.decryption()
    errors: list[ModcryptError] = []
    tried = _tried(files, job.filesystem)

    def look(place: Place) -> Leaves:
        try:
            return decrypted_shape(place, properties).leaves
        except (KeyRetrievalError, IntegrityError) as error:
            errors.append(error)
            raise

    leaves = _first(files, job.filesystem, look)
    # In place, the first files may be done: then the old keys open them no more.
    if leaves is None and job.destination is not None and len(errors) == len(tried):
        raise errors[0]
    return leaves


def _check_reachable(
    properties: FileDecryptionProperties, files: Listing, filesystem: MakeFilesystem | None
) -> None:
    """Have the key service asked for the keys of a file; raises as `_first`."""
    _first(files, filesystem, lambda place: decrypted_shape(place, properties).leaves)


def _check_new(settings: Settings, job: Conversion, files: Listing, leaves: Leaves | None) -> None:
    """Check that files can be encrypted by the settings, as far as a first one tells.

    Raises:
        ValueError: they don't have the columns that are named.
        KeyRetrievalError: keys can't be had, or be wrapped.
    """
    encryption = settings.encryption()
    if leaves is not None:
        check_names(leaves, {*encryption.column_keys, *encryption.plaintext_columns})
    if is_keyed(encryption) and not job.dry_run:
        filesystem = None if job.filesystem is None else job.filesystem()
        encryption.for_file(Folder(job.target(files.names[0]), filesystem).place)


def _tried(files: Listing, filesystem: MakeFilesystem | None) -> list[Place]:
    made = None if filesystem is None else filesystem()
    return [Folder(name, made).place for name in files.names[:TRIED]]


# --- the job of Spark ----------------------------------------------------------------------------


def _report(
    spark: SparkSession, job: Job, files: Listing, files_per_task: int, bytes_per_task: int
) -> DataFrame:
    """Have Spark do the job, once; give the report.

    The names go to the executors as rows, not within a closure, and the report stays there: the
    driver holds no more than the listing.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if files_per_task < 1 or bytes_per_task < 1:
        raise ValueError("files_per_task and bytes_per_task are at least 1")
    tasks = packed(files.sizes, files=files_per_task, size=bytes_per_task, slots=_slots(spark))
    table = pa.table(
        {
            "task": pa.array(tasks, pa.int32()),
            "name": pa.array(map(os.fsencode, files.names), pa.binary()),  # of any bytes
            "size": pa.array(files.sizes, pa.int64()),
        }
    )
    frame = spark.createDataFrame(table).repartitionById(max(tasks) + 1, "task")
    return frame.mapInArrow(job.run, from_arrow_schema(job.schema)).localCheckpoint()


def _slots(spark: SparkSession) -> int:
    """Say how many tasks run at once, as far as Spark tells."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except AttributeError:  # Spark Connect has no context
        return SLOTS
