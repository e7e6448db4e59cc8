"""A writable file object that seals what it is given into an AGS1 stream, block by block.

    write ──> whole blocks of the caller's data ─────┐
         └──> the rest: gathered until it is a block ┴─> sealed ─> sink, but for the last tag

The tag of the block sealed last stays here until the next block or `close`. A stream of whole
blocks would be a well-formed one wherever it is cut, so what an abandoned writer, or a killed
process, leaves behind ends within a block, and no reader takes it for a file.
"""

from __future__ import annotations

import io
import sys
import threading
from contextlib import closing, suppress
from typing import Any, NoReturn

from modcrypt.aead import BLOCK_OVERHEAD, TAG_SIZE
from modcrypt.ags1.blocks import BlockCipher, Workers, block_cipher, part
from modcrypt.ags1.layout import (
    DEFAULT_BLOCK_LENGTH,
    HEADER_SIZE,
    check_block_length,
    encrypted_length,
    make_header,
)
from modcrypt.ags1.lengths import Ags1Key, takes_key
from modcrypt.fork_safety import fork_safe
from modcrypt.io.buffers import Output, new_bytes, open_output
from modcrypt.io.storage import Destination
from modcrypt.key_metadata import StandardKeyMetadata, as_prefix
from modcrypt.keys import as_key

__all__ = ["Ags1Writer", "fresh_metadata", "seal"]

_LOT_BYTES = (4 << 20) + (1 << 10)
"""Bytes of blocks sealed, perhaps on several threads, before the sink is called."""


class _AbandonedError(Exception):
    """Ends the sink without publishing."""


class Ags1Writer(io.RawIOBase):
    """Seals what is written into an AGS1 stream, as a write-only binary file object.

    Every `write` is taken whole, so no `io.BufferedWriter` is needed around it, and none should
    be: where an exception ends a `with` block, it closes what is below it as if all were well.

    The stream is complete when `close` has returned; a path or URL appears then, or not at all.
    An exception within `with`, `abandon`, a failed write, garbage collection (of the writer, or of
    an object around it that closes it), or a `close` on the way of an exception leave nothing
    there, and in a file object what no reader takes for a stream.
    Any thread may call `abandon`; it waits for a `write` or `close` of another one.

    Store a generated key before `close`, if losing it would matter: what `key_metadata` gives
    afterwards adds no more than the length.

    Args:
        sink: path, fsspec URL, or a writable binary file object, which is not closed.
        key: a key of 16, 24 or 32 bytes, or Iceberg's `StandardKeyMetadata` without a length.
            Take a fresh one for every file: under one key, AAD prefix and index, the blocks of two
            files can stand in for each other.
        aad_prefix: what the block AADs begin with; None and empty mean the same.
        block_length: bytes of plaintext in each block but the last, 1 to 64 MiB. Iceberg's Java
            reads no other than 1 MiB.
        overwrite: whether to replace what is there.
        filesystem: where a path is to be written: a filesystem of pyarrow or fsspec.
        threads: how many may seal and write; by default as many as there are processors, up to 4.

    Raises:
        ValueError: one of the arguments is out of its range, or key metadata has a length: it is
            that of a file which is written already.
        FileExistsError: the destination exists and `overwrite` is False.
    """

    _sink: Any = None  # until it is open, and when it is done
    _length: int | None = None

    @takes_key
    def __init__(
        self,
        sink: Destination,
        key: Ags1Key,
        *,
        aad_prefix: bytes | None = None,
        block_length: int = DEFAULT_BLOCK_LENGTH,
        overwrite: bool = True,
        filesystem: Any = None,
        threads: int | None = None,
    ) -> None:
        check_block_length(block_length)
        self._cipher = block_cipher(key, aad_prefix)
        self._metadata = fresh_metadata(key, aad_prefix)
        self._block_length = block_length
        self._workers = Workers(threads, "modcrypt-ags1")
        self._gathered = memoryview(b"")  # a block in the making
        self._filled = 0
        self._blocks = self._written = 0
        self._held = make_header(block_length)
        # `abandon` must not close a descriptor that another thread is writing to.
        self._lock = fork_safe(threading.RLock())
        self._born_in, self._born_in_del = sys.exception(), _in_finalizer()
        self._sink = open_output(
            sink, None, overwrite=overwrite, threads=threads, filesystem=filesystem
        )
        try:
            self._output: Output = self._sink.__enter__()
        except BaseException:
            self._sink = None
            raise

    @property
    def block_length(self) -> int:
        """Bytes of plaintext in each block but the last."""
        return self._block_length

    @property
    def encrypted_length(self) -> int:
        """Length of the stream in bytes: the trusted length that readers need. Store it.

        Raises:
            ValueError: the writer is not closed, or was abandoned.
        """
        if self._length is None:
            raise ValueError("the stream is not complete: its length is known after close")
        return self._length

    @property
    def key_metadata(self) -> StandardKeyMetadata:
        """Key, AAD prefix and length of the stream, as Iceberg keeps them; raises as above."""
        return self._metadata.with_length(self.encrypted_length)

    # --- blocks --------------------------------------------------------------------------------

    def write(self, data: Any) -> int:
        """Seal all the blocks that `data` fills, and gather the rest; give its length in bytes.

        Raises:
            ValueError: the writer is closed, or has failed.
            KeyExhaustedError: the key has done 2**32 seals.
            OSError: of the sink; the writer is abandoned.
        """
        view = memoryview(data).cast("B")
        with self._lock:
            self._check_open()
            try:
                done = self._gather(view) if self._filled else 0
                whole = len(view) - (len(view) - done) % self._block_length
                if done < whole:
                    self._seal(view[done:whole])
                self._gather(view[whole:])
            except BaseException:
                self.abandon()
                raise
            self._written += len(view)
        return len(view)

    def _gather(self, view: memoryview) -> int:
        """Take what fits into the block in the making, and seal it once full."""
        size = min(len(view), self._block_length - self._filled)
        if not size:
            return 0
        if not self._gathered:
            self._gathered = memoryview(bytearray(self._block_length))
        self._gathered[self._filled : self._filled + size] = view[:size]
        self._filled += size
        if self._filled == self._block_length:
            self._filled = 0
            self._seal(self._gathered)
        return size

    def _seal(self, plaintext: memoryview) -> None:
        """Seal whole blocks, or the last one, and hand over all but the last tag."""
        lot = max(1, _LOT_BYTES // (self._block_length + BLOCK_OVERHEAD)) * self._block_length
        for start in range(0, len(plaintext), lot) if plaintext else (0,):
            self._seal_lot(plaintext[start : start + lot])

    def _seal_lot(self, plaintext: memoryview) -> None:
        output = self._output
        size = encrypted_length(len(plaintext), self._block_length) - HEADER_SIZE
        output.reserve(TAG_SIZE + size)  # both at once: the held tag alone would end a stream
        output.write(self._held)
        out = output.view[output.at : output.at + size]
        self._blocks = _seal_blocks(
            self._workers, self._cipher, plaintext, self._block_length, self._blocks, out
        )
        self._held = bytes(out[-TAG_SIZE:])
        output.at += size - TAG_SIZE
        output.flush()

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Seal what is gathered and complete the stream. Again, it does nothing.

        Called on the way of an exception that is younger than the writer, it abandons instead:
        so `with` blocks around this writer end that can't tell it why (fsspec's and pandas').
        Called by the finalizer of an object around it, it abandons, too: an abandoned
        `pyarrow.parquet.ParquetWriter` closes what it has written so far.

        Raises:
            OSError: of the sink; nothing is published.
        """
        with self._lock:
            if self.closed:
                return
            error = sys.exception()
            failed = error is not None and error is not self._born_in
            if self._sink is None or failed or (_in_finalizer() and not self._born_in_del):
                self.abandon()
            else:
                self._complete()

    def _complete(self) -> None:
        try:
            if self._filled or not self._blocks:
                self._seal(self._gathered[: self._filled])
            self._output.write(self._held)
            length = self._output.position
            self._end(None)
        except BaseException:
            self.abandon()
            raise
        self._length = length
        super().close()

    def abandon(self) -> None:
        """Give up: no path or URL appears, and a file object holds no well-formed stream."""
        with self._lock:
            if self.closed:
                return
            try:
                with suppress(Exception):  # what went wrong first is what matters
                    self._end(_AbandonedError())
            finally:
                super().close()

    def _end(self, error: BaseException | None) -> None:
        sink, self._sink, self._born_in = self._sink, None, None
        self._workers.close()
        if sink is not None:
            sink.__exit__(None if error is None else type(error), error, None)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._lock:
            if error is not None:
                self.abandon()
            elif not self.closed:
                self._complete()

    def __del__(self) -> None:  # the inherited one would complete the stream
        if self._sink is not None:
            self.abandon()

    def _dealloc_warn(self, source: object) -> None:
        """Abandon: so `io` says that it collects what is around this, and is about to close it."""
        self.abandon()

    # --- the file protocol ---------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the writer is closed")

    def writable(self) -> bool:
        """Say that it can be written."""
        return True

    def tell(self) -> int:
        """Give the bytes of plaintext written so far."""
        self._check_open()
        return self._written

    def readinto(self, buffer: Any) -> NoReturn:
        """Refuse to read."""
        raise io.UnsupportedOperation("an Ags1Writer is not readable")

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Ags1Writer can't be pickled or copied: it has a key")

    def flush(self) -> None:
        """Do nothing: blocks are handed over as soon as they are full, a part of one never is."""


def _in_finalizer() -> bool:
    """Return whether a `__del__` method is among the callers."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "__del__":
            return True
    return False


@takes_key
def seal(
    data: Any,
    key: Ags1Key,
    *,
    aad_prefix: bytes | None = None,
    block_length: int = DEFAULT_BLOCK_LENGTH,
) -> bytes:
    """Give the stream that holds `data`; arguments and errors are those of `Ags1Writer`.

    The length of the result is the trusted length that readers need.
    """
    check_block_length(block_length)
    cipher = block_cipher(key, aad_prefix)
    fresh_metadata(key, aad_prefix)
    view = memoryview(data).cast("B")
    whole, out = new_bytes(encrypted_length(len(view), block_length))
    out[:HEADER_SIZE] = make_header(block_length)
    with closing(Workers(None, "modcrypt-ags1")) as workers:
        _seal_blocks(workers, cipher, view, block_length, 0, out[HEADER_SIZE:])
    return whole


def _seal_blocks(
    workers: Workers,
    cipher: BlockCipher,
    plaintext: memoryview,
    block_length: int,
    first: int,
    out: memoryview,
) -> int:
    """Seal blocks, the first of which has the index `first`, into `out`; give the next index."""
    count = max(1, -(-len(plaintext) // block_length))
    frame = block_length + BLOCK_OVERHEAD

    def work(lot: range) -> None:
        whole = plaintext[lot.start * block_length : lot.stop * block_length]
        sealed = out[lot.start * frame : lot.stop * frame]
        cipher.seal(whole, block_length, first + lot.start, sealed)

    lots = part(0, count, max(1, DEFAULT_BLOCK_LENGTH // block_length))
    workers.spread(lots, len(plaintext), work)
    return first + count


def fresh_metadata(key: Ags1Key, aad_prefix: bytes | None) -> StandardKeyMetadata:
    """Give the key metadata of a stream to be written, which has no length yet.

    Raises:
        ValueError: it has one.
    """
    if not isinstance(key, StandardKeyMetadata):
        prefix = None if aad_prefix is None else as_prefix(aad_prefix)
        return StandardKeyMetadata(key=as_key(key), aad_prefix=prefix)
    if key.file_length is not None:
        raise ValueError(
            "this key metadata has a length, so a file is written with it already: generate "
            "fresh metadata for each file"
        )
    return key
