"""Rewrite encrypted files: with other keys, without some columns, or with masked columns.

In one pass, every PME module (a separately encrypted part of the file) is decrypted and encrypted
again. Only the pages of masked columns are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from modcrypt.io.buffers import Output, open_output
from modcrypt.io.destinations import Destination, open_replacement
from modcrypt.io.places import Place, place_of
from modcrypt.io.sources import Source, SourceLike, open_source
from modcrypt.io.threads import check_threads
from modcrypt.keys import KeyLike, as_given_key, hide_keys
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    AnyEncryption,
    Encryption,
    FileDecryptionProperties,
    as_decryption,
    as_encryption,
    is_keyed,
)
from modcrypt.parquet.rewrite.changes import Change
from modcrypt.parquet.rewrite.file_rewrite import Choice, Rewriting, Rewritten, restore_properties
from modcrypt.runtime.collector import paused_collector


@hide_keys
def rekey_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: AnyDecryption,
    encryption: AnyEncryption,
    *,
    keep_unchanged: bool = False,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    dry_run: bool = False,
    keep_unknown_fields: bool = False,
) -> Rewritten:
    """Write an encrypted file with other keys, algorithm, footer mode, AAD prefix or key metadata.

    Every module is decrypted, and so authenticated, and encrypted again; no page is decoded.
    Columns without a key are an error, omitted or null, depending on `decryption.on_missing_key`.

    Args:
        source: Path, fsspec URL, bytes or seekable binary file object.
        destination: As for `encrypt_parquet`; it may be the source's own path.
        decryption: Properties that open the file. A plaintext footer's signature is always
            verified.
        encryption: Properties of the new file.
        keep_unchanged: Copy the pages of columns whose key stays, without decrypting them, if
            algorithm and AAD prefix stay too. The new file then has the `aad_file_unique` of the
            old one, so anyone who can alter the files can exchange modules under the same keys
            between them.
        filesystem: Filesystem of pyarrow or fsspec in which source and destination are paths.
        overwrite: Replace an existing destination; if False, raise FileExistsError.
        threads, progress: As for `encrypt_parquet`.
        dry_run: Open the footer, find the keys, and return what would happen to the columns,
            without writing anything or making a key.
        keep_unknown_fields: As for `encrypt_parquet`; it applies also if columns are omitted or
            null.

    Raises:
        ModcryptError: As `decrypt_parquet` and `encrypt_parquet`.
        ValueError, TypeError, OSError: As `encrypt_parquet`.
    """
    return _rewrite(
        source, destination, decryption, encryption,
        Change(keep_unchanged=keep_unchanged, keep_unknown_fields=keep_unknown_fields),
        filesystem, overwrite, threads, progress, dry_run,
    )  # fmt: skip


@hide_keys
def mask_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: AnyDecryption,
    encryption: AnyEncryption | None = None,
    *,
    null: Sequence[str] = (),
    hashed: Sequence[str] = (),
    drop: Sequence[str] = (),
    hash_key: KeyLike | None = None,
    read_restrictions: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    dry_run: bool = False,
    keep_unknown_fields: bool = False,
) -> Rewritten:
    """Write a file with some columns set to null, hashed or omitted, and the others unchanged.

    Statistics, indexes and bloom filters of masked columns are removed, and so is what engines that
    modcrypt knows record about them in the footer's key-value pairs; other pairs stay. Thrift
    fields that modcrypt does not know are removed at every level. No key is needed for columns that
    are omitted, or that are null together with all of their top-level field.

    The new file states in the pair `modcrypt.masked` which of its columns are null or hashed, and
    identifies the hash key by 8 bytes of an HMAC; omitted columns are not named. So nobody can hash
    values again with the same key by accident.

    Args:
        source, destination: As for `rekey_parquet`.
        decryption: Properties that open the file. With `require_encrypted=False` the file may be
            plaintext, and is masked and encrypted in one pass.
        encryption: Properties of the new file; None keeps keys, key metadata, modes and AAD prefix.
        null: Columns, or groups, whose values become null. Lists whose elements cannot be null,
            because the element itself is repeated, become empty.
        hashed: Columns, or groups, whose values become text: HMAC-SHA-256, in hex, of the value as
            text (of binary values their bytes), under a key derived from `hash_key`. Equal values
            have equal hashes, in all files with the same key and however they are stored, and nulls
            stay null.
        drop: Columns, or groups, that are omitted.
        hash_key: Key of 16, 24 or 32 bytes that is not a key of the old or new file. Anyone who has
            it can test guesses of values.
        read_restrictions: JSON of Iceberg's read restrictions, as a REST catalog sends them, for
            the field ids of the file: actions on columns, and no row filter, because a copy has all
            rows. They apply to columns that are not null or omitted.
        filesystem, overwrite, threads, progress, dry_run: As for `rekey_parquet`.
        keep_unknown_fields: Keep Thrift fields that modcrypt does not know, except in the metadata
            of masked column chunks. They may hold statistics of any column.

    Raises:
        ValueError: The file does not have a column, a column is named twice, or is already hashed
            with this key or masked; hash_key is missing or is also a key of the file; or all
            columns are dropped.
        UnsupportedFormatError: PyArrow cannot decode the type of a column to be masked, or the read
            restrictions cannot be applied.
        ModcryptError, TypeError, OSError: As `rekey_parquet`.
    """
    key = None if hash_key is None else as_given_key(hash_key)
    change = Change(
        null=null, hashed=hashed, drop=drop, hash_key=key, keep_unknown_fields=keep_unknown_fields,
        read_restrictions=read_restrictions,
    )  # fmt: skip
    if change.hashed and key is None:
        raise ValueError("hashed columns need a hash_key")
    if not (change.null or change.hashed or change.drop or read_restrictions):
        raise ValueError("no columns to mask; name columns in null, hashed or drop")
    return _rewrite(
        source, destination, decryption, encryption, change, filesystem, overwrite, threads,
        progress, dry_run,
    )  # fmt: skip


@hide_keys
def share_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: AnyDecryption,
    encryption: AnyEncryption,
    columns: Sequence[str],
    *,
    read_restrictions: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    dry_run: bool = False,
    keep_unknown_fields: bool = False,
) -> Rewritten:
    """Write a copy with only some columns, under keys of their own, for another party.

    The copy and its schema do not contain the other columns. Of the footer's key-value pairs, it
    contains only the Arrow schema, those of pandas and GeoParquet, and the note of masks, limited
    to the shared columns. It does not contain, at any level, Thrift fields that modcrypt does not
    know. Keys of other columns are not needed. The copy has a fresh `aad_file_unique`, so it does
    not reveal its origin.

    Args:
        source, destination, decryption, encryption: As for `rekey_parquet`. `encryption` names only
            shared columns.
        columns: Names of columns, or groups.
        read_restrictions: As for `mask_parquet`.
        filesystem, overwrite, threads, progress, dry_run: As for `rekey_parquet`.
        keep_unknown_fields: Keep Thrift fields that modcrypt does not know. They may hold
            statistics of any column, including columns that are not shared.

    Raises:
        ValueError: No columns are named, or the file does not have one of them.
        UnsupportedFormatError: The read restrictions cannot be applied.
        ModcryptError, TypeError, OSError: As `rekey_parquet`.
    """
    return _rewrite(
        source, destination, decryption, encryption,
        Change(
            only=columns, keep_unknown_fields=keep_unknown_fields,
            read_restrictions=read_restrictions,
        ),
        filesystem, overwrite, threads, progress, dry_run,
    )  # fmt: skip


def rekey_in_place(
    source: Source, place: Place, decryption: AnyDecryption, encryption: Encryption
) -> None:
    """Replace an encrypted file by one with other keys; data pages V2 keep their layout.

    Raise as `rekey_parquet`, and OSError if the file at `place` is no longer the source.
    """
    # Ignore a lenient on_missing_key for reading: here the loss would be permanent.
    strict_decryption = replace(_require_checked_footer(decryption), on_missing_key="error")
    file = OpenFile(source, strict_decryption, whole=True)
    change = Change(keep_levels=True)
    rewriting = Rewriting(file, Choice(file, change), encryption, change, place)
    with (
        rewriting.plan.properties.companion() as complete_companion,
        open_replacement(place, source.stamp) as sink,
    ):
        out = Output(sink, background=False)
        rewriting.write(out)
        out.close(complete=True)
        if complete_companion is not None:
            complete_companion()


def _require_checked_footer(properties: AnyDecryption) -> FileDecryptionProperties:
    """Require a verified footer: an altered one must not be encrypted or signed again."""
    return replace(as_decryption(properties), check_footer_integrity=True)


@paused_collector()
def _rewrite(
    source: SourceLike, destination: Destination, decryption: AnyDecryption,
    encryption: AnyEncryption | None, change: Change, filesystem: Any, overwrite: bool,
    threads: int | None, progress: Callable[[int], None] | None, dry_run: bool,
) -> Rewritten:  # fmt: skip
    check_threads(threads)
    strict_decryption = _require_checked_footer(decryption)
    if encryption is not None:
        encryption = as_encryption(encryption)
    with open_source(source, filesystem=filesystem) as opened:
        place = place_of(destination, filesystem)
        file = OpenFile(opened, strict_decryption, whole=True)
        choice = Choice(file, change)
        if encryption is None:
            encryption = restore_properties(file, choice.plan, place)
            change = replace(change, keep_levels=True)
        if dry_run:
            trial = encryption.for_check() if is_keyed(encryption) else encryption
            return Rewriting(file, choice, trial, change, place).result
        rewriting = Rewriting(file, choice, encryption, change, place, overwrite=overwrite)
        with (
            rewriting.plan.properties.companion() as complete_companion,
            open_output(
                destination, opened, overwrite=overwrite, threads=threads, filesystem=filesystem
            ) as out,
        ):
            out.progress = progress
            rewriting.write(out)
            if place is not None and opened.place and place.resolve() == opened.place.resolve():
                place.check_unchanged(opened.stamp)
            if complete_companion is not None:
                complete_companion()
    return rewriting.result
