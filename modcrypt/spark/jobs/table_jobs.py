"""Jobs on all files of a table, run by Spark's executors: `encrypt_table` and others.

    driver      lists the files, checks settings, keys and columns, and assigns files to tasks
    executors   call this package's functions for single files
    report      a DataFrame with a row for each file, held by the executors

Spark does the work once, before the function returns; the report can be read any number of times.
Nothing else is recorded: a job checks each file first and skips those that are up to date. To
resume a job that was stopped, or whose report was lost with an executor, call it again. A file is
the old or the new one at any time. An error only affects its file: it becomes a row of the report,
with `failed` set and the error code in `result`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from modcrypt.jobs.key_rewrapping import What
from modcrypt.jobs.leaks.sidecars import drop_summaries as remove_summaries
from modcrypt.jobs.listing import Folder
from modcrypt.jobs.verbs.examination import INSPECT, VERIFY
from modcrypt.jobs.verbs.key_verbs import ROTATE, SCAN
from modcrypt.kms.proof import Prove
from modcrypt.kms.settings import Settings
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.runtime.former_names import accept_former_names
from modcrypt.spark.jobs.conversion import plan_conversion
from modcrypt.spark.jobs.driver import ConversionOptions, JobOptions, plan_verb, run_table_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def encrypt_table(
    spark: SparkSession,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None,
    encryption: Settings,
    *,
    drop_summaries: bool = False,
    allow_leaks: bool = False,
    repair: bool = False,
    **options: Unpack[ConversionOptions],
) -> DataFrame:
    """Encrypt the plaintext Parquet files of a folder with `encrypt_parquet`.

    A destination is skipped and reported as `current` if it opens with these keys, is encrypted as
    the settings say, has the rows and columns of its source, and was written after its source.

    Args:
        spark: Spark session, also of Spark Connect; its executors must have modcrypt installed.
        source: Path or URL of a folder that the driver and executors can reach; files and folders
            whose names begin with a dot or an underscore are skipped.
        destination: Folder for files with the same relative paths; None to replace the files.
        encryption: References to the keys, valid on the driver and on executors; executors
            generate the data keys.
        drop_summaries: Whether to remove `_metadata` and `_common_metadata` of the folder that is
            written, which keep statistics in plaintext, once all files are encrypted.
        allow_leaks: Whether to encrypt although hidden files or names of partitions keep values of
            encrypted columns in plaintext, as `modcrypt.jobs.find_leaks` finds them.
        repair: Whether to repair what misleads other readers, as `encrypt_parquet`; `columns` of a
            row lists it under `repaired`.
        options: Further options, as in `ConversionOptions`.

    Returns:
        A row for each file: `path`, `destination`, `result` (`encrypted`, `current`, `planned`,
        `different` if the destination is encrypted in another way, or an error code), `failed`,
        `bytes_in`, `bytes_out` (null in a store), `seconds`, `message`, `code`, the exit code for
        a failure, `module`, `columns`, and `worker`, the machine and the process.

    Raises:
        ValueError: There are no files, the folders overlap, the settings are invalid, the files
            lack named columns, or values would stay beside them. No file was changed.
        KeyRetrievalError: Keys can't be retrieved, or the key service does not answer. No file was
            changed.
        FileNotFoundError, NotADirectoryError: The source is not an existing folder.
    """
    report = run_table_job(
        spark, plan_conversion, source, destination, verb="encrypt", encryption=encryption,
        drop_summaries=drop_summaries, allow_leaks=allow_leaks, change=Change(repair=repair),
        **options,
    )  # fmt: skip
    if drop_summaries and not options.get("dry_run") and not report.where("failed").head(1):
        written = Folder.at(
            source if destination is None else destination, options.get("filesystem")
        )
        remove_summaries(written.place)
    return report


def decrypt_table(
    spark: SparkSession,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None,
    decryption: Settings,
    **options: Unpack[ConversionOptions],
) -> DataFrame:
    """Decrypt the files of a folder with `decrypt_parquet`; arguments as in `encrypt_table`.

    A destination is skipped if it is a plaintext file with the rows and columns of its source, and
    was written after it; in place, if it is a plaintext file.

    Returns:
        As in `encrypt_table`, with the result `decrypted`.

    Raises:
        ValueError, KeyRetrievalError, IntegrityError, OSError: As in `encrypt_table`; and if the
            settings open none of the first files.
    """
    return run_table_job(
        spark, plan_conversion, source, destination, verb="decrypt", decryption=decryption,
        **options,
    )  # fmt: skip


def rekey_table(
    spark: SparkSession,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None,
    decryption: Settings,
    encryption: Settings,
    **options: Unpack[ConversionOptions],
) -> DataFrame:
    """Re-encrypt the files of a folder under other keys with `rekey_parquet`; as `encrypt_table`.

    A file that is already under the new keys is skipped. To give files fresh data keys under the
    same master keys, use `rotate_keys` with `what="dek"`.

    Returns:
        As in `encrypt_table`, with the result `rekeyed`.

    Raises:
        ValueError, KeyRetrievalError, IntegrityError, OSError: As in `decrypt_table`.
    """
    return run_table_job(
        spark, plan_conversion, source, destination, verb="rekey",
        decryption=decryption, encryption=encryption, **options,
    )  # fmt: skip


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
    read_restrictions: Mapping[str, Any] | None = None,
    **options: Unpack[ConversionOptions],
) -> DataFrame:
    """Set columns of a folder's files to null, hash or drop them with `mask_parquet`.

    A destination is skipped if it opens with its keys, has the rows and remaining columns of its
    source, masked as requested, and was written after it. In place, a file is skipped if it has
    none of the dropped columns and the others are masked. Files note their masks, so values are
    never hashed twice with the same key.

    Args:
        spark, source, options: As in `encrypt_table`.
        destination: Folder of the masked files, as in `encrypt_table`.
        decryption: Settings that open the files.
        encryption: Settings of the new files; None keeps the files' own keys and encryption.
        null: Columns or groups to replace by nulls, as in `mask_parquet`.
        hashed: Columns or groups to replace by hashes, as in `mask_parquet`.
        drop: Columns or groups to remove, as in `mask_parquet`.
        hash_key: Reference to the hash key on the driver and on executors: `file:PATH` or
            `env:NAME`, with the key as hex or base64.
        read_restrictions: Masks of Iceberg's read restrictions, as in `mask_parquet`.

    Returns:
        As in `encrypt_table`, with the result `masked`.

    Raises:
        ValueError, KeyRetrievalError, IntegrityError, OSError: As in `decrypt_table`; and for
            columns as in `mask_parquet`.
    """
    if not (null or hashed or drop or read_restrictions):
        raise ValueError("name columns in null, hashed or drop")
    change = Change(
        null=_to_tuple(null), hashed=_to_tuple(hashed), drop=_to_tuple(drop),
        read_restrictions=read_restrictions,
    )  # fmt: skip
    return run_table_job(
        spark, plan_conversion, source, destination, verb="mask",
        decryption=decryption, encryption=encryption, change=change,
        hash_key=hash_key, **options,
    )  # fmt: skip


def share_table(
    spark: SparkSession,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    decryption: Settings,
    encryption: Settings,
    columns: Sequence[str],
    *,
    read_restrictions: Mapping[str, Any] | None = None,
    **options: Unpack[ConversionOptions],
) -> DataFrame:
    """Copy selected columns of a folder's files under other keys with `share_parquet`.

    A destination is skipped if it opens with the new keys, has these columns and the rows of its
    source, and was written after it.

    Args:
        spark, source, options: As in `encrypt_table`.
        destination: Folder of the copies; required.
        decryption: Settings that open the files; keys of other columns are not needed.
        encryption: Settings of the copies.
        columns: Columns or groups to share.
        read_restrictions: Masks of Iceberg's read restrictions, as in `mask_parquet`.

    Returns:
        As in `encrypt_table`, with the result `shared`.

    Raises:
        ValueError, KeyRetrievalError, IntegrityError, OSError: As in `decrypt_table`.
    """
    change = Change(only=_to_tuple(columns), read_restrictions=read_restrictions)
    if destination is None:
        raise ValueError("sharing needs a destination; name a folder")
    return run_table_job(
        spark, plan_conversion, source, destination, verb="share",
        decryption=decryption, encryption=encryption, change=change, **options,
    )  # fmt: skip


@accept_former_names(where="source")
def verify_table(
    spark: SparkSession,
    source: Any,
    decryption: Settings | None = None,
    **options: Unpack[JobOptions],
) -> DataFrame:
    """Verify files with `verify_parquet`.

    Copies of a file have the same `file_unique`, other files never do:
    `report.groupBy("file_unique").count()` finds copies.

    Args:
        spark: Spark session, as in `encrypt_table`.
        source: Path or URL of a folder or file, or a list of them.
        decryption: Settings that open the files; None checks only what is visible without keys.
        options: Further options, as in `JobOptions`.

    Returns:
        A row for each file: `path`, `result` (`authentic`; `partial`, no fault, but not everything
        is authenticated; or the error code of the first fault), `failed`, `complete`, `encrypted`,
        `rows`, `modules`, `authenticated_bytes`, `bytes_in`, `file_unique` and `aad_prefix_hex` in
        hex, `findings`, `not_authenticated`, `seconds`, `message`, `code`, the exit code for a
        failure to examine the file, `details`, what `modcrypt verify --json` prints, and `worker`.

    Raises:
        ValueError, KeyRetrievalError, OSError: As in `encrypt_table`; also if several files would
            have the AAD prefix that the settings require.
    """
    return run_table_job(spark, plan_verb, VERIFY, source, decryption, **options)


@accept_former_names(where="source")
def inspect_table(
    spark: SparkSession,
    source: Any,
    decryption: Settings | None = None,
    **options: Unpack[JobOptions],
) -> DataFrame:
    """Report how files are encrypted and what is readable without keys, with `inspect_parquet`.

    Args:
        spark, source, options: As in `verify_table`.
        decryption: Settings that open the files, for a fuller report; wrong keys are not an error.
            None for no keys.

    Returns:
        A row for each file: `path`, `result` (`inspected`, or an error code), `failed`; as in
        `modcrypt.parquet.Inspection` `encrypted`, `footer_mode`, `footer_authenticated`,
        `algorithm`, `footer_key` as a description, `aad_prefix` as text, `stores_aad_prefix`,
        `needs_aad_prefix`, `aad_file_unique_size`, `created_by`, `writer`, `rows`, `row_groups`,
        `key_value_metadata`, `leaks`, `hidden`, `quirks` and
        `kms_unavailable`; the numbers of `columns`, of
        `encrypted_columns` and of `opened_columns`, those with a fitting key; the names of the
        `plaintext_columns`; null for encrypted values; `bytes_in`, `message`, `code`, the exit code
        for a failure, `details`, what `modcrypt inspect --json` prints, and `worker`.

    Raises:
        ValueError, KeyRetrievalError, OSError: As in `encrypt_table`.
    """
    return run_table_job(spark, plan_verb, INSPECT, source, decryption, **options)


@accept_former_names(where="source")
def rotate_keys(
    spark: SparkSession,
    source: Any,
    settings: Settings,
    *,
    what: What = "mek",
    new_master_keys: Mapping[str, str] | None = None,
    double_wrapping: bool | None = None,
    dry_run: bool = False,
    prove: Prove = "first",
    **options: Unpack[JobOptions],
) -> DataFrame:
    """Rewrap the keys of files, or re-encrypt them with new keys, on Spark.

    It works as `modcrypt.jobs.rotate_keys`.

    Files whose keys are under the newest version of their master key are skipped, if the key
    service can report versions; `kek` and `dek` process all files again.

    Args:
        spark, source, options: As in `verify_table`.
        settings: Settings with a key service. With a `signing_key`, executors read that key by its
            reference, and sign files again whose signature would else be dropped.
        what: Level to rotate, as in `modcrypt.jobs.rotate_keys`.
        new_master_keys: Mapping of master key ids to the ids that replace them.
        double_wrapping: Whether data keys are wrapped under KEKs afterwards, as in
            `modcrypt.jobs.rotate_keys`; None keeps the wrapping of each key.
        dry_run: Whether to report only what would be done.
        prove: Which new wraps are proved, as in `modcrypt.jobs.rotate_keys`, in each task.

    Returns:
        A row for each file: `path`, `result`, `message`, `keys` and `lost_signature`, as in
        `modcrypt.jobs.RotatedFile`, `failed` and `worker`.

    Raises:
        ValueError, KeyRetrievalError, OSError: As in `encrypt_table`.
    """
    return run_table_job(
        spark, plan_verb, ROTATE, source, settings, what=what, new_master_keys=new_master_keys,
        double_wrapping=double_wrapping, dry_run=dry_run, prove=prove, **options,
    )  # fmt: skip


@accept_former_names(where="source")
def scan_keys(
    spark: SparkSession,
    source: Any,
    settings: Settings | None = None,
    **options: Unpack[JobOptions],
) -> DataFrame:
    """List the master key that protects each file and column: `modcrypt.jobs.scan_keys` on Spark.

    Args:
        spark, source, options: As in `verify_table`.
        settings: Settings with a key service that decrypts encrypted footers, to list the keys of
            columns too; None to list only what is visible without a key.

    Returns:
        A row for each key: `path`, `kind`, `column`, `master_key_id`, `version`, `kek_id`,
        `storage`, `message` and `word`, as in `modcrypt.jobs.ScannedKey`; `failed` and `worker`.

    Raises:
        ValueError, KeyRetrievalError, OSError: As in `encrypt_table`.
    """
    return run_table_job(spark, plan_verb, SCAN, source, settings, **options)


def _to_tuple(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as a picklable tuple; raise ValueError for one string, a sequence of letters."""
    if isinstance(names, str):
        raise ValueError("columns must be a list of names, not a string")
    return tuple(names)
