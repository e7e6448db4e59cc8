"""A writable file object that encrypts its data into an AGS1 stream, block by block.

    write ──> whole blocks of the caller's data ────────┐
         └──> the rest: collected until a block is full ┴─> encrypt ─> sink, except the last tag

The writer holds back the last tag until the next block or `close`. A stream of whole blocks would
be well formed wherever it is cut between blocks. So the output of an abandoned writer, or of a
killed process, ends within a block, and no reader accepts it.
"""

from __future__ import annotations

import io
import sys
import threading
from contextlib import closing, suppress
from typing import Any, NoReturn

from modcrypt.aead import BLOCK_OVERHEAD, TAG_SIZE
from modcrypt.ags1.blocks import BlockCipher, Workers, block_cipher, split_blocks
from modcrypt.ags1.layout import (
    DEFAULT_BLOCK_LENGTH,
    HEADER_SIZE,
    check_block_length,
    encrypted_length,
    make_header,
)
from modcrypt.ags1.lengths import Ags1Key, takes_key
from modcrypt.io.buffers import Output, fill_bytes, open_output
from modcrypt.io.destinations import Destination
from modcrypt.keys import as_given_key
from modcrypt.keys.metadata import StandardKeyMetadata, as_prefix
from modcrypt.runtime.fork_safety import fork_safe

_LOT_BYTES = (4 << 20) + (1 << 10)
"""Bytes of blocks that are encrypted, perhaps by several threads, before each call of the sink."""


class _AbandonedError(Exception):
    """Closes the sink without publishing."""


class Ags1Writer(io.RawIOBase):
    """A write-only binary file object that encrypts its data into an AGS1 stream.

    Each `write` accepts all of its data, so do not wrap the writer in `io.BufferedWriter`: when an
    exception ends a `with` block, that would close the writer as if nothing had failed.

    The stream is complete when `close` has returned; a path or URL appears then, or not at all.
    An exception within `with`, `abandon`, a failed write, garbage collection (of the writer, or of
    an object that wraps and closes it) and a `close` while an exception propagates leave no file
    behind, and in a file object nothing that a reader accepts as a stream.
    Any thread may call `abandon`; it waits for a `write` or `close` in another thread.

    If losing a generated key would matter, store it before `close`: `key_metadata` afterwards only
    adds the length.

    Args:
        sink: Path, fsspec URL or writable binary file object. A file object is not closed.
        key: Key of 16, 24 or 32 bytes, or Iceberg's `StandardKeyMetadata` without a length.
            Use a fresh one for every file: files with the same key and AAD prefix are open to an
            exchange of blocks with the same index.
        aad_prefix: Beginning of the block AADs; None and empty mean the same.
        block_length: Bytes of plaintext in each block but the last, at most 64 MiB. Iceberg's Java
            only reads 1 MiB.
        overwrite: Whether to replace an existing file.
        filesystem: Filesystem of pyarrow or fsspec that contains the path.
        threads: Most threads that encrypt and write; by default the number of processors, up to 4.

    Raises:
        ValueError: An argument is out of range, or the key metadata contains a length, which means
            that a file has been written with it already.
        FileExistsError: The destination exists and `overwrite` is False.
    """

    _sink: Any = None  # before it is open and after it is closed
    _length: int | None = None
    _failed = False

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
        self._block = memoryview(b"")  # buffer of an incomplete block
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

        Raise ValueError if the writer is not closed, or was abandoned.
        """
        if self._length is None:
            raise ValueError("the stream is not complete: its length is only known after close")
        return self._length

    @property
    def key_metadata(self) -> StandardKeyMetadata:
        """Key, AAD prefix and length, as Iceberg stores them; raise as `encrypted_length`."""
        return self._metadata.with_length(self.encrypted_length)

    def write(self, data: Any) -> int:
        """Encrypt the blocks that `data` fills, buffer the rest, and return the length of `data`.

        Raises:
            ValueError: The writer is closed, or has failed.
            KeyExhaustedError: The key has encrypted 2**32 modules.
            OSError: The sink failed; the writer is abandoned.
        """
        view = memoryview(data).cast("B")
        with self._lock:
            self._check_open()
            try:
                done = self._fill_block(view) if self._filled else 0
                whole = len(view) - (len(view) - done) % self._block_length
                if done < whole:
                    self._encrypt(view[done:whole])
                self._fill_block(view[whole:])
            except BaseException:
                self._fail()
                raise
            self._written += len(view)
        return len(view)

    def _fill_block(self, view: memoryview) -> int:
        """Copy the data that fits into the incomplete block; encrypt the block once it is full."""
        if not (size := min(len(view), self._block_length - self._filled)):
            return 0
        if not self._block:
            self._block = memoryview(bytearray(self._block_length))
        self._block[self._filled : self._filled + size] = view[:size]
        self._filled += size
        if self._filled == self._block_length:
            self._filled = 0
            self._encrypt(self._block)
        return size

    def _encrypt(self, plaintext: memoryview) -> None:
        """Encrypt whole blocks, or the last one, and write all but the last tag."""
        output, length = self._output, self._block_length
        whole = max(1, _LOT_BYTES // (length + BLOCK_OVERHEAD)) * length
        for start in range(0, len(plaintext), whole) if plaintext else (0,):
            lot = plaintext[start : start + whole]
            size = encrypted_length(len(lot), length) - HEADER_SIZE
            output.reserve(TAG_SIZE + size)  # both at once: the tag alone would complete a stream
            output.write(self._held)
            out = output.view[output.at : output.at + size]
            self._blocks = _encrypt_blocks(
                self._workers, self._cipher, lot, length, self._blocks, out
            )
            self._held = bytes(out[-TAG_SIZE:])
            output.at += size - TAG_SIZE
            output.flush()

    def close(self) -> None:
        """Encrypt the incomplete block and complete the stream. Idempotent.

        While an exception propagates that was raised after the writer was made, `close` abandons
        the stream instead: objects that wrap this writer, such as those of fsspec and pandas, close
        it without passing on their exception. `close` also abandons the stream when the finalizer
        of a wrapping object calls it: a `pyarrow.parquet.ParquetWriter` that is garbage-collected
        closes its unfinished file.

        Raises:
            OSError: The sink failed; nothing is published.
            ValueError: An earlier error abandoned the stream, and no exception propagates.
        """
        with self._lock:
            if self.closed:
                if sys.exception() is None and not _in_finalizer():
                    self._check_complete()
                return
            error = sys.exception()
            failed = error is not None and error is not self._born_in
            if self._sink is None or failed or (_in_finalizer() and not self._born_in_del):
                self.abandon()
            else:
                self._complete()

    def _complete(self) -> None:
        self._output.check_process()
        try:
            if self._filled or not self._blocks:
                self._encrypt(self._block[: self._filled])
            self._output.write(self._held)
            length = self._output.position
            self._close_sink(None)
        except BaseException:
            self._fail()
            raise
        self._length = length
        super().close()

    def _fail(self) -> None:
        self._failed = True
        self.abandon()

    def _check_complete(self) -> None:
        if self._failed:
            raise ValueError("an earlier error abandoned the stream; nothing was written")

    def abandon(self) -> None:
        """Discard the stream: no path or URL appears; a file object gets no well-formed stream."""
        with self._lock:
            if self.closed:
                return
            try:
                with suppress(Exception):  # the first error is the one that matters
                    self._close_sink(_AbandonedError())
            finally:
                super().close()

    def _close_sink(self, error: BaseException | None) -> None:
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
            else:
                self._check_complete()

    def __del__(self) -> None:  # the inherited one would complete the stream
        if self._sink is not None:
            self.abandon()

    def _dealloc_warn(self, source: object) -> None:
        """Abandon the stream: `io` calls this before a collected wrapper closes the writer."""
        self.abandon()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the writer is closed")
        self._output.check_process()

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of plaintext bytes written so far."""
        self._check_open()
        return self._written

    def readinto(self, buffer: Any) -> NoReturn:
        """Raise an error: the file object is write-only."""
        raise io.UnsupportedOperation("an Ags1Writer is not readable")

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Ags1Writer can't be pickled or copied: it contains a key")

    def flush(self) -> None:
        """Do nothing: each block is written as soon as it is full, and never in part."""


def _in_finalizer() -> bool:
    """Return whether a `__del__` method is among the callers."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "__del__":
            return True
    return False


@takes_key
def encrypt(
    data: Any,
    key: Ags1Key,
    *,
    aad_prefix: bytes | None = None,
    block_length: int = DEFAULT_BLOCK_LENGTH,
) -> bytes:
    """Return the stream for the plaintext `data`.

    Arguments and errors are those of `Ags1Writer`. The length of the result is the trusted length
    that readers need.
    """
    check_block_length(block_length)
    cipher = block_cipher(key, aad_prefix)
    fresh_metadata(key, aad_prefix)
    view = memoryview(data).cast("B")

    def fill(out: memoryview) -> None:
        out[:HEADER_SIZE] = make_header(block_length)
        with closing(Workers(None, "modcrypt-ags1")) as workers:
            _encrypt_blocks(workers, cipher, view, block_length, 0, out[HEADER_SIZE:])

    return fill_bytes(encrypted_length(len(view), block_length), fill)


def _encrypt_blocks(
    workers: Workers, cipher: BlockCipher, plaintext: memoryview, block_length: int, first: int,
    out: memoryview,
) -> int:  # fmt: skip
    """Encrypt blocks from index `first` on into `out`; return the next index."""
    count = max(1, -(-len(plaintext) // block_length))
    frame = block_length + BLOCK_OVERHEAD

    def work(lot: range) -> None:
        whole = plaintext[lot.start * block_length : lot.stop * block_length]
        cipher.encrypt(whole, block_length, first + lot.start, out[lot.start * frame :])

    lots = split_blocks(0, count, max(1, DEFAULT_BLOCK_LENGTH // block_length))
    workers.spread(lots, len(plaintext), work)
    return first + count


def fresh_metadata(key: Ags1Key, aad_prefix: bytes | None) -> StandardKeyMetadata:
    """Return the key metadata for a new stream; raise ValueError if it already has a length."""
    if not isinstance(key, StandardKeyMetadata):
        prefix = None if aad_prefix is None else as_prefix(aad_prefix)
        return StandardKeyMetadata(key=as_given_key(key), aad_prefix=prefix)
    if key.file_length is not None:
        raise ValueError(
            "this key metadata has a length, so a file was written with it already: generate "
            "fresh metadata for each file"
        )
    return key
