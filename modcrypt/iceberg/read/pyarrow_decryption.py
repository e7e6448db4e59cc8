"""Encrypted Parquet files that PyArrow's own decryption may read, which takes it half the time.

PyArrow takes the name of the algorithm from the file, where nothing authenticates it: a forged
`AES_GCM_CTR_V1` would turn authentication off. So the file's end is looked at before, and what
was looked at is what PyArrow is given, whatever the storage says when it is asked again. Only what
Iceberg writes comes here: a sealed footer, AES_GCM_V1, an AAD prefix that is not stored. The rest,
and whatever PyArrow refuses, is `view`'s, which says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from modcrypt.errors import FormatError
from modcrypt.iceberg.read.object_lifetimes import lent
from modcrypt.io.buffers import Shared
from modcrypt.io.seekable import SeekableFile
from modcrypt.io.storage import MemorySource, Source
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.keys import key_bytes
from modcrypt.parquet.crypto.footer import named_algorithm
from modcrypt.parquet.crypto.properties import FILE_UNIQUE_SIZE, GCM_V1
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, TAIL_SIZE, read_tail
from modcrypt.parquet.format.idl import decode
from modcrypt.tracebacks import hide_frames

__all__ = ["HeldSource", "Readable", "StoredFile", "open_natively", "whole_if_small"]

SMALL = 1 << 20
"""Bytes of a file that is read at once, and not in parts."""


@dataclass(frozen=True, slots=True)
class Readable:
    """A file as PyArrow may read it.

    Attributes:
        file: its bytes, as a file object of Python or PyArrow.
        properties: by which PyArrow decrypts it; None for plaintext.
    """

    file: Any
    properties: Any = field(default=None, repr=False)

    def parquet(self) -> pq.ParquetFile:
        """Open it."""
        self.file.seek(0)
        # Column chunks of a store are asked for all at once; of a disk, one by one takes less time.
        ahead = isinstance(self.file, StoredFile) and self.file.is_remote
        return pq.ParquetFile(self.file, decryption_properties=self.properties, pre_buffer=ahead)

    def groups(self, filters: pc.Expression, schema: pa.Schema) -> set[int]:
        """Give the row groups whose statistics don't rule out a filter."""
        self.file.seek(0)
        options = {} if self.properties is None else {"decryption_properties": self.properties}
        how = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(**options)
        )
        fragment = how.make_fragment(self.file)
        return {one.row_groups[0].id for one in fragment.split_by_row_group(filters, schema)}


def whole_if_small(file: SeekableFile) -> Any:
    """Give a file in memory, if it is small: PyArrow's reads of its parts take longer."""
    return _in_memory(file.read()) if file.size <= SMALL else file


def _in_memory(data: bytes | memoryview) -> pa.BufferReader:
    """Give bytes in memory of PyArrow's own.

    Its threads may let go of them when Python is ending already, and with memory of Python's they
    would bring the process down.
    """
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return pa.BufferReader(buffer)


def open_natively(source: Source, keys: StandardKeyMetadata) -> Readable | None:
    """Give a file to PyArrow's decryption; None if that is not to read it, or can't.

    Raises:
        OSError: from the file system.
        FormatError, LimitError, TruncationError: it is no Parquet file, or was cut short.
    """
    properties = _properties(keys)
    if properties is None:
        return None
    if source.size <= SMALL:
        source = MemorySource(source.read_at(0, source.size), source.name)
    tail = read_tail(source)
    if tail.magic != MAGIC_ENCRYPTED or not _is_icebergs(tail.data, keys):
        return None
    if isinstance(source, MemorySource):
        return Readable(_in_memory(source.view), properties)
    end = tail.data + len(tail.data).to_bytes(TAIL_SIZE - len(tail.magic), "little") + tail.magic
    return Readable(StoredFile(source, end), properties)


@hide_frames
def _properties(keys: StandardKeyMetadata) -> Any:
    import pyarrow.parquet.encryption as pe

    make = getattr(pe, "create_decryption_properties", None)  # older versions have none
    return make and make(key_bytes(keys.key), aad_prefix=keys.aad_prefix or None)


def _is_icebergs(tail: bytes, keys: StandardKeyMetadata) -> bool:
    """Tell whether what a file says of its encryption is what Iceberg's writers say."""
    crypto, _ = decode("FileCryptoMetaData", tail)
    try:
        name, algorithm = named_algorithm(crypto.encryption_algorithm)
    except FormatError:
        return False
    unique, supplied = algorithm.aad_file_unique, bool(algorithm.supply_aad_prefix)
    return (
        name == GCM_V1
        and algorithm.aad_prefix is None
        and supplied == bool(keys.aad_prefix)
        and len(unique or b"") == FILE_UNIQUE_SIZE
    )


class HeldSource(Source):
    """A source that is closed after the last read of it, whoever closes it before."""

    def __init__(self, source: Source, shared: Shared) -> None:
        self._source, self._shared = source, shared
        self.name, self.size, self.place = source.name, source.size, source.place
        self.stamp, self.least_read = source.stamp, source.least_read

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        with self._shared.use():
            self._source.read_into(offset, view)

    def read_at(self, offset: int, length: int) -> bytes:
        """Give exactly `length` bytes from `offset`."""
        with self._shared.use():
            return self._source.read_at(offset, length)


class StoredFile(SeekableFile):
    """A file as it is stored; its end may be kept as it was when it was checked."""

    def __init__(self, source: Source, end: bytes = b"") -> None:
        self.size = source.size
        self.is_remote = source.least_read > 0
        self._source, self._end = source, end
        lent(self)

    def read_buffer(self, size: int) -> pa.Buffer:
        """Give a pyarrow Buffer of up to `size` bytes: pyarrow calls this where it is there."""
        buffer = pa.allocate_buffer(self._clipped(self._cursor, size))
        self._advance(memoryview(buffer).cast("B"))
        return lent(buffer)

    def _fill(self, offset: int, out: memoryview) -> None:
        kept = self.size - len(self._end)
        stored = max(0, min(len(out), kept - offset))
        if stored:
            self._source.read_into(offset, out[:stored])
        if stored < len(out):
            start = offset + stored - kept
            out[stored:] = self._end[start : start + len(out) - stored]
