"""Write Polars frames as encrypted Parquet: Polars encodes in memory, modcrypt encrypts.

Polars encodes faster than PyArrow, needs no conversion, and its own types come back when it reads
the file. Row groups are encoded ahead on several threads while the calling thread encrypts them in
order. This module does not import Polars: a caller who passes a frame has done so.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from modcrypt.io.buffers import WORTH_A_THREAD, open_output
from modcrypt.io.destinations import Destination
from modcrypt.io.places import place_of
from modcrypt.io.sources import MemorySource
from modcrypt.io.threads import check_threads, in_threads
from modcrypt.parquet.convert.encryption_plan import plan_encryption
from modcrypt.parquet.convert.encryptor import Encryption
from modcrypt.parquet.convert.plain_feed import PlainFeed
from modcrypt.parquet.crypto.properties import AnyEncryption, as_encryption

if TYPE_CHECKING:
    import polars

_CODECS = {"none": "uncompressed"} | {c: c for c in ("snappy", "gzip", "brotli", "zstd", "lz4")}
_MAX_LEVELS = {"gzip": 9, "brotli": 11, "zstd": 22}


def polars_options(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return options of PyArrow's writer as Polars names them, or None if Polars lacks one."""
    rest = dict(options)
    compression, level = rest.pop("compression", "snappy"), rest.pop("compression_level", None)
    statistics, page_size = rest.pop("write_statistics", True), rest.pop("data_page_size", None)
    codec = _CODECS.get(compression.lower()) if isinstance(compression, str) else None
    if rest or codec is None or not isinstance(statistics, bool):
        return None
    if level is not None and not _is_count(level, _MAX_LEVELS.get(codec, 0)):
        return None
    if page_size is not None and not _is_count(page_size, 1 << 30):
        return None
    return {
        "compression": codec, "compression_level": level, "statistics": statistics,
        "data_page_size": page_size,
    }  # fmt: skip


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def write_frame(
    frame: polars.DataFrame, where: Destination, encryption: AnyEncryption,
    options: Mapping[str, Any], *, row_group_size: int, encoded_together: int, filesystem: Any,
    overwrite: bool, threads: int,
) -> None:  # fmt: skip
    """Write a frame as an encrypted file, in row groups of `row_group_size` rows.

    Small row groups are encoded together up to `encoded_together` bytes of memory; `threads`, at
    least 2, is the number of pieces of the frame that are encoded at once. `options` is the result
    of `polars_options`; the other arguments and errors are those of `write_table`. Raise
    polars.exceptions.PolarsError if Polars cannot encode the frame.
    """
    check_threads(threads)
    encode = partial(_encode, options=dict(options) | {"row_group_size": row_group_size})
    empty = MemorySource(encode(frame.clear()))
    place = place_of(where, filesystem)
    plan = plan_encryption(empty, as_encryption(encryption), place=place, overwrite=overwrite)
    size = int(frame.estimated_size())
    together = max(1, encoded_together * frame.height // max(1, size * row_group_size))
    pieces = frame.iter_slices(together * row_group_size)
    if size <= WORTH_A_THREAD:
        threads = 1
    with (
        plan.properties.companion() as complete_companion,
        open_output(
            where, None, overwrite=overwrite, threads=threads, filesystem=filesystem
        ) as out,
    ):
        file = Encryption(out, plan.properties)
        encoded = (
            map(encode, pieces)
            if threads == 1
            else in_threads(encode, pieces, threads, "modcrypt-encoder", ahead=1)
        )
        for data in encoded:
            source = MemorySource(data)
            groups = plan_encryption(source, plan.properties, len(file.row_groups))
            file.add(PlainFeed(source), groups, hold_indexes=True)
        file.close(plan.metadata)
        if complete_companion is not None:
            complete_companion()


def _encode(frame: polars.DataFrame, options: Mapping[str, Any]) -> memoryview:
    out = io.BytesIO()
    frame.write_parquet(out, **options)
    return out.getbuffer()
