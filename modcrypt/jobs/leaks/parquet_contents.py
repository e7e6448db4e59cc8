"""Find what a Parquet file, or a summary of several, shows to readers without a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from modcrypt.errors import FormatError, ModcryptError
from modcrypt.io.sources import Source
from modcrypt.jobs.leaks.exposure import SUMMARIES, Contents, Exposure, columns_of_folders
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, read_tail
from modcrypt.parquet.format.idl import decode
from modcrypt.parquet.format.schema import leaf_paths

_BOUNDS = ("min", "max", "min_value", "max_value")
_RECORD_KEYS = (b"hoodie_min_record_key", b"hoodie_max_record_key", b"org.apache.hudi.bloomfilter")

Path = tuple[str, ...]


def describe_parquet(source: Source, path: str, name: str) -> Contents:
    """Return the contents of a file that begins with a magic of Parquet."""
    try:
        tail = read_tail(source)
        if tail.magic == MAGIC_ENCRYPTED:
            return Contents(hidden=True)
        metadata = decode("FileMetaData", tail.data)[0]
        leaves = leaf_paths(metadata.schema)
        return _describe(metadata, leaves, path, name)
    except ModcryptError:
        what = "Parquet pages in plaintext, of a file without a readable footer"
        return _exposing(Exposure(kind="plaintext-parquet", path=path, what=what, anything=True))


def _exposing(*exposures: Exposure) -> Contents:
    return Contents(exposures=exposures)


def _describe(metadata: Any, leaves: list[Path], path: str, name: str) -> Contents:
    if name in SUMMARIES:
        bounded: set[Path] = set()
        for leaf, chunk in _chunks(metadata, leaves):
            bounded |= {leaf} if _is_bounded(chunk) else set()
            folders = (chunk.file_path or b"").rpartition(b"/")[0]
            bounded |= columns_of_folders(folders.decode("utf-8", "replace"))
        shown = "least and greatest values, or partitions" if bounded else "the schema"
        return _exposing(
            Exposure(
                kind="parquet-summary", path=path, what=f"a plaintext summary of footers: {shown}",
                columns=frozenset(bounded),
                schema=True,
            )
        )  # fmt: skip
    encrypted: set[Path] = set()
    plain: set[Path] = set()
    bounded_secret: set[Path] = set()
    for leaf, chunk in _chunks(metadata, leaves):
        if chunk.crypto_metadata is None:
            plain.add(leaf)
            continue
        encrypted.add(leaf)
        if _is_bounded(chunk):
            bounded_secret.add(leaf)
    exposures = []
    if plain or not (encrypted or metadata.encryption_algorithm is not None):
        what = "columns in plaintext" if encrypted else "a Parquet file in plaintext"
        exposures.append(
            Exposure(
                kind="plaintext-parquet", path=path, what=what, columns=frozenset(plain),
                schema=not encrypted,
            )
        )  # fmt: skip
    keys = {entry.key for entry in metadata.key_value_metadata or ()}
    if bounded_secret or (encrypted and keys.intersection(_RECORD_KEYS)):
        what = "least and greatest values in a plaintext footer"
        exposures.append(
            Exposure(
                kind="footer-statistics", path=path, what=what, columns=frozenset(bounded_secret),
                anything=not bounded_secret,
            )
        )  # fmt: skip
    return Contents(
        encrypted=frozenset(encrypted), plain=frozenset(plain), exposures=tuple(exposures)
    )


def _chunks(metadata: Any, leaves: list[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield each column chunk with its column."""
    for row_group in metadata.row_groups:
        if len(row_group.columns) > len(leaves):
            raise FormatError("a row group has more columns than the schema")
        yield from zip(leaves, row_group.columns, strict=False)


def _is_bounded(chunk: Any) -> bool:
    """Return whether a chunk's metadata in the footer has least or greatest values."""
    statistics = None if chunk.meta_data is None else chunk.meta_data.statistics
    if statistics is None:
        return False
    return any(getattr(statistics, name) is not None for name in _BOUNDS)
