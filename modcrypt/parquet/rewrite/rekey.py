"""Encrypted files made anew from encrypted files: under other keys, without columns, masked.

One pass: every module is opened and sealed again as it stands, pages never decoded; only masked
columns are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from modcrypt.io.buffers import Output, check_threads, open_output
from modcrypt.io.storage import Destination, Place, Source, SourceLike, open_source, place_of
from modcrypt.keys import KeyLike, as_key
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.properties import Encryption as EncryptionLike
from modcrypt.parquet.crypto.properties import (
    FileDecryptionProperties,
    check_decryption,
    check_encryption,
    is_keyed,
)
from modcrypt.parquet.rewrite.file_rewrite import Change, Choice, Rewriting, Rewritten, as_it_was
from modcrypt.tracebacks import converted

__all__ = ["mask_parquet", "rekey_in_place", "rekey_parquet", "share_parquet"]


def rekey_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike,
    *,
    keep_unchanged: bool = False,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    dry_run: bool = False,
    keep_unknown_fields: bool = False,
) -> Rewritten:
    """Write an encrypted file anew: other keys, algorithm, footer mode, AAD prefix, key metadata.

    Every module is opened, so authenticated, and sealed again; no page is decoded. Columns without
    a key are an error, left out or null, as `decryption.on_missing_key` says.

    Args:
        source: path, fsspec URL, bytes or seekable binary file object.
        destination: as of `encrypt_parquet`; may be the source's own path.
        decryption: opens the file. A plaintext footer's signature is verified in any case.
        encryption: of the new file.
        keep_unchanged: copy the pages of columns whose key stays, unopened, where algorithm and
            AAD prefix stay too. The new file then has the `aad_file_unique` of the old one, so who
            can alter files can put modules that the same keys seal from one into the other.
        filesystem: of pyarrow or fsspec, in which both are paths.
        overwrite: replace an existing destination; otherwise it is a FileExistsError.
        threads, progress: as of `encrypt_parquet`.
        dry_run: open the footer, find the keys, and say what would become of the columns; nothing
            is written, and no key is made.
        keep_unknown_fields: as of `encrypt_parquet`; and where columns are left out or null.

    Raises:
        ModcryptError: as `decrypt_parquet` and `encrypt_parquet`.
        ValueError, TypeError, OSError: as `encrypt_parquet`.
    """
    return _rewrite(
        source, destination, decryption, encryption,
        Change(keep_unchanged=keep_unchanged, keep_unknown_fields=keep_unknown_fields),
        filesystem, overwrite, threads, progress, dry_run,
    )  # fmt: skip


@converted("hash_key", as_key)
def mask_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike | None = None,
    *,
    null: Sequence[str] = (),
    hashed: Sequence[str] = (),
    drop: Sequence[str] = (),
    hash_key: KeyLike | None = None,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    dry_run: bool = False,
    keep_unknown_fields: bool = False,
) -> Rewritten:
    """Write a file anew with some columns set to null, hashed or left out, and the rest as it is.

    Statistics, indexes and bloom filters of masked columns go too, and what engines that modcrypt
    knows say of them in the footer's key-value pairs; other pairs stay. Thrift fields that modcrypt
    does not know are left out at every level. No key is needed for columns that are left out, or
    that are null with all of their top-level field.

    The new file says in the pair `modcrypt.masked` which of its columns are null or hashed by now,
    and tells the hash key from others by 8 bytes of an HMAC; columns that are left out are not
    named. So hashes are not hashed again with the same key, whoever tries.

    Args:
        source, destination: as of `rekey_parquet`.
        decryption: opens the file; with `require_encrypted=False` also a plaintext one, so that
            it is masked and encrypted in one pass.
        encryption: of the new file; None leaves keys, key metadata, modes and AAD prefix as they
            are.
        null: columns, or groups, whose values become null. Lists whose elements can't be null,
            because the element itself is repeated, become empty.
        hashed: columns, or groups, whose values become text: HMAC-SHA-256, under a key derived from
            `hash_key`, in hex, of the value as text (of binary values their bytes). Equal values
            have equal hashes, in all files with the same key and however they are stored, and
            nulls stay null.
        drop: columns, or groups, that are left out.
        hash_key: 16, 24 or 32 bytes, no key of the file, old or new. Who has it can try values out.
        filesystem, overwrite, threads, progress, dry_run: as of `rekey_parquet`.
        keep_unknown_fields: Keep Thrift fields that modcrypt does not know, except in the metadata
            of masked column chunks. They may hold statistics of any column.

    Raises:
        ValueError: columns that the file doesn't have, or named twice, or hashed with this key
            already; no key for hashes, or one that is also a key of the file; all columns dropped.
        UnsupportedFormatError: a column to be masked is of a kind that PyArrow can't decode so.
        ModcryptError, TypeError, OSError: as `rekey_parquet`.
    """
    if hashed and hash_key is None:
        raise ValueError("hashed columns need a hash_key")
    if not (null or hashed or drop):
        raise ValueError("name columns in null, hashed or drop")
    key = None if hash_key is None else as_key(hash_key)
    change = Change(
        null=null, hashed=hashed, drop=drop, hash_key=key, keep_unknown_fields=keep_unknown_fields
    )
    return _rewrite(
        source, destination, decryption, encryption, change, filesystem, overwrite, threads,
        progress, dry_run,
    )  # fmt: skip


def share_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike,
    columns: Sequence[str],
    *,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    dry_run: bool = False,
    keep_unknown_fields: bool = False,
) -> Rewritten:
    """Write a copy for somebody else: some columns under keys of their own, and nothing else.

    Other columns are not in the copy, nor in its schema; nor are key-value pairs of the footer, but
    for the Arrow schema, pandas', GeoParquet's and the note of masks, of the columns there; nor,
    at any level, Thrift fields that modcrypt does not know. Keys of other columns are not needed.
    The copy has a fresh `aad_file_unique`, so it says nothing of its origin.

    Args:
        source, destination, decryption, encryption: as of `rekey_parquet`. Names in `encryption`
            are those of columns that are there.
        columns: names of columns, or groups.
        filesystem, overwrite, threads, progress, dry_run: as of `rekey_parquet`.
        keep_unknown_fields: Keep Thrift fields that modcrypt does not know. They may hold
            statistics of any column, also of those that are not shared.

    Raises:
        ValueError: no columns, or columns that the file doesn't have.
        ModcryptError, TypeError, OSError: as `rekey_parquet`.
    """
    if not columns:
        raise ValueError("name the columns that are to be shared")
    return _rewrite(
        source, destination, decryption, encryption,
        Change(only=columns, keep_unknown_fields=keep_unknown_fields),
        filesystem, overwrite, threads, progress, dry_run,
    )  # fmt: skip


def rekey_in_place(
    source: Source,
    place: Place,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike,
) -> None:
    """Write an encrypted file anew where it is; data pages V2 keep their layout.

    Raises:
        OSError: from the file system, or the file there is no longer the source.
        ModcryptError, ValueError: as `rekey_parquet`.
    """
    # Whatever the caller puts up with when reading: here it would stay so for good.
    file = OpenFile(source, replace(_strict(decryption), on_missing_key="error"))
    change = Change(keep_levels=True)
    rewriting = Rewriting(file, Choice(file, change), encryption, change, place)
    with (
        rewriting.plan.properties.companion() as sealed,
        place.create(check=lambda: place.check_still(source)) as sink,
    ):
        out = Output(sink, background=False)
        rewriting.write(out)
        out.close(complete=True)
        if sealed is not None:
            sealed()


def _strict(properties: FileDecryptionProperties) -> FileDecryptionProperties:
    """Insist on a verified footer: an altered one must not be sealed or signed anew."""
    check_decryption(properties)
    return replace(properties, check_footer_integrity=True)


def _rewrite(
    source: SourceLike,
    destination: Destination,
    decryption: FileDecryptionProperties,
    encryption: EncryptionLike | None,
    change: Change,
    filesystem: Any,
    overwrite: bool,
    threads: int | None,
    progress: Callable[[int], None] | None,
    dry_run: bool,
) -> Rewritten:
    check_threads(threads)
    strict = _strict(decryption)
    if encryption is not None:
        check_encryption(encryption)
    with open_source(source, filesystem=filesystem) as opened:
        place = place_of(destination, filesystem)
        file = OpenFile(opened, strict)
        choice = Choice(file, change)
        if encryption is None:
            encryption = as_it_was(file, choice.plan, place)
            change = replace(change, keep_levels=True)
        if dry_run:
            by = encryption.for_check() if is_keyed(encryption) else encryption
            return Rewriting(file, choice, by, change, place).result
        rewriting = Rewriting(file, choice, encryption, change, place, overwrite=overwrite)
        with (
            rewriting.plan.properties.companion() as sealed,
            open_output(
                destination, opened, overwrite=overwrite, threads=threads, filesystem=filesystem
            ) as out,
        ):
            out.progress = progress
            rewriting.write(out)
            if place is not None and opened.place and place.real() == opened.place.real():
                place.check_still(opened)
            if sealed is not None:
                sealed()
    return rewriting.result
