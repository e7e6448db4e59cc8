"""Seal and open the blocks of one stream, one by one or many on several threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from itertools import pairwise

from modcrypt.aad import BlockId, block_aad
from modcrypt.aead import BLOCK_OVERHEAD, GcmCipher, TagError
from modcrypt.ags1.lengths import Ags1Key
from modcrypt.buffers import Threads, usable_cores
from modcrypt.errors import TagMismatchError
from modcrypt.key_metadata import StandardKeyMetadata, as_prefix
from modcrypt.keys import as_key

__all__ = ["BlockCipher", "Workers", "block_cipher"]

MAX_WORKERS = 4
"""Threads of one stream: AES saturates memory before it does a fifth core."""

_WORTH_THREADS = 4 << 20
"""Bytes at once from which on several threads take less time than one."""


class BlockCipher:
    """The blocks of one stream under its key and AAD prefix; serves any number of threads."""

    __slots__ = ("_gcm", "_prefix")

    def __init__(self, gcm: GcmCipher, aad_prefix: bytes) -> None:
        self._gcm, self._prefix = gcm, aad_prefix

    def seal(self, plaintext: memoryview, block_length: int, first: int, out: memoryview) -> None:
        """Write the blocks of `plaintext`, the first of which has the index `first`, into `out`.

        Raises:
            KeyExhaustedError: the key has done 2**32 seals.
            LimitError: more blocks than their index can number.
        """
        size, at, index = len(plaintext), 0, first
        for start in range(0, size, block_length) if size else (0,):
            part = plaintext[start : start + block_length]
            end = at + len(part) + BLOCK_OVERHEAD
            self._gcm.seal_block_into(out[at:end], part, block_aad(self._prefix, index))
            at, index = end, index + 1

    def open(self, block: memoryview, index: int, out: memoryview) -> None:
        """Open a block into `out`, which has exactly its plaintext's size.

        Raises:
            TagMismatchError: it does not authenticate; `out` is zeroed.
        """
        try:
            self._gcm.open_block_into(block, block_aad(self._prefix, index), out)
        except TagError:
            raise TagMismatchError(BlockId(index)) from None


def block_cipher(key: Ags1Key, aad_prefix: bytes | None) -> BlockCipher:
    """Make the cipher of a stream. No AAD prefix and an empty one are the same.

    Raises:
        ValueError: a key of another size than AES has, or an AAD prefix beside the one in the key
            metadata.
        TypeError: the key or prefix is of another kind.
    """
    prefix = b"" if aad_prefix is None else as_prefix(aad_prefix)
    if isinstance(key, StandardKeyMetadata):
        own = key.aad_prefix or b""
        if aad_prefix is not None and prefix != own:
            raise ValueError("aad_prefix is given, but the key metadata says another one")
        return BlockCipher(GcmCipher(key.key), own)
    return BlockCipher(GcmCipher(as_key(key)), prefix)


class Workers:
    """The threads of one stream, begun when there is enough to do."""

    def __init__(self, count: int | None, name: str) -> None:
        if count is not None and count < 1:
            raise ValueError("threads is at least 1")
        self.count = count or min(MAX_WORKERS, usable_cores())
        self.threads = Threads(self.count, name)

    def spread(self, first: int, stop: int, size: int, work: Callable[[int, int], None]) -> None:
        """Have several threads, this one among them, call `work` for parts of [first, stop).

        Args:
            size: bytes that all of it takes; few are done by this thread alone.
        """
        parts = min(self.count, stop - first) if size >= _WORTH_THREADS else 1
        borders = [first + (stop - first) * n // parts for n in range(parts + 1)]
        others = [self.threads.submit(work, *part) for part in pairwise(borders[1:])]
        # They write into the same memory: an error of one is raised when all are done.
        try:
            work(first, borders[1])
        finally:
            wait(others)
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads, after what is begun."""
        self.threads.close()
