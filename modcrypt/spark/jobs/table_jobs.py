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

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modcrypt.jobs.key_rotation import What
from modcrypt.keys import Key
from modcrypt.pkmt1.material import check_id
from modcrypt.spark.jobs.conversion import Changes, Conversion
from modcrypt.spark.jobs.driver import (
    check_new,
    check_reachable,
    check_settings,
    check_whole,
    files_of,
    first_leaves,
    folders_of,
    new_leaves,
    old_leaves,
    places_of,
    report_of,
    under,
)
from modcrypt.spark.jobs.file_work import Inspecting, Rotation, Scan, Verifying
from modcrypt.spark.jobs.idempotence import plain_shape
from modcrypt.spark.jobs.task_files import MakeFilesystem
from modcrypt.spark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "decrypt_table",
    "encrypt_table",
    "inspect_table",
    "mask_table",
    "rekey_table",
    "rotate_keys",
    "scan_keys",
    "share_table",
    "verify_table",
]

FILES_PER_TASK = 500
BYTES_PER_TASK = 256 << 20


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
    check_settings(encryption)
    encryption.check_writing()
    job = Conversion(
        verb="encrypt",
        **places_of(source, destination, filesystem),
        encryption=encryption,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    files = files_of([job.source], filesystem)
    leaves = first_leaves(files, filesystem, lambda place: plain_shape(place).leaves)
    check_new(job, files, leaves)
    return report_of(spark, job, files, files_per_task, bytes_per_task)


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
    check_settings(decryption)
    job = Conversion(
        verb="decrypt",
        **places_of(source, destination, filesystem),
        decryption=decryption,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    check_whole(job, decryption)
    files = files_of([job.source], filesystem)
    old_leaves(job, files)
    return report_of(spark, job, files, files_per_task, bytes_per_task)


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
    check_settings(decryption)
    check_settings(encryption)
    encryption.check_writing()
    job = Conversion(
        verb="rekey",
        **places_of(source, destination, filesystem),
        decryption=decryption,
        encryption=encryption,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    check_whole(job, decryption)
    files = files_of([job.source], filesystem)
    check_new(job, files, old_leaves(job, files))
    return report_of(spark, job, files, files_per_task, bytes_per_task)


def mask_table(
    spark: SparkSession,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None,
    decryption: Settings,
    encryption: Settings | None = None,
    *,
    null: Sequence[str] = (),
    hashed: Sequence[str] = (),
    drop: Sequence[str] = (),
    hash_key: str | None = None,
    filesystem: MakeFilesystem | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> DataFrame:
    """Set columns of a folder's files to null, hash or drop them, as `mask_parquet` does each.

    A destination is left if it opens with its keys, has the rows of its source and the columns
    less the dropped ones, all of them masked as they would be, and was written after it. In place,
    a file is left if it has none of the dropped columns, and the others are masked. Which are, the
    files say themselves; so hashes are never hashed again with the same key.

    Args:
        decryption: opens the files.
        encryption: of the new files; None leaves the keys and all else as they are.
        null, hashed, drop: columns or groups, as of `mask_parquet`.
        hash_key: where the key of the hashes is, on the driver and on executors: `file:PATH` or
            `env:NAME`, with the key as hex or base64.
        spark, source, destination, filesystem, overwrite, dry_run, files_per_task, bytes_per_task:
            as of `encrypt_table`.

    Returns:
        As `encrypt_table`, with the result `masked`.

    Raises:
        ValueError, KeyRetrievalError, IntegrityError, OSError: as `decrypt_table`; and for columns
            as `mask_parquet`.
    """
    if not (null or hashed or drop):
        raise ValueError("name columns in null, hashed or drop")
    check_settings(decryption)
    if encryption is not None:
        check_settings(encryption)
        encryption.check_writing()
    job = Conversion(
        verb="mask",
        **places_of(source, destination, filesystem),
        decryption=decryption,
        encryption=encryption,
        changes=Changes(
            null=_names(null), hashed=_names(hashed), drop=_names(drop), hash_key=hash_key
        ),
        overwrite=overwrite,
        dry_run=dry_run,
    )
    check_whole(job, decryption)
    files = files_of([job.source], filesystem)
    leaves = new_leaves(job, files)
    if encryption is not None:
        check_new(job, files, leaves)
    return report_of(spark, job, files, files_per_task, bytes_per_task)


def share_table(
    spark: SparkSession,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    decryption: Settings,
    encryption: Settings,
    columns: Sequence[str],
    *,
    filesystem: MakeFilesystem | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> DataFrame:
    """Copy some columns of a folder's files for somebody else, as `share_parquet` does each.

    A destination is left if it opens with the new keys, has these columns and the rows of its
    source, and was written after it.

    Args:
        decryption: opens the files; keys of other columns are not needed.
        encryption: of the copies.
        columns: columns or groups that are shared.
        spark, source, destination, filesystem, overwrite, dry_run, files_per_task, bytes_per_task:
            as of `encrypt_table`; but a copy is nothing in place.

    Returns:
        As `encrypt_table`, with the result `shared`.

    Raises:
        ValueError, KeyRetrievalError, IntegrityError, OSError: as `decrypt_table`.
    """
    if not columns:
        raise ValueError("name the columns that are to be shared")
    if destination is None:
        raise ValueError("a copy for somebody else needs a destination")
    check_settings(decryption)
    check_settings(encryption)
    encryption.check_writing()
    job = Conversion(
        verb="share",
        **places_of(source, destination, filesystem),
        decryption=decryption,
        encryption=encryption,
        changes=Changes(only=_names(columns)),
        overwrite=overwrite,
        dry_run=dry_run,
    )
    files = files_of([job.source], filesystem)
    check_new(job, files, new_leaves(job, files))
    return report_of(spark, job, files, files_per_task, bytes_per_task)


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
        ValueError, KeyRetrievalError, OSError: as `encrypt_table`; also if the AAD prefix that the
            settings demand is that of several files.
    """
    files = files_of(where, filesystem)
    if decryption is not None:
        check_settings(decryption)
        decryption = under(decryption, where, filesystem)
        decryption.check_distinct(files.names)
        check_reachable(decryption.decryption(), files, filesystem)
    job = Verifying(decryption=decryption, filesystem=filesystem)
    return report_of(spark, job, files, files_per_task, bytes_per_task)


def inspect_table(
    spark: SparkSession,
    where: Any,
    decryption: Settings | None = None,
    *,
    filesystem: MakeFilesystem | None = None,
    files_per_task: int = FILES_PER_TASK,
    bytes_per_task: int = BYTES_PER_TASK,
) -> DataFrame:
    """Say how files are encrypted and what is open to everybody, as `inspect_parquet` does.

    Args:
        where: path or URL of a folder or file, or a list of them.
        decryption: None for no keys; with keys more is told, and keys that don't fit are no error.
        spark, filesystem, files_per_task, bytes_per_task: as of `encrypt_table`.

    Returns:
        A row for each file: `path`, `result` (`inspected`, or the word of an error), `failed`; as
        of `modcrypt.Inspection` `encrypted`, `footer_mode`, `footer_authenticated`, `algorithm`,
        `footer_key` in words, `aad_prefix` as text, `stores_aad_prefix`, `needs_aad_prefix`,
        `aad_file_unique_size`, `created_by`, `writer`, `rows`, `row_groups`, `key_value_metadata`,
        `leaks`, `hidden` and `quirks`; `columns`, how many there are, `encrypted_columns` and, with
        a key that fits, `opened_columns`; the names of the `plaintext_columns`; null for what is
        sealed; `bytes_in`, `message` and `worker`.

    Raises:
        ValueError, KeyRetrievalError, OSError: as `encrypt_table`.
    """
    files = files_of(where, filesystem)
    if decryption is not None:
        check_settings(decryption)
        decryption = under(decryption, where, filesystem)
        check_reachable(decryption.decryption(), files, filesystem)
    job = Inspecting(decryption=decryption, filesystem=filesystem)
    return report_of(spark, job, files, files_per_task, bytes_per_task)


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
    check_settings(settings)
    settings = under(settings, where, filesystem)
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
        folders=tuple(one.name for one in folders_of(where, filesystem)),
    )
    files = files_of(where, filesystem)
    for new_id in set() if dry_run else set(renamed.values()):
        tools.wrapper.wrap([Key.generate()], new_id)
    check_reachable(settings.decryption(), files, filesystem)
    return report_of(spark, job, files, files_per_task, bytes_per_task)


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
        `storage`, `message` and `word`, as of `modcrypt.ScannedKey`; `failed` and `worker`.

    Raises:
        ValueError, KeyRetrievalError, OSError: as `encrypt_table`.
    """
    files = files_of(where, filesystem)
    if settings is not None:
        check_settings(settings)
        settings = under(settings, where, filesystem)
        settings.tools()
        check_reachable(settings.decryption(), files, filesystem)
    job = Scan(settings=settings, filesystem=filesystem)
    return report_of(spark, job, files, files_per_task, bytes_per_task)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """Give names as what pickles.

    Raises:
        ValueError: one string, which is a sequence too.
    """
    if isinstance(names, str):
        raise ValueError("columns are several names, not one string")
    return tuple(names)
