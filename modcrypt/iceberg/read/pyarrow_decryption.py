"""Read encrypted Parquet files with PyArrow's own decryption, which takes half the time.

PyArrow takes the name of the algorithm from the file, where nothing authenticates it: a forged
`AES_GCM_CTR_V1` would disable authentication. Therefore this module checks the end of the file
first, and passes the checked bytes to PyArrow, whatever the storage returns later. It accepts only
what Iceberg writes: an encrypted footer, AES_GCM_V1, an AAD prefix that is not stored. `view` reads
all other files, and those that PyArrow rejects, and reports errors.
"""

from __future__ import annotations

import atexit
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from modcrypt.errors import FormatError
from modcrypt.io.seekable import SeekableFile
from modcrypt.io.sources import MemorySource, Source
from modcrypt.io.threads import SharedResources
from modcrypt.keys import key_bytes
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.module_ids import GCM_V1
from modcrypt.parquet.crypto.crypto_fields import read_algorithm
from modcrypt.parquet.crypto.properties import FILE_UNIQUE_SIZE
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, TAIL_SIZE, read_tail
from modcrypt.parquet.format.idl import decode
from modcrypt.runtime.tracebacks import hide_frames

SMALL = 1 << 20  # maximum size in bytes of a file that is read at once instead of in parts

INT96: Final[dict[str, Any]] = {"coerce_int96_timestamp_unit": "us"}
"""Option for old times: nanoseconds, PyArrow's default, wrap around in 1677 and 2262."""

MAX_WAIT = 1.0
"""Maximum waiting time at exit, in seconds: objects that the script itself left open stay alive."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Readable:
    """A file that PyArrow may read."""

    file: Any  # bytes of the file, as a file object of Python or PyArrow
    # Properties for PyArrow's decryption; None for plaintext.
    properties: Any = field(default=None, repr=False)

    def parquet(self) -> pq.ParquetFile:
        """Open the file."""
        self.file.seek(0)
        # Object stores: request all column chunks at once. Local disks: one by one is faster.
        ahead = isinstance(self.file, StoredFile) and self.file.is_remote
        return pq.ParquetFile(
            self.file, decryption_properties=self.properties, pre_buffer=ahead, **INT96
        )

    def groups(self, filters: pc.Expression, schema: pa.Schema) -> set[int]:
        """Return the row groups whose statistics do not exclude a filter."""
        self.file.seek(0)
        options = {} if self.properties is None else {"decryption_properties": self.properties}
        file_format = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(**options), **INT96
        )
        fragment = file_format.make_fragment(self.file)
        return {part.row_groups[0].id for part in fragment.split_by_row_group(filters, schema)}


def load_if_small(file: SeekableFile) -> Any:
    """Return a file in memory if it is small: PyArrow's reads of its parts take longer."""
    return _copy_to_arrow(file.read()) if file.size <= SMALL else file


def _copy_to_arrow(data: bytes | memoryview) -> pa.BufferReader:
    """Return a reader of a copy in PyArrow's own memory."""
    # PyArrow's threads may release it during Python's shutdown; with Python's memory, that would
    # abort the process.
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return pa.BufferReader(buffer)


def open_natively(source: Source, keys: StandardKeyMetadata) -> Readable | None:
    """Return a file for PyArrow's decryption; None if PyArrow must not or cannot read it.

    Raises:
        FormatError, LimitError, TruncationError: The file is not a Parquet file, or is truncated.
    """
    if (properties := _decryption_properties(keys)) is None:
        return None
    if source.size <= SMALL:
        source = MemorySource(source.read_at(0, source.size), source.name)
    tail = read_tail(source)
    if tail.magic != MAGIC_ENCRYPTED or not _is_written_by_iceberg(tail.data, keys):
        return None
    if isinstance(source, MemorySource):
        return Readable(_copy_to_arrow(source.view), properties)
    end = tail.data + len(tail.data).to_bytes(TAIL_SIZE - len(tail.magic), "little") + tail.magic
    return Readable(StoredFile(source, end), properties)


@hide_frames
def _decryption_properties(keys: StandardKeyMetadata) -> Any:
    import pyarrow.parquet.encryption as pe

    make = getattr(pe, "create_decryption_properties", None)  # missing in older versions
    return make and make(key_bytes(keys.key), aad_prefix=keys.aad_prefix or None)


def _is_written_by_iceberg(tail: bytes, keys: StandardKeyMetadata) -> bool:
    """Return whether a file declares the encryption that Iceberg's writers use."""
    crypto, _ = decode("FileCryptoMetaData", tail)
    try:
        name, algorithm = read_algorithm(crypto.encryption_algorithm)
    except FormatError:
        return False
    unique, supplied = algorithm.aad_file_unique, bool(algorithm.supply_aad_prefix)
    return (
        name == GCM_V1
        and algorithm.aad_prefix is None
        and supplied == bool(keys.aad_prefix)
        and len(unique or b"") == FILE_UNIQUE_SIZE
    )


#
# A thread of PyArrow may be the last to hold a file object or a buffer, a moment after the work
# that needed it is done. Releasing it requires the interpreter. If the interpreter is shutting
# down, Python (before 3.14) ends the thread instead, which makes C++ abort the process: a script
# that has read all its rows dies with SIGABRT.

_TRACKED: dict[int, weakref.ref[Any]] = {}


def _track_lifetime(thing: T) -> T:
    """Return an object for PyArrow, and wait at the interpreter's exit until it is released."""
    reference: weakref.ref[Any] = weakref.ref(thing, lambda gone: _TRACKED.pop(id(gone), None))
    _TRACKED[id(reference)] = reference
    return thing


@atexit.register
def _wait() -> None:
    end = time.monotonic() + MAX_WAIT
    while _TRACKED and time.monotonic() < end:
        time.sleep(0.001)


class HeldSource(Source):
    """A source that stays open until the last read ends, even if it is closed before."""

    def __init__(self, source: Source, shared: SharedResources) -> None:
        self._source, self._shared = source, shared
        self.name, self.size, self.place = source.name, source.size, source.place
        self.stamp, self.least_read = source.stamp, source.least_read

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` with bytes from `offset`."""
        with self._shared:
            self._source.read_into(offset, view)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        with self._shared:
            return self._source.read_at(offset, length)


class StoredFile(SeekableFile):
    """A file as stored; its end may be replaced by the bytes that were checked."""

    def __init__(self, source: Source, end: bytes = b"") -> None:
        self.size, self.name = source.size, source.name
        self.is_remote = source.least_read > 0
        self._source, self._end = source, end
        _track_lifetime(self)

    def read_buffer(self, size: int) -> pa.Buffer:
        """Return a PyArrow buffer of up to `size` bytes; PyArrow calls this method if it exists."""
        buffer = pa.allocate_buffer(self._clip(self._cursor, size))
        self._advance(memoryview(buffer).cast("B"))
        return _track_lifetime(buffer)

    def _fill(self, offset: int, out: memoryview) -> None:
        end_start = self.size - len(self._end)
        if stored := max(0, min(len(out), end_start - offset)):
            self._source.read_into(offset, out[:stored])
        if stored < len(out):
            start = offset + stored - end_start
            out[stored:] = self._end[start : start + len(out) - stored]
