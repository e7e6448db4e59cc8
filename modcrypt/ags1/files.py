"""Encrypt and decrypt whole files and pipes as AGS1 streams; inspect a stream without its key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from modcrypt.aead import BLOCK_OVERHEAD
from modcrypt.ags1.blocks import BlockCipher, block_cipher
from modcrypt.ags1.layout import (
    DEFAULT_BLOCK_LENGTH,
    HEADER_SIZE,
    Layout,
    check_block_length,
    parse_header,
)
from modcrypt.ags1.lengths import Ags1Key, TrustedLength, check_length, takes_key, trusted_length
from modcrypt.ags1.writer import Ags1Writer, fresh_metadata
from modcrypt.io.buffers import Output, check_apart, open_output
from modcrypt.io.destinations import Destination
from modcrypt.io.sources import SourceLike, Stream, open_stream
from modcrypt.io.threads import check_threads

_READ_BYTES = 4 << 20  # bytes of plaintext read at once, enough to occupy several threads

_LOT_BYTES = 1 << 20
"""Bytes of a stream read at once, or one block: few enough for the processor's cache."""

Progress = Callable[[int], None]


@takes_key
def encrypt_ags1(
    source: SourceLike,
    destination: Destination,
    key: Ags1Key,
    *,
    aad_prefix: bytes | None = None,
    block_length: int = DEFAULT_BLOCK_LENGTH,
    overwrite: bool = True,
    filesystem: Any = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Encrypt a file or pipe into an AGS1 stream.

    Args:
        source: Path, URL, bytes or binary file object. Pipes are allowed and read to their end.
        destination: Path, URL or writable binary file object.
        key, aad_prefix, block_length, overwrite, threads: As for `Ags1Writer`.
        filesystem: Filesystem of pyarrow or fsspec that contains both paths.
        progress: Function called with the number of plaintext bytes encrypted so far.

    Returns:
        The length of the stream in bytes: the trusted length that readers need. Store it.

    Raises:
        Exception: As `Ags1Writer`, or the error of `progress`; no destination appears then.
    """
    check_block_length(block_length)
    block_cipher(key, aad_prefix)
    fresh_metadata(key, aad_prefix)
    check_threads(threads)
    with (
        open_stream(source, filesystem=filesystem) as stream,
        Ags1Writer(
            destination,
            key,
            aad_prefix=aad_prefix,
            block_length=block_length,
            overwrite=overwrite,
            filesystem=filesystem,
            threads=threads,
        ) as writer,
    ):
        if stream.source is not None:
            check_apart(stream.source, destination)
        buffer = memoryview(bytearray(max(1, _READ_BYTES // block_length) * block_length))
        size = len(buffer)
        while size == len(buffer):
            size = stream.readinto(buffer)
            writer.write(buffer[:size])
            if progress is not None:
                progress(writer.tell())
    return writer.encrypted_length


@takes_key
def decrypt_ags1(
    source: SourceLike,
    destination: Destination,
    key: Ags1Key,
    *,
    aad_prefix: bytes | None = None,
    length: TrustedLength | None = None,
    overwrite: bool = True,
    filesystem: Any = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Decrypt an AGS1 stream from a file or pipe.

    A path or URL appears once every block has been authenticated and the length is the trusted
    one. A file object receives each block once that block has been authenticated; whether a stream
    from a pipe is cut short or too long is only known at its end.

    Args:
        source: Path, URL, bytes or binary file object. Pipes are allowed and read to their end.
        destination: Path, URL or writable binary file object.
        key, aad_prefix, length: As for `Ags1Reader`.
        overwrite: Whether to replace an existing destination.
        filesystem: Filesystem of pyarrow or fsspec that contains both paths.
        threads: Number of threads; 1 to read, decrypt and write in one thread.
        progress: Function called with the number of plaintext bytes written so far.

    Returns:
        The length of the plaintext in bytes.

    Raises:
        Exception: As `Ags1Reader`, or the error of `progress`; no destination appears then.
    """
    cipher = block_cipher(key, aad_prefix)
    trusted = trusted_length(key, length)
    check_threads(threads)
    with open_stream(source, filesystem=filesystem) as stream:
        if stream.size is not None:
            check_length(stream.size, trusted, stream.name)
        block_length = parse_header(_read_header(stream), stream.name)
        total = trusted if stream.size is None else stream.size
        if stream.size is not None:
            Layout.of(block_length, stream.size, stream.name)
        with open_output(
            destination, stream.source, overwrite=overwrite, threads=threads, filesystem=filesystem
        ) as output:
            output.progress = progress
            index = 0
            for lot in _read_lots(stream, block_length, total):
                index = _decrypt_lot(cipher, lot, block_length, index, output)
            return output.position


@dataclass(frozen=True, slots=True)
class Ags1Summary:
    """The properties of an AGS1 stream that need no key. None of them is authenticated.

    Lengths are in bytes. `encrypted_length` is the sum of the header's length, `plaintext_length`
    and `overhead`.
    """

    block_length: int
    encrypted_length: int
    plaintext_length: int
    blocks: int
    last_block_length: int

    @property
    def overhead(self) -> int:
        """Number of bytes of nonces and tags."""
        return self.blocks * BLOCK_OVERHEAD


def inspect_ags1(source: SourceLike, *, filesystem: Any = None) -> Ags1Summary:
    """Return the properties of an AGS1 stream that need no key; reads a pipe to its end.

    Args:
        source: Path, URL, bytes or binary file object.
        filesystem: Filesystem of pyarrow or fsspec that contains the path.

    Raises:
        FormatError, LimitError, PlaintextError, TruncationError: As `Ags1Reader`.
    """
    with open_stream(source, filesystem=filesystem) as stream:
        block_length = parse_header(_read_header(stream), stream.name)
        if (size := stream.size) is None:  # the end of a pipe is only found by reading it
            size, buffer = HEADER_SIZE, memoryview(bytearray(_LOT_BYTES))
            while count := stream.readinto(buffer):
                size += count
        layout = Layout.of(block_length, size, stream.name)
    start, end = layout.plaintext_span(layout.blocks - 1)
    return Ags1Summary(block_length, size, layout.plaintext_length, layout.blocks, end - start)


def _read_header(stream: Stream) -> bytes:
    header = bytearray(HEADER_SIZE)
    size = stream.readinto(memoryview(header))
    return bytes(header[:size])


def _read_lots(stream: Stream, block_length: int, expected: int | None) -> Iterator[memoryview]:
    """Yield lots of blocks, each as soon as it is known to lie within the expected length."""
    # The whole length is checked before the last lot is yielded.
    frame = block_length + BLOCK_OVERHEAD
    size = max(1, _LOT_BYTES // frame) * frame
    if expected is not None:  # the header may declare blocks longer than the file
        size = max(1, min(size, expected - HEADER_SIZE))
    current, following = memoryview(bytearray(size)), memoryview(bytearray(size))
    filled = stream.readinto(current)
    total = HEADER_SIZE + filled
    while filled == size:
        more = stream.readinto(following)
        total += more
        if expected is not None and total > expected:
            check_length(total, expected, stream.name)
        if not more:
            break
        yield current
        current, following, filled = following, current, more
    check_length(total, expected, stream.name)
    Layout.of(block_length, total, stream.name)
    yield current[:filled]


def _decrypt_lot(
    cipher: BlockCipher, lot: memoryview, block_length: int, first: int, output: Output
) -> int:
    """Decrypt the blocks from index `first` on into the output; return the next index."""
    frame = block_length + BLOCK_OVERHEAD
    count = -(-len(lot) // frame)
    output.reserve(len(lot) - count * BLOCK_OVERHEAD)
    for start in range(0, len(lot), frame):
        block = lot[start : start + frame]
        end = output.at + len(block) - BLOCK_OVERHEAD
        cipher.decrypt(block, first, output.view[output.at : end])
        output.at, first = end, first + 1
    output.flush()
    return first
