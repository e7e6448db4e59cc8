"""Decrypt Parquet files to plaintext Parquet without decoding pages.

This reverses the encryptor: every PME module (a separately encrypted part of the file) is decrypted
and appended in the order of the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from modcrypt.errors import FormatError
from modcrypt.io.buffers import Output, open_output
from modcrypt.io.destinations import Destination
from modcrypt.io.sources import SourceLike, open_source
from modcrypt.keys import hide_keys
from modcrypt.parquet.convert.encrypted_feed import EncryptedFeed
from modcrypt.parquet.convert.encryptor import Addition, NewFile
from modcrypt.parquet.convert.plain_feed import SourceParts
from modcrypt.parquet.convert.plaintext_footer import copy_row_groups, plain_metadata
from modcrypt.parquet.convert.restoration import Kept, read_kept
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.properties import AnyDecryption
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.format.idl import copy, encode
from modcrypt.runtime.collector import paused_collector
from modcrypt.runtime.former_names import accept_former_names
from modcrypt.runtime.log import LOGGER


@hide_keys
@accept_former_names(properties="decryption")
@paused_collector()
def decrypt_parquet(
    source: SourceLike,
    destination: Destination,
    decryption: AnyDecryption,
    *,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    keep_unknown_fields: bool = False,
    exact: bool = True,
) -> tuple[str, ...]:
    """Decrypt a Parquet file of any compliant writer, module by module, without decoding a value.

    The plaintext of a file from `encrypt_parquet` is restored byte for byte, unless it was
    encrypted with `exact=False`, or keys are missing.

    Args:
        source: Path, fsspec URL, bytes or seekable binary file object.
        destination: Path or fsspec URL, at which the file appears complete or not at all; or a
            writable binary file object, which receives only authenticated bytes, but after an error
            not all.
        decryption: Key, its bytes or hex text, `Identity`, `Policy` or its path, `Settings`, or
            `FileDecryptionProperties`, which also have the caller's requirements.
        filesystem, overwrite, threads, progress: As for `encrypt_parquet`.
        keep_unknown_fields: Keep Thrift fields that modcrypt does not know if columns are omitted
            or null. Newer writers may put statistics of any column there, so by default such a file
            loses them; a file with all columns keeps them.
        exact: Restore every byte, as far as the file keeps what that needs; False makes a file
            with the same rows without it.

    Returns:
        The columns without a key, which were omitted or filled with nulls, depending on
            `decryption.on_missing_key`.

    Raises:
        PlaintextError: The file is not encrypted, or its footer signature was removed.
        IntegrityError: A module does not authenticate; the subclass and the message give details.
        KeyRetrievalError: A key is missing or was refused.
        UnsupportedFormatError: The file's algorithm is not among `decryption.accept_algorithms`, or
            modcrypt does not support a known layout.
        FormatError, LimitError: The file breaks the format, or a limit.
        ValueError: `threads` is below 1, or the destination is a file object on the source.
        TypeError: An argument has the wrong type.
        FileExistsError, OSError: The file system reports an error.
    """
    with open_source(source, filesystem=filesystem) as opened:
        file = OpenFile(opened, decryption, whole=True)
        plan = file.select()
        with open_output(
            destination, opened, overwrite=overwrite, threads=threads, filesystem=filesystem
        ) as out:
            out.progress = progress
            kept = read_kept(file, plan) if exact else None
            _write_plaintext(file, out, plan, keep_unknown_fields, kept)
    return plan.missing_names


def _write_plaintext(
    file: OpenFile, out: Output, plan: ReadPlan, keep_unknown_fields: bool, kept: Kept | None
) -> None:
    keeps = keep_unknown_fields or not plan.missing
    out.write(_write_body(file, out, plan, keeps, kept, share_chunks=True))
    if kept is not None and out.position != kept.size:
        raise FormatError(
            f"{file.source.name}: {out.position} bytes were restored of {kept.size}; decrypt the "
            "rows without restoring every byte: pass exact=False"
        )


def _write_body(
    file: OpenFile, out: Output, plan: ReadPlan, keep_unknown_fields: bool, kept: Kept | None, *,
    share_chunks: bool,
) -> bytes:  # fmt: skip
    """Write all but the end of the plaintext file, and return that."""
    old, absent = copy(plan.footer.metadata), plan.footer.absent
    old.row_groups = copy_row_groups(plan, share_chunks=share_chunks)
    parts = SourceParts(old, plan.leaves, [None] * len(plan.leaves), plan.spans)
    new = NewFile(out, MAGIC_PLAINTEXT, keep_unknown_fields=keep_unknown_fields)
    feed = EncryptedFeed(file.source, old, plan.ciphers)
    addition = Addition(new, feed, parts, kept=kept)
    addition.write()
    addition.moves.update(old.row_groups)
    metadata, nulls = plain_metadata(
        plan, old.row_groups, out.position, keep_unknown_fields=keep_unknown_fields, restore=True
    )
    if "num_rows" in absent:
        metadata.num_rows = 0
    out.write(nulls)
    if kept is not None:
        out.write(kept.end)
    return (kept and kept.footer) or close_tail(encode(metadata), MAGIC_PLAINTEXT)


class _Nowhere:
    """A sink that keeps nothing."""

    def append(self, data: memoryview | bytes) -> None:
        del data


def keep_footer(file: OpenFile, plan: ReadPlan, kept: Kept | None) -> Kept | None:
    """Return what a file keeps with the footer that decryption restores, for a copy without it.

    Returns:
        None if the copy also lacks fields of page headers or indexes, as a warning in the log says.

    Raises:
        IntegrityError, FormatError: As `decrypt_parquet`: all of the file is decrypted.
    """
    footer, sizes = b"", set[int]()
    for keeps in (False, True):
        out = Output(_Nowhere(), background=False)
        footer = _write_body(file, out, plan, keeps, kept, share_chunks=False)
        sizes.add(out.position)
    if len(sizes) > 1:
        LOGGER.warning(
            "%s: decryption of the copy will not restore every byte: page headers or indexes have "
            "fields that modcrypt does not know", file.source.name,
        )  # fmt: skip
        return None
    return replace(kept or Kept(), footer=footer, size=out.position + len(footer))
